"""Committed offsets of consumer groups: durable, by group, topic and queue.

A committed offset is the offset of the message to read next. It is not checked: one that is smaller than before, or
beyond the queue's end, is stored as well.

Key in the state table: ``offset/TOPIC/GROUP/QUEUE``; a topic's name has no slash. Value: the offset, 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from metaq_broker.log.state.state_table import OnDurable, StateTable
from metaq_broker.rocketmq.groups.limits import (
    DEFAULT_LIMITS,
    GroupLimitReached,
    GroupLimits,
    NameRefused,
    check_group_size,
    check_name,
)

PREFIX: Final = "offset/"

TopicGroup = tuple[str, str]
"""Topic and group."""


class GroupOffsets:
    def __init__(self, table: StateTable, limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self._table = table
        self._limits = limits
        self._offsets: dict[TopicGroup, dict[int, int]] = {}
        for key, value in table.items(PREFIX):
            topic, _, rest = key.removeprefix(PREFIX).partition("/")
            group, _, queue = rest.rpartition("/")
            self._offsets.setdefault((topic, group), {})[int(queue)] = int.from_bytes(value, signed=True)

    def get(self, topic: str, group: str, queue: int) -> int | None:
        """Return the offset that the group committed, ``None`` without one."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue)

    def of_group(self, topic: str, group: str) -> Mapping[int, int]:
        """Return queue -> offset."""
        return dict(self._offsets.get((topic, group), {}))

    def all(self) -> Mapping[TopicGroup, Mapping[int, int]]:
        """Return (topic, group) -> queue -> offset, as they are now."""
        return {key: dict(queues) for key, queues in self._offsets.items()}

    def topics_of(self, group: str) -> list[str]:
        return sorted(topic for topic, each in self._offsets if each == group)

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for each, group in self._offsets if each == topic)

    def groups(self) -> set[str]:
        return {group for _, group in self._offsets}

    def commit(self, topic: str, group: str, queue: int, offset: int, on_durable: OnDurable | None = None) -> None:
        """Store an offset; without ``on_durable`` it is on the disk within a second.

        Raises:
            GroupLimitReached, NameRefused, StateFull: There are too many, or a name is not possible.
        """
        queues = self._offsets.get((topic, group))
        if queues is None or queue not in queues:
            self._check(topic, group, len(queues or ()))
        key, value = _key(topic, group, queue), offset.to_bytes(8, signed=True)
        self._table.put(key, value, on_durable, is_of_clients=True)
        if queues is None:
            queues = self._offsets[topic, group] = {}
        queues[queue] = offset

    def correct(self, place_of: Callable[[str, int, int], int]) -> list[tuple[str, str, int]]:
        """Replace offsets that belong to another log than their queue's; return topic, group and queue of each.

        ``place_of(topic, queue, offset)`` returns the offset to continue from.
        """
        corrected = []
        for (topic, group), queues in self._offsets.items():
            for queue, offset in queues.items():
                place = place_of(topic, queue, offset)
                if place != offset:
                    self._table.put(_key(topic, group, queue), place.to_bytes(8, signed=True))
                    queues[queue] = place
                    corrected.append((topic, group, queue))
        return corrected

    def forget_topic(self, topic: str) -> None:
        for group in self.groups_of(topic):
            self._forget(topic, group)

    def forget_group(self, group: str) -> None:
        for topic in self.topics_of(group):
            self._forget(topic, group)

    def _forget(self, topic: str, group: str) -> None:
        for queue in self._offsets.pop((topic, group)):
            self._table.delete(_key(topic, group, queue))

    def _check(self, topic: str, group: str, queues: int) -> None:
        limits = self._limits
        if "/" in topic:
            raise NameRefused(topic, "the name of a topic has no slash")
        check_name(topic)
        check_group_size(group)
        if queues >= limits.queues_of_group_max:
            raise GroupLimitReached("queues for which a group has offsets", limits.queues_of_group_max)


def _key(topic: str, group: str, queue: int) -> str:
    return f"{PREFIX}{topic}/{group}/{queue}"
