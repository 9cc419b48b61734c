"""Searches for single messages of a MetaQ topic, by id or by key. Brokers index neither: partitions are scanned.

An id names the broker that gave it and, if that was the bundled broker, the time; the scan begins there. A key is
searched for from the first message, or from a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Final

from metaq.backends.metaq.boundaries import first_at_time
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.range_reader import read_range
from metaq.client.records import Received
from metaq.discovery.base import Directory
from metaq.errors import CorruptFrame, ExtensionMissing
from metaq.formats.frames import Frame, walk
from metaq.formats.message_id import IdRange, timestamp_ms
from metaq.formats.rocketmq.properties import KEYS, parse_properties
from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition

SCAN_MAX: Final = 1_000_000
"""Default limit on the messages that a search reads."""
ROUND_MESSAGES: Final = 1000
"""Messages that are read of a partition before the search switches to the next one."""
FETCH_BYTES: Final = 256 << 10

Matches = Callable[[Frame], bool]


class Search:
    """One search in ``topic``: an iterator of the matching messages among the first ``limit`` messages read.

    Partitions are read in alternation, so that a long one does not use up the limit. Afterwards ``scanned`` is how many
    messages were read, and ``is_complete`` whether the limit did not end the search.

    Iterating raises:
        TopicNotFound: No broker knows the topic.
        CorruptFrame: A frame fails its checksum.
        OffsetMoved: Retention overtook the search.
        ExtensionMissing: A time was given, and a broker stores none (a Java broker).
        BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: A broker could not be asked, after retries.
    """

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        topic: str,
        matches: Matches,
        *,
        partitions: Callable[[Partition], bool] = lambda partition: True,
        since_ms: int | None = None,
        until_ms: int | None = None,
        needs_times: bool = True,
        limit: int = SCAN_MAX,
    ) -> None:
        self._directory, self._pool, self._topic, self._matches = directory, pool, topic, matches
        self._is_searched, self._since_ms, self._until_ms = partitions, since_ms, until_ms
        self._needs_times, self._limit = needs_times, limit
        self.scanned = 0
        self.is_complete = False

    def __iter__(self) -> Iterator[Received]:
        available = self._available()
        with ExitStack() as stack:
            waiting = [
                (where, stack.enter_context(closing(self._frames(where, state)))) for where, state in available.items()
            ]
            while waiting and self.scanned < self._limit:
                more = []
                for where, frames in waiting:
                    if (yield from self._round(where, frames)):
                        more.append((where, frames))
                waiting = more
            self.is_complete = not waiting

    def _round(self, where: TopicPartition, frames: Iterator[Frame]) -> Generator[Received, None, bool]:
        """Read a part of a partition; return whether there is more."""
        wanted = min(ROUND_MESSAGES, self._limit - self.scanned)
        count = 0
        for frame in islice(frames, wanted):
            count += 1
            self.scanned += 1
            if self._matches(frame):
                yield Received.of(where, frame)
        return count == wanted

    def _available(self) -> dict[TopicPartition, PartitionState]:
        found = self._directory.available([self._topic])
        mine = {where: state for where, state in sorted(found.items()) if where.topic == self._topic}
        if not mine:
            self._directory.writable(self._topic)  # raises TopicNotFound if no broker knows the topic
        return {where: state for where, state in mine.items() if self._is_searched(where.partition)}

    def _frames(self, where: TopicPartition, state: PartitionState) -> Generator[Frame, None, None]:
        index = where.partition.index
        address = self._directory.brokers()[where.partition.broker_id]
        with self._pool.lease(address) as session:
            start = state.offsets.start
            if self._since_ms is not None:
                try:
                    start = first_at_time(session, where.topic, index, self._since_ms)
                except ExtensionMissing:
                    if self._needs_times:
                        raise
            wanted = OffsetRange(start, max(start, state.offsets.end))
            with closing(read_range(session, where.topic, index, wanted, FETCH_BYTES)) as runs:
                for run in runs:
                    for frame in walk(run.data, run.offset, where=str(where)):
                        if self._until_ms is not None and (timestamp_ms(frame.message_id) or 0) > self._until_ms:
                            return
                        yield frame


def by_id(
    directory: Directory,
    pool: SessionPool,
    topic: str,
    message_id: int,
    *,
    partitions: Collection[Partition] | None = None,
    limit: int = SCAN_MAX,
) -> Search:
    """Return a search for the message with an id, in those ``partitions`` that are of the broker that gave the id.

    The scan begins at the id's time. An id of a Java broker has no time, so that search begins at the first message.
    """
    broker_id = IdRange.starting_at(message_id, 1).broker_id
    return Search(
        directory,
        pool,
        topic,
        lambda frame: frame.message_id == message_id,
        partitions=lambda partition: (
            partition.broker == broker_id and (partitions is None or partition in partitions)
        ),
        since_ms=timestamp_ms(message_id),
        needs_times=False,
        limit=limit,
    )


def by_key(
    directory: Directory,
    pool: SessionPool,
    topic: str,
    key: str,
    *,
    partitions: Collection[Partition] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    limit: int = SCAN_MAX,
) -> Search:
    """Search for messages with the attribute ``key``; RocketMQ messages match if ``key`` is among their keys."""
    return Search(
        directory,
        pool,
        topic,
        lambda frame: _has_key(frame, key),
        partitions=lambda partition: partitions is None or partition in partitions,
        since_ms=since_ms,
        until_ms=until_ms,
        limit=limit,
    )


def _has_key(frame: Frame, key: str) -> bool:
    fields = frame.stored_fields
    if fields is not None:
        return key in parse_properties(fields.properties).get(KEYS, "").split()
    try:
        return frame.message.attribute == key
    except CorruptFrame:  # the attribute is not UTF-8, although the checksum is right
        return False
