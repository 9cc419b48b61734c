"""How long a message of a quiet partition waits while another partition of the same consumer always has messages.

    python benchmarks/busy_partition.py [--runs 10] [--scale 1] [--json FILE]

For consumers of both systems, with and without asyncio. A handler takes a millisecond. Both figures are the longest
time from a send to the quiet partition to its handler, over as many sends as there are runs: beside a partition with
more messages than can be handled, and beside an empty one.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from figures import Figure, Report, arguments

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.model import Partition
from metaq.testing.broker_process import BrokerProcess

RUNS: Final = 10
BACKLOG: Final = 20_000
HANDLER_S: Final = 0.001
LEAD_S: Final = 0.5
DEADLINE_S: Final = 120.0
BUSY, QUIET = 0, 1
FIRST: Final = b"first"


@dataclass(frozen=True)
class Client:
    """A client with consumers of groups: its class, and the class of the producer that sends to it."""

    made_by: Any
    sends_by: Any
    is_async: bool = False

    def cluster(self, broker: BrokerProcess) -> str:
        """Return the address that the client is made with."""
        return broker.name_servers if self.sends_by is RocketMQ else broker.cluster

    def partition(self, index: int) -> Partition:
        """Return the partition, or queue, with this index."""
        return Partition("metaq", index) if self.sends_by is RocketMQ else Partition(0, index)


CLIENTS: Final = {
    "MetaQ": Client(MetaQ, MetaQ),
    "MetaQ, asyncio": Client(AsyncMetaQ, MetaQ, is_async=True),
    "RocketMQ": Client(RocketMQ, RocketMQ),
    "RocketMQ, asyncio": Client(AsyncRocketMQ, RocketMQ, is_async=True),
}


def longest_wait_ms(client: Client, broker: BrokerProcess, topic: str, sends: int, backlog: int) -> float:
    """Return the longest wait of ``sends`` messages, beside a partition with ``backlog`` messages."""
    waits, came = list[float](), threading.Event()
    quiet = client.partition(QUIET)

    def note(message: Any) -> None:
        if message.partition == quiet and message.data != FIRST:
            waits.append(time.perf_counter() - float(message.data))
            came.set()

    with client.sends_by(client.cluster(broker)) as mq:
        producer = mq.producer()
        producer.send(topic, FIRST, partition=quiet)
        if backlog:
            producer.send_many(topic, [b"busy"] * backlog, partition=client.partition(BUSY))
        with _consuming(client, broker, topic, note):
            time.sleep(LEAD_S)
            for _ in range(sends):
                came.clear()
                producer.send(topic, b"%.6f" % time.perf_counter(), partition=quiet)
                if not came.wait(DEADLINE_S):
                    waits.append(DEADLINE_S)
    return max(waits) * 1000


@contextmanager
def _consuming(client: Client, broker: BrokerProcess, topic: str, note: Callable[[Any], None]) -> Iterator[None]:
    """Run a consumer of ``topic`` in a thread; ``note`` is called with each message that its handler has handled."""
    started, stop = threading.Event(), list[Callable[[], object]]()
    group = f"group-{topic}"

    def handle(message: Any) -> None:
        time.sleep(HANDLER_S)
        note(message)

    async def handle_in_loop(message: Any) -> None:
        await asyncio.sleep(HANDLER_S)
        note(message)

    async def run_in_loop() -> None:
        async with (
            client.made_by(client.cluster(broker)) as mq,
            mq.consumer(group, [topic], start="earliest") as consumer,
        ):
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(consumer.stop))
            started.set()
            await consumer.run(handle_in_loop)

    def run() -> None:
        if client.is_async:
            asyncio.run(run_in_loop())
            return
        with client.made_by(client.cluster(broker)) as mq, mq.consumer(group, [topic], start="earliest") as consumer:
            stop.append(consumer.stop)
            started.set()
            consumer.run(handle)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(DEADLINE_S)
    try:
        yield
    finally:
        for end in stop:
            end()
        thread.join()


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    asked = arguments(__doc__, RUNS).parse_args(given)
    with (
        Report("A quiet partition beside a busy one", asked.json) as report,
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder), partitions=2) as broker,
    ):
        for number, (name, client) in enumerate(CLIENTS.items()):
            alone = longest_wait_ms(client, broker, f"alone-{number}", asked.runs, 0)
            beside = longest_wait_ms(client, broker, f"beside-{number}", asked.runs, max(1, int(BACKLOG * asked.scale)))
            what = f"{name} consumer, longest wait of a quiet partition beside a busy one"
            report.add(Figure(what, "ms", beside, alone, "beside an empty one", "less"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
