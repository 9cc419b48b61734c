"""Checks whether the last consumed message is still in its partition: if not, the broker has an older copy.

A group's offset is stored with the id of the last consumed message. A broker that was restored from an older copy of
its data has the same incarnations but not that message; newer messages may lie before the group's offset and would be
skipped. Ids contain the time at which they were given, so the bundled broker finds the place where the message must be,
and the first newer message, where the group continues.

Nothing is proven by a message that retention may have removed, by a message of a Java broker, whose ids contain no
time, or by an offset that was stored without an id.

Source: docs/client-internals.md, "How positions are kept".
"""

from __future__ import annotations

from metaq.backends.metaq.boundaries import first_at_time
from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import lookup
from metaq.backends.metaq.session import Session
from metaq.discovery.base import Directory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import BrokerError, ExtensionMissing
from metaq.formats.frames import walk
from metaq.formats.message_id import timestamp_ms
from metaq.model import TopicPartition

SEARCHED_BYTES = 1 << 20
"""Bytes that are searched after the expected place: ids of transactions are not in order."""


class LastConsumed:
    """Asks brokers for the messages that were consumed last."""

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def resumed(self, where: TopicPartition, stored: GroupOffset) -> GroupOffset | None:
        """Return where a group continues whose last message is missing; ``None`` if it exists, or nothing is proven.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The broker could not be asked.
        """
        time_ms, address = timestamp_ms(stored.message_id), self._directory.brokers().get(where.partition.broker_id)
        if time_ms is None or address is None or not stored.offset or stored.message_id <= 0:
            return None  # an offset that was set manually names no message
        with self._pool.lease(address) as session:
            try:
                return _resumed(session, where, stored, time_ms)
            except (ExtensionMissing, BrokerError):  # the broker stores no times, or the partition is closed
                return None


def _resumed(session: Session, where: TopicPartition, stored: GroupOffset, time_ms: int) -> GroupOffset | None:
    topic, index = where.topic, where.partition.index
    place = first_at_time(session, topic, index, time_ms)
    removed = lookup(session, topic, index, 0, "segment")
    if place == removed > 0 or _is_there(session, where, place, stored):
        return None
    return GroupOffset(first_at_time(session, topic, index, time_ms + 1))


def _is_there(session: Session, where: TopicPartition, place: int, stored: GroupOffset) -> bool:
    data, end = b"", min(stored.offset, place + SEARCHED_BYTES)
    while place + len(data) < end:
        outcome = fetch(session, where.topic, where.partition.index, place + len(data), end - place - len(data))
        if not isinstance(outcome, Run):
            break
        data += outcome.data
    return any(frame.message_id == stored.message_id for frame in walk(data, place, verify=False))
