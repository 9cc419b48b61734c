"""Everything a reader imports, and a small consumer for scripts."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.backends.metaq.boundaries import first_at_time, frame_boundary
from metaq.backends.metaq.fetch import GROUP, AtEnd, Moved, Run, fetch
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.range_reader import read_range
from metaq.discovery.base import Directory
from metaq.errors import OffsetMoved, TopicNotFound
from metaq.formats.frames import Frame, walk
from metaq.model import OffsetRange, Partition, TopicPartition

__all__ = [
    "GROUP",
    "AtEnd",
    "Consumer",
    "Moved",
    "Run",
    "fetch",
    "first_at_time",
    "frame_boundary",
    "read_range",
]


class Consumer:
    """Reads messages one by one, partition by partition. Stores no offsets: keep ``Frame.end`` to continue."""

    def __init__(self, directory: Directory, pool: SessionPool, fetch_bytes: int = 1 << 20) -> None:
        self._directory, self._pool, self._fetch_bytes = directory, pool, fetch_bytes

    def messages(self, topic: str, partition: Partition, start: int | None = None) -> Iterator[Frame]:
        """The frames of ``partition`` from offset ``start`` (default: the first stored one) to the readable end.

        ``frame.message`` is the message, ``frame.end`` the offset to continue from. The iterator is empty if there is
        nothing new; call again later with the same ``start``.

        Raises:
            TopicNotFound: No broker has messages of the topic.
            ValueError: The topic has no such partition, or none with messages.
            CorruptFrame: A frame fails its checksum; the frames before it were yielded.
            OffsetMoved: ``start`` is below the log start or above the readable end.
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As ``read_range``.
        """
        addresses = self._directory.partitions(topic)
        if partition not in addresses:
            known = self._directory.topics()
            if topic not in known:
                raise TopicNotFound(
                    topic, [str(address) for address in self._directory.brokers().values()], list(known)
                )
            with_messages = ", ".join(map(str, addresses)) or "none"
            raise ValueError(f"partition {partition}: partitions of {topic} with messages: {with_messages}")
        where = TopicPartition(topic, partition)
        readable = self._directory.ends([topic])[where]
        wanted = OffsetRange(readable.start if start is None else start, readable.end)
        if wanted.start > wanted.end:
            raise OffsetMoved(str(where), wanted.start, wanted.end)
        with self._pool.lease(addresses[partition]) as session:
            for run in read_range(session, topic, partition.index, wanted, self._fetch_bytes):
                yield from walk(run.data, run.offset, where=str(where))
