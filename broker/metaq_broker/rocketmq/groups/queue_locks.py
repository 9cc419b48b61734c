"""Locks of queues: a group that consumes in order reads a queue with one client at a time.

A client holds a lock for a limited time, which it can renew. If a group has members, only they get locks: after a
restart of the broker clients renew their locks before they are known again, and must keep the queues that they are
reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimits, check_name

EXPIRY_S: Final = 60.0

TopicQueue = tuple[str, int]
"""Topic and queue."""


class QueueLocks:
    """The locks of all groups. ``monotonic`` returns seconds of a clock that is never set."""

    def __init__(self, monotonic: Callable[[], float], limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self._monotonic = monotonic
        self._limits = limits
        self._locks: dict[str, dict[TopicQueue, tuple[str, float]]] = {}
        self._count = 0

    def lock(self, group: str, client: str, queues: Iterable[TopicQueue]) -> list[TopicQueue]:
        """Lock the queues that no other client has; return the ones that this client has now.

        Raises:
            NameRefused: The name of the group, of the client or of a topic is too long.
        """
        now, taken, wanted = self._monotonic(), [], list(queues)
        for name in {group, client, *(topic for topic, _ in wanted)}:
            check_name(name)
        if self._count + len(wanted) > self._limits.locks_max:
            self.expire()
        locks = self._locks.get(group, {})
        for queue in wanted:
            owner, expires = locks.get(queue, (client, 0.0))
            if (owner != client and expires > now) or (queue not in locks and self._is_full(locks)):
                continue
            self._count += queue not in locks
            locks[queue] = client, now + EXPIRY_S
            taken.append(queue)
        if locks:
            self._locks[group] = locks
        return taken

    def unlock(self, group: str, client: str, queues: Iterable[TopicQueue]) -> None:
        locks = self._locks.get(group, {})
        for queue in queues:
            if queue in locks and locks[queue][0] == client:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def owner(self, group: str, queue: TopicQueue) -> str | None:
        owner, expires = self._locks.get(group, {}).get(queue, ("", 0.0))
        return owner if expires > self._monotonic() else None

    def expire(self) -> None:
        """Remove expired locks. Call this periodically."""
        now = self._monotonic()
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, (_, expires) in locks.items() if expires <= now]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]

    def _is_full(self, locks: dict[TopicQueue, tuple[str, float]]) -> bool:
        return self._count >= self._limits.locks_max or len(locks) >= self._limits.queues_of_group_max
