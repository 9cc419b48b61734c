"""Sends messages to the queues of RocketMQ topics, each acknowledged or an error."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.batch_writer import BATCH_BYTES_MAX, BatchWriter, SendReceipt
from metaq.backends.rocketmq.errors import SendFailed as WriterFailed
from metaq.backends.rocketmq.pool import SessionPool
from metaq.client.partitioners import Partitioner, by_key
from metaq.client.rocketmq.records import NO_PROPERTIES, RocketMessage, RocketSent
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import FieldError, MetaqError, SendFailed
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES, BatchElement, encode_batch
from metaq.formats.rocketmq.message_ids import UniqueKeys, month_start_ms
from metaq.formats.rocketmq.properties import write_properties
from metaq.model import Partition
from metaq.net.clock import wall_clock_ms

BLOCK_BYTES_MAX: Final = 512 << 10
"""Most bytes of one request of ``send_many``; a longer message goes alone, up to ``BATCH_BYTES_MAX``."""
BLOCK_MESSAGES_MAX: Final = 1000
"""Most messages of one request of ``send_many``."""

DEFAULT_GROUP: Final = "metaq-producer"
"""Producer group of this client, unless another is given. Brokers show it, and check permissions of it."""

Sendable = bytes | str | RocketMessage


@dataclass(frozen=True, slots=True)
class _Row:
    """A message on its way: ``number`` is its place among those given."""

    number: int
    queue: Partition
    message_id: str
    is_delayed: bool
    body: bytes
    properties: str

    @property
    def size(self) -> int:
        return OVERHEAD_BYTES + len(self.body) + len(self.properties.encode())


class RocketProducer:
    """Sends messages to the queues that ``partitioner`` chooses (default: by key, in turn without one).

    A topic that does not exist is made by the first message, at brokers that allow that (``autoCreateTopicEnable``).
    One thread at a time.
    """

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        partitioner: Partitioner | None = None,
        group: str = DEFAULT_GROUP,
    ) -> None:
        self._directory, self._pool, self._group = directory, pool, group
        self._partitioner = partitioner or by_key()
        # Not an address: ids must differ from those of every other producer, and say nothing of this machine.
        self._ids = UniqueKeys(secrets.token_bytes(4), os.getpid(), secrets.randbits(32))
        self._queues: dict[str, list[Partition]] = {}

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        delay_level: int = 0,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> RocketSent:
        """Store one message and return where it is, once the broker has acknowledged it. See ``RocketMessage``.

        ``partition`` (``Partition("broker-a", 0)``) overrides the partitioner, which gets ``key``. After a lost
        connection the message is sent again, for about half a minute; it may then be stored twice, with one
        ``message_id``.

        Raises:
            TopicNotFound: No name server knows the topic.
            ValueError, TypeError: The message cannot be sent as it is; nothing was sent.
            SendFailed: The broker refused the message or could not be reached.
            NameServersAway, RouteUnusable: Where the topic is could not be found out.
        """
        message = RocketMessage(data=data, tag=tag, keys=keys, properties=dict(properties), delay_level=delay_level)
        return self._send(topic, [message], partition, [key])[0]

    def send_many(
        self,
        topic: str,
        messages: Iterable[Sendable],
        *,
        partition: Partition | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> list[RocketSent]:
        """Store messages in batches, several of them in flight, and return where each is, in the order given.

        ``keys``: what the partitioner gets, one for each message. Messages of one queue are stored in the order given;
        delayed ones are sent one by one.

        Raises:
            TopicNotFound, ValueError, TypeError: As ``send``; nothing was sent.
            SendFailed: A broker refused a batch or could not be reached; ``sent`` is what was acknowledged.
        """
        listed = [one if isinstance(one, RocketMessage) else RocketMessage(data=one) for one in messages]
        if keys is not None and len(keys) != len(listed):
            raise ValueError(f"keys: expected one for each of {len(listed)} messages, got {len(keys)}")
        return self._send(topic, listed, partition, keys or [None] * len(listed))

    def _send(
        self,
        topic: str,
        messages: Sequence[RocketMessage],
        partition: Partition | None,
        keys: Sequence[bytes | str | None],
    ) -> list[RocketSent]:
        queues = self._writable(topic)
        now_ms = wall_clock_ms()
        month_ms = month_start_ms(now_ms)
        rows = []
        for number, (message, key) in enumerate(zip(messages, keys, strict=True)):
            message_id = self._ids.next(now_ms, month_ms)
            rows.append(_row(number, self._choose(topic, queues, partition, key), message_id, message))
        sent: list[RocketSent | None] = [None] * len(rows)
        try:
            self._write(topic, rows, sent)
        except MetaqError as error:
            self._queues.pop(topic, None)  # its queues may be elsewhere by now
            raise SendFailed(topic, _reason(error), error.retryable, tuple(sent)) from error
        return [one for one in sent if one is not None]

    def _write(self, topic: str, rows: Sequence[_Row], sent: list[RocketSent | None]) -> None:
        """Send ``rows``, and note in ``sent`` what is acknowledged, also when this fails."""
        by_broker: dict[str, dict[Partition, list[_Row]]] = {}
        for row in rows:
            by_broker.setdefault(row.queue.broker_name, {}).setdefault(row.queue, []).append(row)
        with ExitStack() as stack:
            writers = []
            for broker_name, of_queues in by_broker.items():
                writer = BatchWriter(self._pool, self._directory, broker_name, group=self._group)
                stack.callback(writer.close)
                writers.append((writer, requests := list[list[_Row]]()))
                stack.callback(_note, topic, writer, requests, sent)
                _post(topic, writer, requests, of_queues)
            for writer, _ in writers:
                writer.wait()

    def _choose(
        self, topic: str, queues: list[Partition], partition: Partition | None, key: bytes | str | None
    ) -> Partition:
        if partition is None:
            partition = self._partitioner(topic, queues, key.encode() if isinstance(key, str) else key)
        if partition not in queues:  # a broker may have registered the topic since
            self._queues.pop(topic, None)
            self._directory.invalidate()
            queues = self._writable(topic)
        if partition not in queues:
            raise ValueError(f"queue {partition}: {topic} has {', '.join(map(str, queues)) or 'none to write to'}")
        return partition

    def _writable(self, topic: str) -> list[Partition]:
        found = self._queues.get(topic)
        if not found:
            found = self._directory.writable_or_new(topic)
            if not found:
                raise ValueError(f"topic {topic!r} has no queue that may be written to now")
            self._queues[topic] = found
        return found


def _row(number: int, queue: Partition, message_id: str, message: RocketMessage) -> _Row:
    try:
        properties = write_properties(message.all_properties(message_id))
    except FieldError as error:
        raise ValueError(f"message {number}: {error}") from None
    row = _Row(number, queue, message_id, message.delay_level > 0, message.body(), properties)
    if row.size > BATCH_BYTES_MAX:
        raise ValueError(f"message {number} takes {row.size} bytes, the most that brokers take is {BATCH_BYTES_MAX}")
    return row


def _post(
    topic: str, writer: BatchWriter, requests: list[list[_Row]], of_queues: Mapping[Partition, list[_Row]]
) -> None:
    for queue, rows in of_queues.items():
        for request in _requests(rows):
            requests.append(request)
            if request[0].is_delayed:
                writer.send(topic, queue.index, request[0].body, request[0].properties)
            else:
                elements = (BatchElement(row.body, row.properties.encode()) for row in request)
                writer.write(topic, queue.index, encode_batch(elements), len(request))


def _requests(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield rows of one queue as they are sent: batches up to the limits, delayed messages one by one."""
    taken: list[_Row] = []
    size = 0
    for row in rows:
        full = len(taken) == BLOCK_MESSAGES_MAX or size + row.size > BLOCK_BYTES_MAX
        if taken and (full or row.is_delayed or taken[-1].is_delayed):
            yield taken
            taken, size = [], 0
        taken.append(row)
        size += row.size
    if taken:
        yield taken


def _note(topic: str, writer: BatchWriter, requests: Sequence[list[_Row]], sent: list[RocketSent | None]) -> None:
    for number, receipt in writer.take_receipts().items():
        ids: list[str | None] = [*receipt.message_ids, *[None] * receipt.count]
        for place, (row, message_id) in enumerate(zip(requests[number], ids, strict=False)):
            sent[row.number] = _sent(topic, receipt, place, row, message_id)


def _sent(topic: str, receipt: SendReceipt, place: int, row: _Row, message_id: str | None) -> RocketSent:
    return RocketSent(
        topic=topic,
        partition=receipt.queue.partition,
        offset=receipt.offset + place,
        message_id=row.message_id,
        offset_message_id=message_id,
        is_durable=receipt.is_durable,
    )


def _reason(error: MetaqError) -> str:
    return error.reason if isinstance(error, WriterFailed) else str(error)
