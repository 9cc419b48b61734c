"""Two brokers, each behind an inspecting proxy, with the input and output topics of the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from metaq_broker.operate.control.client import ControlClient
from metaq_broker.operate.control.messages import ControlRequest

from faults.broker_process import BrokerProcess, ServerSettings
from faults.exactly_once.checker import Seen
from faults.exactly_once.proxy import InspectingProxy, Observer
from faults.exactly_once.query import PARTITIONS, SOURCE, TARGET
from faults.payload import MessageKey, make_payload
from faults.stored import PartitionKey
from faults.survey import failures, survey
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.model import Message
from metaq.net.transport import Timeouts

BROKERS: Final = (0, 1)
PORTION: Final = 40
"""Messages per input partition in one portion: some six micro-batches."""

PAYLOAD_BYTES: Final = (64, 300)
_TIMEOUTS: Final = Timeouts(10.0, 60.0)
_CONTROL_S: Final = 30.0


def source_name(broker_id: int, index: int) -> str:
    """Return the producer of the payloads of one input partition."""
    return f"p{broker_id}-{index}"


def partition_of(key: MessageKey) -> str:
    """Return the output partition of a message: on both brokers in turn, at the index of its source.

    It is the same as ``COLUMNS`` in the query.
    """
    broker_id, index = map(int, key.producer.removeprefix("p").split("-"))
    turned = (broker_id * PARTITIONS + index + PARTITIONS * (key.sequence % 2)) % (PARTITIONS * len(BROKERS))
    return f"{turned // PARTITIONS}-{turned % PARTITIONS}"


class BrokerPair:
    """Creates the proxies, which listen, and starts no broker."""

    def __init__(self, folder: Path, seed: int, observer: Observer) -> None:
        topics = {SOURCE: PARTITIONS, TARGET: PARTITIONS}
        self.brokers = {
            number: BrokerProcess(folder / f"broker-{number}", ServerSettings(topics, extra={"brokerId": number}))
            for number in BROKERS
        }
        self._taps = [InspectingProxy(number, broker.address, observer) for number, broker in self.brokers.items()]
        self._random = Random(f"input {seed}")
        self.sent: Counter[str] = Counter()
        """Source -> number of its messages."""

    @property
    def addresses(self) -> str:
        """The query's option ``brokers``: the proxies."""
        return ",".join(str(tap.address) for tap in self._taps)

    def start(self) -> None:
        """Start both brokers.

        Raises:
            BrokerTrouble: One does not become ready.
        """
        for broker in self.brokers.values():
            broker.start()

    def close(self) -> None:
        """Kill the brokers and close the proxies."""
        for tap in self._taps:
            tap.close()
        for broker in self.brokers.values():
            broker.kill()

    def feed(self, count: int = PORTION) -> None:
        """Put ``count`` messages into each input partition, not through the proxies.

        Raises:
            MetaqError: A broker refuses them.
        """
        for number in BROKERS:
            with self._session(number) as session:
                for index in range(PARTITIONS):
                    source = source_name(number, index)
                    keys = [MessageKey(source, self.sent[source] + n) for n in range(count)]
                    messages = (Message(make_payload(key, self._random.randint(*PAYLOAD_BYTES))) for key in keys)
                    put_batch(session, SOURCE, index, *encode_block(messages))
                    self.sent[source] += count

    def output(self) -> dict[str, list[Seen]]:
        """Return the messages of the output topic by partition.

        Raises:
            MetaqError: A broker cannot be read.
        """
        held: dict[str, list[Seen]] = {}
        for number in BROKERS:
            with self._session(number) as session:
                for partition_key, image in survey(session).items():
                    if partition_key.topic == TARGET:
                        seen = [Seen(frame.offset, frame.key, frame.fault) for frame in image.frames]
                        held[_name(number, partition_key)] = seen + [Seen(image.end, None, image.fault)] * bool(
                            image.fault
                        )
        return held

    def leftovers(self) -> list[str]:
        """Return remaining branches, as clients and operators see them, and errors in the logs."""
        found: list[str] = []
        for number, broker in self.brokers.items():
            with self._session(number) as session:
                found += (f"broker {number} lists branch {xid}" for xid in TransactionSteps(session).recover())
                found += (f"broker {number} says: {line}" for line in failures(session))
            found += (f"ctl of broker {number} lists {row['key']}" for row in self._prepared(broker))
            found += (f"in the log of broker {number}: {line}" for line in broker.complaints())
        return found

    def _prepared(self, broker: BrokerProcess) -> list[dict[str, object]]:
        client = ControlClient(broker.data, _CONTROL_S)
        try:
            rows: list[dict[str, object]] = client.ask(ControlRequest("transactions", {}))["prepared"]
            return rows
        finally:
            client.close()

    @contextmanager
    def _session(self, number: int) -> Iterator[Session]:
        session = Session.connect(self.brokers[number].address, _TIMEOUTS)
        try:
            yield session
        finally:
            session.close()


def _name(number: int, partition_key: PartitionKey) -> str:
    return f"{number}-{partition_key.index}"
