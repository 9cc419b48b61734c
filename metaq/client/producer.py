"""Writing: everything a writer imports, and a producer for programs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import Receipt, encode_block, put, put_batch, takes_blocks
from metaq.client.futures import MessageFuture
from metaq.client.partitioners import Partitioner, by_key
from metaq.client.records import Sent
from metaq.client.submissions import WINDOW_BYTES, OnOverflow, Settled, Submissions, Submitted, leave_limit_s
from metaq.client.transactions import LocalTransaction, XaBranch
from metaq.discovery.base import Directory
from metaq.errors import MetaqError, SendFailed, TopicNotFound
from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_id import IdRange
from metaq.model import Address, Message, Partition, TopicPartition, Xid
from metaq.sizes import parse_size

__all__ = ["Producer", "Receipt", "encode_block", "put", "put_batch"]

BLOCK_BYTES_MAX: Final = 256 << 10
"""Most bytes of one request of ``send_many``; a longer message goes alone."""
BLOCK_MESSAGES_MAX: Final = 1000
"""Most messages of one request of ``send_many``."""


class Producer:
    """Sends messages to the partitions that ``partitioner`` chooses (default: by key, in turn without one).

    Which broker takes a topic is asked once, and again after a failure. One thread at a time, except ``submit``.
    ``linger_s``, ``window`` (bytes, or a text such as ``4 MiB``) and ``on_overflow`` are for ``submit``; see there.
    """

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        partitioner: Partitioner | None = None,
        *,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[Message] = "block",
    ) -> None:
        self._directory, self._pool = directory, pool
        self._partitioner = partitioner or by_key()
        self._addresses: dict[str, dict[Partition, Address]] = {}
        self._next = itertools.count()
        self._choosing = threading.Lock()
        self._submissions: Submissions[Message, Partition, Sent] = Submissions(
            lambda topic, some: self._send(topic, [(one.prepared, one.message) for one in some]),
            pool.clock,
            linger_s=linger_s,
            window_bytes=parse_size(window) if isinstance(window, str) else window,
            on_overflow=on_overflow,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(leave_limit_s(kind))

    def publish(self, *topics: str) -> None:
        """Check early that topics can be sent to.

        Raises:
            TopicNotFound: No broker accepts one of them.
        """
        for topic in topics:
            self._writable(topic)

    def accepts(self, topic: str, partition: Partition) -> bool:
        """Return whether a broker takes messages of ``topic`` for ``partition`` at the moment; asks if it is not known.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """
        if partition in self._writable(topic):
            return True
        del self._addresses[topic]
        return partition in self._writable(topic)

    def knows(self, topic: str) -> bool:
        """Return whether the brokers of a topic are known, so that ``submit`` asks nobody."""
        return topic in self._addresses

    def submit(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Future[Sent]:
        """Take a message to be sent in the background, and return a future of where it is stored.

        The future is settled by the acknowledgement, whether anybody calls anything or not; its exception is that of
        ``send``. Messages of one partition are stored in the order of their submission. What does not fit into the
        window waits here, raises, or is given to a function, as ``on_overflow`` says. Any thread may call this.

        Raises:
            TopicNotFound, ValueError, TypeError: As ``send``.
            WindowFull: The window is full, with ``on_overflow="raise"``.
        """
        future: Future[Sent] = MessageFuture()
        self.enqueue(self.prepare(future, topic, data, attribute, partition, key))
        return future

    def prepare(
        self,
        future: Settled[Sent],
        topic: str,
        data: bytes | str,
        attribute: str | None,
        partition: Partition | None,
        key: bytes | str | None,
    ) -> Submitted[Message, Partition, Sent]:
        """Return a message for ``enqueue``, which settles ``future``. Raises as ``send``."""
        message = Message(_bytes_of(data, "data"), attribute)
        with self._choosing:
            where = self._choose(topic, partition, key)
        return Submitted(topic, message, where, len(message.payload), future)

    def enqueue(self, one: Submitted[Message, Partition, Sent]) -> None:
        """Take a message to be sent in the background.

        Raises:
            WindowFull: The window is full, with ``on_overflow="raise"``.
        """
        self._submissions.put(one)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was submitted is settled; return whether that was within ``timeout`` seconds."""
        return self._submissions.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what was submitted and wait for it, for ``timeout`` seconds at most. Further calls do nothing.

        A ``with`` block that is left by Ctrl-C waits for 5 seconds.
        """
        self._submissions.close(timeout)

    def transaction(self, timeout: int = 60) -> LocalTransaction:
        """Return a transaction for a ``with`` block; the broker drops it after ``timeout`` seconds (0: its maximum)."""
        return LocalTransaction(self._choose_at, _message_of, self._pool, timeout)

    def xa(self, xid: Xid, timeout: int = 60) -> XaBranch:
        """Return a branch of an XA transaction for a ``with`` block; see ``XaBranch``."""
        return XaBranch(xid, self._choose_at, _message_of, self._pool, timeout)

    def _choose_at(
        self, topic: str, partition: Partition | None, key: bytes | str | None, broker: int | None
    ) -> tuple[Partition, Address]:
        """Choose as ``send`` does, among the partitions of ``broker`` if one is named."""
        if broker is None:
            where = self._choose(topic, partition, key)
            return where, self._writable(topic)[where]
        there = {where: at for where, at in self._writable(topic).items() if where.broker == broker}
        if not there:
            raise TopicNotFound(topic, [f"broker {broker}, which has the transaction"])
        if partition is None:
            partition = self._partitioner(topic, list(there), None if key is None else _bytes_of(key, "key"))
        _require_partition(topic, partition, there)
        return partition, there[partition]

    def put(self, topic: str, message: Message, partition: Partition | None = None) -> Receipt:
        """Store one message, with one attempt.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ValueError: ``partition`` is none of the topic's.
            TypeError: ``message`` is no message.
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As the function ``put``.
        """
        Message.require(message)
        addresses = self._writable(topic)
        if partition is None:
            partition = list(addresses)[next(self._next) % len(addresses)]
        _require_partition(topic, partition, addresses)
        with self._pool.lease(addresses[partition]) as session:
            return put(session, topic, partition.index, message)

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent:
        """Store one message and return where it is, once the broker has acknowledged it.

        A text is sent as UTF-8. ``partition`` overrides the partitioner, which gets ``key``; the key is not stored.
        After a lost connection the message is sent again, up to five times; it may then be stored twice.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ValueError: ``partition`` is none of the topic's, or the attribute cannot be written.
            TypeError: ``data`` is neither bytes nor text.
            SendFailed: The broker refused the message or could not be reached.
        """
        message = Message(_bytes_of(data, "data"), attribute)
        where = self._choose(topic, partition, key)
        return self._send(topic, [(where, message)])[0]

    def send_many(
        self,
        topic: str,
        messages: Iterable[bytes | str | Message],
        *,
        partition: Partition | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> list[Sent]:
        """Store messages in blocks, several of them in flight, and return where each is, in the order given.

        ``keys``: one for each message. Messages of one partition are stored in the order given, unless a connection
        was lost: then some may be stored twice.

        Raises:
            TopicNotFound, ValueError, TypeError: As ``send``; nothing was sent.
            SendFailed: A broker refused a block or could not be reached; ``sent`` is what was acknowledged.
        """
        listed = [one if isinstance(one, Message) else Message(_bytes_of(one, "message")) for one in messages]
        if keys is not None and len(keys) != len(listed):
            raise ValueError(f"keys: expected one for each of {len(listed)} messages, got {len(keys)}")
        chosen = [self._choose(topic, partition, None if keys is None else keys[row]) for row in range(len(listed))]
        return self._send(topic, list(zip(chosen, listed, strict=True)))

    def _choose(self, topic: str, partition: Partition | None, key: bytes | str | None) -> Partition:
        addresses = self._writable(topic)
        if partition is None:
            given = None if key is None else _bytes_of(key, "key")
            partition = self._partitioner(topic, list(addresses), given)
        _require_partition(topic, partition, addresses)
        return partition

    def _writable(self, topic: str) -> dict[Partition, Address]:
        return self._addresses.get(topic) or self._addresses.setdefault(topic, self._directory.writable(topic))

    def _send(self, topic: str, rows: Sequence[tuple[Partition, Message]]) -> list[Sent]:
        addresses, sent = self._writable(topic), list[Sent | None]([None] * len(rows))
        if gone := sorted({partition for partition, _ in rows} - addresses.keys()):
            names = ", ".join(map(str, gone))
            raise SendFailed(topic, f"no broker accepts partition {names} at the moment", True, tuple(sent))
        by_address: dict[Address, dict[Partition, list[int]]] = {}
        frames = [encode_frame(0, *encode_body(message)) for _, message in rows]
        for row, (partition, _) in enumerate(rows):
            by_address.setdefault(addresses[partition], {}).setdefault(partition, []).append(row)
        writers: list[_BrokerWriter] = []
        try:
            with ExitStack() as stack:
                for address, numbers in by_address.items():
                    writers.append(_BrokerWriter(stack, self._pool, address, topic, numbers, frames))
                    writers[-1].write()
                for writer in writers:
                    writer.flush(sent)
        except MetaqError as error:
            for writer in writers:
                writer.note(sent)
            self._addresses.pop(topic, None)  # the partition may have another master by now
            raise SendFailed(topic, str(error), error.retryable, tuple(sent)) from error
        return [one for one in sent if one is not None]


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows that are stored with one request, and the bytes of their frames."""

    where: TopicPartition
    rows: Sequence[int]
    sizes: Sequence[int]

    def sent(self, receipt: Receipt) -> Iterator[tuple[int, Sent]]:
        """Yield each row and where it is, from the receipt of the first."""
        (topic, partition), offset = self.where, receipt.offset
        ids = IdRange.starting_at(receipt.message_id, len(self.rows))
        others = itertools.islice(ids, 1, None)  # the first id may be another broker's, of any form
        for row, size, message_id in zip(
            self.rows, self.sizes, itertools.chain((receipt.message_id,), others), strict=True
        ):
            yield row, Sent(topic=topic, partition=partition, offset=offset, message_id=message_id)
            offset += size


