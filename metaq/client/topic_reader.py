"""Reads offsets and messages of single partitions, with requests whose cost does not grow with the cluster.

For programs that look at a topic again and again beside the topic's producers. The other views ask each broker for all
of its partitions, so that their answer is of one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from metaq.backends.metaq.boundaries import finds_boundaries, first_at_time, frame_boundary
from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import lookup, offset_of_message, ordinal_at
from metaq.backends.metaq.range_reader import read_range
from metaq.backends.metaq.session import Session
from metaq.client.records import Received
from metaq.errors import BrokerError, ExtensionMissing, OffsetMoved
from metaq.formats.frames import PassedFrames, search, walk, whole_tail
from metaq.model import INT64_MAX, Address, OffsetRange, Partition, TopicPartition
from metaq.statuses import NOT_FOUND

FETCH_BYTES: Final = 64 << 10
"""Bytes of a request that looks at some messages."""
TAIL_BYTES_MIN, TAIL_BYTES_MAX = 32 << 10, 2 << 20
"""The last messages are searched for in this many bytes before an end: at first, and at most."""
BULK_BYTES: Final = 1 << 20
"""Bytes of a request that reads through a partition."""
BULK_AHEAD: Final = 2
"""How many requests of ``BULK_BYTES`` are in flight."""


class TopicReader:
    """Reads ``topic``; asks for its ``partitions`` once. Thread-safe.

    Methods raise ``KeyError`` for another partition, ``BrokerError`` if a broker refuses, and ``ConnectionFailed``,
    ``DeadlineExceeded`` or ``ProtocolError`` if it could not be asked.
    """

    def __init__(self, pool: SessionPool, topic: str, partitions: Mapping[Partition, Address]) -> None:
        self._pool = pool
        self.topic: Final = topic
        self.partitions: Final = partitions

    def start(self, partition: Partition) -> int:
        """Return the offset of the first stored message; 0 if there is none yet."""
        return self._border(partition, 0)

    def end(self, partition: Partition) -> int:
        """Return the offset after the last message; 0 if there is none yet."""
        return self._border(partition, INT64_MAX)

    def stored(self, partition: Partition) -> OffsetRange:
        """Return the stored range of a partition; empty if it has no messages yet."""
        return OffsetRange(self.start(partition), self.end(partition))

    def _border(self, partition: Partition, near: int) -> int:
        with self._pool.lease(self.partitions[partition]) as session:
            try:
                return lookup(session, self.topic, partition.index, near, "segment")
            except BrokerError as error:
                if error.code != NOT_FOUND:
                    raise
                return 0

    def newest(self, partition: Partition, count: int) -> int:
        """Return the offset at which the last ``count`` messages begin.

        A Java broker does not count messages: they are looked for in the last ``TAIL_BYTES_MAX`` bytes, and may be
        fewer.

        Raises:
            ExtensionMissing: They cannot be found there.
        """
        with self._pool.lease(self.partitions[partition]) as session:
            try:
                last = ordinal_at(session, self.topic, partition.index, INT64_MAX)
            except ExtensionMissing as missing:
                found = self._tail(session, partition, count)
                if found is None:
                    raise missing
                return found
            return offset_of_message(session, self.topic, partition.index, max(0, last - count))

    def _tail(self, session: Session, partition: Partition, count: int) -> int | None:
        """Search for the last messages in the bytes before the end, and in more bytes until they are found."""
        stored, size = self.stored(partition), TAIL_BYTES_MIN
        while len(stored):
            start = max(stored.start, stored.end - size)
            begins = whole_tail(_bytes(session, self.topic, partition, OffsetRange(start, stored.end)))
            is_last = start == stored.start or size >= TAIL_BYTES_MAX
            if len(begins) >= count or (begins and is_last):
                return start + begins[-count:][0]
            if is_last:
                return None
            size *= 8
        return stored.end

    def at_time(self, partition: Partition, time_ms: int) -> int:
        """Return the offset of the first message at or after ``time_ms`` (since 1970), or the end if there is none.

        Raises:
            ExtensionMissing: The broker stores no times (a Java broker).
        """
        with self._pool.lease(self.partitions[partition]) as session:
            return first_at_time(session, self.topic, partition.index, time_ms)

    def require_boundary(self, partition: Partition, offset: int) -> None:
        """Check that a message begins at ``offset``, or that it is the start or the end of the partition.

        A Java broker is not asked: it does not know where messages begin.

        Raises:
            OffsetMoved: The offset is outside the stored range; the error has the offset at which to continue.
            ValueError: No message begins there.
        """
        where, stored = TopicPartition(self.topic, partition), self.stored(partition)
        if not stored.start <= offset <= stored.end:
            raise OffsetMoved(str(where), offset, stored.start if offset < stored.start else stored.end)
        if offset in (stored.start, stored.end):
            return
        with self._pool.lease(self.partitions[partition]) as session:
            if not finds_boundaries(session):
                return
            found = frame_boundary(session, self.topic, partition.index, offset)
        if found < offset:
            raise ValueError(f"{where}: no message begins at offset {offset}; one begins at {found}")

    def read(
        self, partition: Partition, start: int, end: int, *, is_bulk: bool = False
    ) -> Generator[Received, None, None]:
        """Yield the messages that begin in ``[start, end)``. ``is_bulk``: all of them will be read.

        Raises:
            OffsetMoved: Retention has removed ``start``.
            CorruptFrame, CorruptRecord, CodecMissing: A message is damaged, or cannot be decompressed.
        """
        if start >= end:
            return
        where = TopicPartition(self.topic, partition)
        with self._runs(partition, OffsetRange(start, end), is_bulk=is_bulk) as runs:
            for run in runs:
                for frame in walk(run.data, run.offset, where=str(where)):
                    yield Received.of(where, frame)

    def search(
        self, partition: Partition, start: int, end: int, needles: Collection[bytes], most: int = INT64_MAX
    ) -> Generator[Received | PassedFrames, None, None]:
        """Yield the messages that begin in ``[start, end)`` and may contain one of ``needles``, and ``PassedFrames``
        for the messages between them. At most ``most`` messages are read. Several times faster than ``read`` if few
        match. Raises as ``read``.
        """
        if start >= end:
            return
        where = TopicPartition(self.topic, partition)
        with self._runs(partition, OffsetRange(start, end), is_bulk=True) as runs:
            for run in runs:
                for found in search(run.data, needles, run.offset, where=str(where), frames_max=most):
                    if isinstance(found, PassedFrames):
                        most -= found.frames
                        yield found
                    else:
                        most -= 1
                        yield Received.of(where, found)
                if not most:
                    return

    @contextmanager
    def _runs(self, partition: Partition, wanted: OffsetRange, *, is_bulk: bool) -> Iterator[Iterator[Run]]:
        """Lease a session for the ``with`` block, and read a range over it. ``is_bulk``: all of it will be read."""
        size, ahead = (BULK_BYTES, BULK_AHEAD) if is_bulk else (FETCH_BYTES, 1)
        with (
            self._pool.lease(self.partitions[partition]) as session,
            closing(read_range(session, self.topic, partition.index, wanted, size, ahead)) as runs,
        ):
            yield runs


def _bytes(session: Session, topic: str, partition: Partition, wanted: OffsetRange) -> bytes:
    """Return the bytes of a range, which may begin inside a message; fewer if the broker does not have them all."""
    found, at = b"", wanted.start
    while at < wanted.end:
        run = fetch(session, topic, partition.index, at, wanted.end - at)
        if not isinstance(run, Run):
            break
        found, at = found + run.data, run.end
    return found
