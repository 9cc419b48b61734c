"""Where a group begins in a partition without a stored offset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, cast

from metaq.backends.metaq.boundaries import first_at_time, frame_boundary
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import lookup
from metaq.backends.metaq.session import Session
from metaq.discovery.base import Directory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import BrokerError, ExtensionMissing
from metaq.model import INT64_MAX, Partition, TopicPartition
from metaq.statuses import NOT_FOUND

Start = Literal["earliest", "latest"] | int | datetime | Mapping[Partition, int] | Mapping[TopicPartition, int]
"""The first message, the current end, the first message at or after a time (ms since 1970, or a datetime), or an offset
for each partition; partitions missing in a mapping begin at their first message.
"""


StartPosition = Literal["earliest", "latest"] | int | Mapping[Partition, int]
"""A checked start. Keys of a mapping may also be ``TopicPartition``, if several topics are read."""

_PLACES: Final = "ms since 1970, a datetime with a time zone, or {partition: offset}"


def checked_start(start: object) -> StartPosition:
    """Return a valid ``start``; a ``datetime`` is converted to ms since 1970.

    Raises:
        ValueError: It is of another type or value.
    """
    match start:
        case "earliest" | "latest":
            return start
        case bool():
            pass
        case int() if start >= 0:
            return start
        case datetime() if start.tzinfo is not None:
            return int(start.timestamp() * 1000)
        case Mapping() if all(
            isinstance(where, Partition | TopicPartition) and isinstance(offset, int) and offset >= 0
            for where, offset in start.items()
        ):
            return cast("Mapping[Partition, int]", start)
    raise ValueError(f"start {start!r}: expected 'earliest', 'latest', {_PLACES}")


def checked_end(end: object) -> int | Mapping[Partition, int] | None:
    """Return ``end`` of a browser, a ``datetime`` as ms since 1970.

    Raises:
        ValueError: It is of another type or value.
    """
    if end is None:
        return None
    if isinstance(end, str):
        raise ValueError(f"end {end!r}: expected {_PLACES}")
    try:
        place = checked_start(end)
        assert not isinstance(place, str)
        return place
    except ValueError:
        raise ValueError(f"end {end!r}: expected {_PLACES}") from None


class StartResolver:
    """Asks brokers for the offset that ``start`` refers to."""

    def __init__(self, directory: Directory, pool: SessionPool, start: Start) -> None:
        self._directory, self._pool, self._start = directory, pool, checked_start(start)

    def resolve(self, where: TopicPartition, since_ms: int | None = None) -> GroupOffset:
        """Return the offset to begin at; ``since_ms``: "latest" means all messages from that time on.

        Raises:
            KeyError: No address of the partition's broker is known.
            ValueError: No message begins at a given offset.
            ExtensionMissing: ``start`` is a time, and the broker stores none (a Java broker).
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: The broker could not be asked.
        """
        with self._pool.lease(self._directory.brokers()[where.partition.broker_id]) as session:
            topic, index = where.topic, where.partition.index
            try:
                match self._start:
                    case "earliest":
                        return GroupOffset(lookup(session, topic, index, 0, "segment"))
                    case "latest":
                        return GroupOffset(_latest(session, where, since_ms))
                    case int(time_ms):
                        return GroupOffset(first_at_time(session, topic, index, time_ms))
                    case offsets:
                        asked = self._named(offsets, where)
                        if asked and (found := frame_boundary(session, topic, index, asked)) != asked:
                            raise ValueError(f"{where}: no message begins at offset {asked}; one begins at {found}")
                        return GroupOffset(asked)
            except BrokerError as error:
                if error.code == NOT_FOUND:  # the partition has no messages yet
                    return GroupOffset(0)
                raise

    def _named(self, offsets: Mapping[Partition, int], where: TopicPartition) -> int:
        for name, offset in offsets.items():
            if name in (where, where.partition):
                return offset
        return 0


def _latest(session: Session, where: TopicPartition, since_ms: int | None) -> int:
    """Return the end, or the first message from a time on; the first of all if the broker stores no times (a Java
    broker).
    """
    topic, index = where.topic, where.partition.index
    if since_ms is None:
        return lookup(session, topic, index, INT64_MAX, "segment")
    if since_ms:
        with suppress(ExtensionMissing):
            return first_at_time(session, topic, index, since_ms)
    return lookup(session, topic, index, 0, "segment")