class _BrokerWriter:
    """The blocks of one broker, over one connection."""

    def __init__(
        self,
        stack: ExitStack,
        pool: SessionPool,
        address: Address,
        topic: str,
        numbers: dict[Partition, list[int]],
        frames: Sequence[bytes],
    ) -> None:
        session = stack.enter_context(pool.lease(address))
        # Other brokers take a block message by message and tell the place of the first one only.
        messages_max = BLOCK_MESSAGES_MAX if takes_blocks(session) else 1
        self._writer, self._frames = BatchWriter(session, topic), frames
        self._blocks = [
            block
            for partition, rows in numbers.items()
            for block in _blocks(TopicPartition(topic, partition), rows, frames, messages_max)
        ]

    def write(self) -> None:
        """Send all blocks; the last ones may still be on their way."""
        for block in self._blocks:
            content = b"".join(self._frames[row] for row in block.rows)
            self._writer.write(block.where.partition.index, content, len(block.rows))

    def flush(self, sent: list[Sent | None]) -> None:
        """Wait for all acknowledgements, and note them in ``sent``."""
        self._note(self._writer.flush(), sent)

    def note(self, sent: list[Sent | None]) -> None:
        """After a failure: note in ``sent`` what had been acknowledged before."""
        self._note(self._writer.acknowledged, sent)

    def _note(self, receipts: Sequence[Receipt], sent: list[Sent | None]) -> None:
        for block, receipt in zip(self._blocks, receipts, strict=False):  # none of those behind a failure
            for row, one in block.sent(receipt):
                sent[row] = one


def _blocks(where: TopicPartition, rows: Sequence[int], frames: Sequence[bytes], messages_max: int) -> Iterator[_Block]:
    taken: list[int] = []
    size = 0
    for row in rows:
        if taken and (len(taken) == messages_max or size + len(frames[row]) > BLOCK_BYTES_MAX):
            yield _Block(where, taken, [len(frames[one]) for one in taken])
            taken, size = [], 0
        taken.append(row)
        size += len(frames[row])
    yield _Block(where, taken, [len(frames[one]) for one in taken])


def _require_partition(topic: str, partition: Partition, addresses: dict[Partition, Address]) -> None:
    if partition not in addresses:
        raise ValueError(f"partition {partition}: {topic} has {', '.join(map(str, addresses))}")


def _message_of(data: bytes | str, attribute: str | None) -> Message:
    return Message(_bytes_of(data, "data"), attribute)


def _bytes_of(data: object, what: str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{what}: expected bytes or a text, got {type(data).__name__}")
    return bytes(data)
