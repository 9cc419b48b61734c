"""Whether the message that a group consumed last is still in its partition: if not, the broker has an older copy.

The offset of a group is stored with the id of the message that was consumed last. A broker that was put back to an
older copy of its data keeps its incarnations, and does not have that message; what came since may stand before the
group's offset and would be skipped. Ids contain the time at which they were given, so a broker of ours finds the place
where the message must be, and the first one that is newer, where the group goes on.

A message that retention may have removed, one of a Java broker, whose ids say nothing about time, and an offset that
was stored without an id prove nothing.

Source: docs/client.md, "Where offsets are stored".
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
"""How far behind the place where the message must be it is searched: ids of transactions are not in order."""


class LastConsumed:
    """Asks brokers for messages that were consumed last."""

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def resumed(self, where: TopicPartition, stored: GroupOffset) -> GroupOffset | None:
        """Return where a group goes on whose last message is gone; ``None`` if it is there, or nothing is proven.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The broker could not be asked.
        """
        time_ms, address = timestamp_ms(stored.message_id), self._directory.brokers().get(where.partition.broker_id)
        if time_ms is None or address is None or not stored.offset or stored.message_id <= 0:
            return None  # an offset that was set by hand names no message
        with self._pool.lease(address) as session:
            try:
                return _resumed(session, where, stored, time_ms)
            except (ExtensionMissing, BrokerError):  # it keeps no times, or the partition is closed
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
