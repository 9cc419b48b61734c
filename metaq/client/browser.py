"""Reads a topic's messages without a consumer group: what it holds now, or also what follows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from datetime import datetime
from typing import Final, Generic, Literal, TypeVar

from metaq.backends.metaq.boundaries import first_at_time, frame_boundary
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.range_reader import read_range
from metaq.client.groups.ownership.starts import checked_end, checked_start
from metaq.client.records import Received, require_topic
from metaq.discovery.base import Directory
from metaq.discovery.unlisted import unlisted_partitions, unlisted_text
from metaq.errors import BrokersMissing, OffsetMoved, TopicNotFound
from metaq.formats.frames import walk
from metaq.model import INT64_MAX, Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

Start = Literal["earliest", "latest"] | int | datetime | Mapping[Partition, int]
"""Where to begin: the first or the end of what is there, the first message at or after a time (ms since 1970, or a
datetime), or an offset for each partition; partitions that the mapping does not name begin at their first message."""

End = int | datetime | Mapping[Partition, int]
"""Where to stop: before the first message at or after a time (ms since 1970, or a datetime), or at an offset for each
partition; partitions that the mapping does not name are read to the end."""

POLL_S: Final = 0.2
"""Seconds between two checks for new messages while following."""

FETCH_BYTES: Final = 1 << 20

M = TypeVar("M")
_log = logging.getLogger(__name__)


def checked_partitions(given: Collection[Partition] | None) -> Collection[Partition] | None:
    """Return the partitions to read; ``None``: all.

    Raises:
        TypeError: ``given`` has an item that is not a partition.
    """
    for one in given or ():
        Partition.require(one)
    return given


def required_names(given: Collection[str | int] | None) -> list[str]:
    """Return the names of the brokers that a read requires, as text.

    Raises:
        TypeError: ``given`` is a text, or an element of it is not a name.
    """
    if isinstance(given, str) or not all(isinstance(one, str | int) for one in given or ()):
        raise TypeError(f"require_brokers={given!r}: expected names or ids of brokers, such as ['0', '1']")
    return sorted({str(one) for one in given or ()})


class TopicBrowser(ABC, Generic[M]):
    """Base of the browsers for both systems: an iterator that ends at the end of the topic, or follows it forever."""

    def __init__(
        self,
        topic: str,
        partitions: Collection[Partition] | None,
        start: Start,
        end: End | None,
        follow: bool,
        clock: Clock,
        require_brokers: Collection[str | int] | None = None,
    ) -> None:
        require_topic(topic)
        if end is not None and follow:
            raise ValueError("end and follow: expected one of them")
        self._topic, self._clock = topic, clock
        self._wanted, self._follow = checked_partitions(partitions), follow
        self._start, self._end = checked_start(start), checked_end(end)
        self._required = required_names(require_brokers)
        self._is_begun = False
        self.positions: dict[Partition, int] = {}
        """Next offset to read, by partition."""

    def __iter__(self) -> Generator[M, None, None]:
        return self.follow() if self._follow else self.poll()

    def follow(self, idle: Callable[[], object] | None = None) -> Generator[M, None, None]:
        """Yield stored messages and then new ones, forever. Calls ``idle`` before each pause."""
        while True:
            progress = False
            for message in self.poll():
                progress = True
                yield message
            if not progress:
                if idle is not None:
                    idle()
                self._clock.sleep(POLL_S)

    @property
    def warning(self) -> str | None:
        """A sentence about partitions whose messages may not have been read; ``None`` if there are none."""
        return None

    @abstractmethod
    def poll(self) -> Generator[M, None, None]:
        """Yield the readable messages that were not yielded yet; the first call begins at ``start``. Raises as
        iterating does.
        """

    def _named(self) -> set[Partition]:
        """The partitions that the program has named explicitly."""
        named = set(self._wanted or ())
        for offsets in (self._start, self._end):
            named |= set(offsets) if isinstance(offsets, Mapping) else set()
        return named


class Browser(TopicBrowser[Received]):
    """An iterator over the messages of ``topic``.

    Partitions are read one after the other, each in its order, up to what is readable when the iteration begins, or up
    to ``end`` if that is reached first. With ``follow`` the iteration continues with new messages and never ends; new
    partitions are read from their first message. ``positions`` has the next offset of each partition that was read:
    pass it as ``start`` to go on. ``require_brokers``: broker ids without which nothing is read. ``unlisted`` has the
    partitions that a Java broker offers but has not opened: their messages are not read, and a warning is logged.

    Raises:
        ValueError, TypeError: ``start``, ``end``, ``partitions`` or ``require_brokers`` is not valid.

    Iterating raises:
        BrokersMissing: A required broker is not found.
        TopicNotFound: No broker knows the topic.
        ValueError: The topic has no partition of a given name; no message begins at a given offset.
        OffsetMoved: An offset in ``start`` is outside the stored range, retention overtook the reader, or the partition
            was deleted and made again.
        CorruptFrame: A frame fails its checksum; the messages before it were yielded.
        CorruptRecord, CodecMissing: A message of a RocketMQ client cannot be decompressed.
        ExtensionMissing: ``start`` or ``end`` is a time, and a broker stores none (a Java broker).
        BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: A broker could not be asked, after retries.
    """

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        follow: bool = False,
        require_brokers: Collection[str | int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(topic, partitions, start, end, follow, clock, require_brokers)
        self._directory, self._pool = directory, pool
        self._stops: dict[Partition, int] = {}
        self._incarnations: dict[Partition, str | None] = {}
        self.unlisted: list[Partition] = []

    def poll(self) -> Generator[Received, None, None]:
        available = self._available()
        if not self._is_begun:
            self._check(available)
            self._note_unlisted(available)
            for partition, state in available.items():
                self.positions[partition] = self._first_position(partition, state)
                self._stops[partition] = self._stop_position(partition, state)
            self._is_begun = True
        for partition, state in available.items():
            yield from self._read(partition, state)

    @property
    def warning(self) -> str | None:
        names = [f"{self._topic}/{partition}" for partition in self.unlisted]
        return unlisted_text(names) if names else None

    def _available(self) -> dict[Partition, PartitionState]:
        found = self._directory.available([self._topic])
        return {
            where.partition: state
            for where, state in sorted(found.items())
            if where.topic == self._topic and (self._wanted is None or where.partition in self._wanted)
        }

    def _check(self, available: Mapping[Partition, PartitionState]) -> None:
        if self._required:
            found = self._directory.brokers()
            if away := sorted(set(self._required) - set(map(str, found))):
                names = ", ".join(f"{broker_id} at {address}" for broker_id, address in sorted(found.items()))
                raise BrokersMissing(f"topic {self._topic}", away, f"that are found ({names or 'none'})")
        named = self._named()
        if available and named <= available.keys():
            return
        known = self._directory.topics([self._topic])
        accepting: set[Partition] = set()
        try:
            accepting = set(self._directory.writable(self._topic))
        except TopicNotFound:
            if self._topic not in known:
                raise
        there = accepting | set(known.get(self._topic, ()))
        if missing := sorted(named - there):
            present = ", ".join(map(str, sorted(there))) or "none"
            raise ValueError(f"topic {self._topic!r} has no partition {', '.join(map(str, missing))}; it has {present}")

    def _note_unlisted(self, available: Mapping[Partition, PartitionState]) -> None:
        if available and all(state.incarnation is not None for state in available.values()):
            return
        found = unlisted_partitions(self._directory, self._pool, self._topic, available)
        self.unlisted = [partition for partition in found if self._wanted is None or partition in self._wanted]
        if self.unlisted:
            _log.warning("%s", self.warning)

    def _first_position(self, partition: Partition, state: PartitionState) -> int:
        match self._start:
            case "earliest":
                return state.offsets.start
            case "latest":
                return state.offsets.end
            case int(time_ms):
                with self._pool.lease(self._address(partition)) as session:
                    return first_at_time(session, self._topic, partition.index, time_ms)
            case offsets:
                return self._checked(partition, state, offsets.get(partition, state.offsets.start))

    def _stop_position(self, partition: Partition, state: PartitionState) -> int:
        match self._end:
            case None:
                return INT64_MAX
            case int(time_ms):
                with self._pool.lease(self._address(partition)) as session:
                    return first_at_time(session, self._topic, partition.index, time_ms)
            case offsets:
                return self._checked(partition, state, offsets.get(partition, INT64_MAX))

    def _checked(self, partition: Partition, state: PartitionState, offset: int) -> int:
        """Return ``offset`` if a message begins there, or if it is outside the stored range."""
        if state.offsets.start < offset < state.offsets.end:
            with self._pool.lease(self._address(partition)) as session:
                boundary = frame_boundary(session, self._topic, partition.index, offset, state.offsets.start)
            if boundary != offset:
                where = TopicPartition(self._topic, partition)
                raise ValueError(f"{where}: no message begins at offset {offset}; one begins at {boundary}")
        return offset

    def _address(self, partition: Partition) -> Address:
        return self._directory.brokers()[partition.broker_id]

    def _read(self, partition: Partition, state: PartitionState) -> Iterator[Received]:
        where = TopicPartition(self._topic, partition)
        position = self.positions.setdefault(partition, state.offsets.start)
        before, self._incarnations[partition] = self._incarnations.get(partition), state.incarnation
        if None not in (before, state.incarnation) and before != state.incarnation and position != state.offsets.start:
            raise OffsetMoved(str(where), position, state.offsets.start)
        if position > state.offsets.end or position < state.offsets.start:
            to = state.offsets.end if position > state.offsets.end else state.offsets.start
            raise OffsetMoved(str(where), position, to)
        stop = min(state.offsets.end, self._stops.get(partition, INT64_MAX))
        if position >= stop:
            return
        with self._pool.lease(self._address(partition)) as session:
            runs = read_range(session, self._topic, partition.index, OffsetRange(position, stop), FETCH_BYTES)
            try:
                for run in runs:
                    for frame in walk(run.data, run.offset, where=str(where)):
                        message = Received.of(where, frame)
                        self.positions[partition] = frame.end
                        yield message
                        self._pool.check_open()
            finally:
                runs.close()
