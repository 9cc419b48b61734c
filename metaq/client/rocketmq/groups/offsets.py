"""Offsets of a group at its brokers, and where it begins in queues that it has none of.

What could not be saved, because a broker was away, is remembered: if this consumer gets the queue back, it goes on
there, unless somebody was further.

Brokers of 4.9 and the bundled one say 0 for a group that they do not know, as long as a queue has its first message in
memory. Where that matters, because the group is not to begin at the first message, they are asked for all offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from metaq.backends.rocketmq.offsets import Offsets
from metaq.client.groups.starts import Start
from metaq.client.rocketmq.groups.subscriptions import RETRY_PREFIX
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import Partition, TopicPartition

_LOG: Final = logging.getLogger(__name__)


class BrokerOffsets:
    """The offset storage of a group without another one. The masters have the offsets, each those of its queues.

    ``doubt_zero``: find out whether an offset of 0 was really saved.
    """

    def __init__(self, offsets: Offsets, *, doubt_zero: bool = False) -> None:
        self._offsets, self._doubt_zero = offsets, doubt_zero
        self._unsaved: dict[TopicPartition, GroupOffset] = {}
        self._zeros: set[TopicPartition] = set()  # saved, without doubt

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        """See ``OffsetStorage``; without those whose broker does not answer, which whoever needs them finds out."""
        found: dict[TopicPartition, GroupOffset] = {}
        for broker_name, queues in _by_broker(partitions).items():
            try:
                committed = self.committed(group, queues)
            except MetaqError as error:
                if not error.retryable:
                    raise
                _LOG.warning("group %s: the offsets at broker %s are not known now: %s", group, broker_name, error)
                continue
            for where, offset in committed.items():
                ours = self._unsaved.get(where)
                if ours is not None and (offset is None or offset < ours.offset):
                    found[where] = ours
                elif offset is not None:
                    found[where] = GroupOffset(offset)
        return found

    def committed(self, group: str, queues: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Return what the group has saved in queues of one broker. Raises as ``Offsets``."""
        found = dict(self._offsets.committed(group, queues))
        doubtful = {where for where, offset in found.items() if offset == 0} - self._zeros
        if self._doubt_zero and doubtful:
            saved = self._offsets.all_committed(group, next(iter(doubtful)))
            for where in doubtful if saved is not None else ():
                if where in (saved or {}):
                    self._zeros.add(where)
                else:
                    found[where] = None
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """See ``OffsetStorage``. All brokers are tried, whatever one of them answers."""
        failure: MetaqError | None = None
        for queues in _by_broker(offsets).values():
            try:
                self._offsets.commit(group, {where: offsets[where].offset for where in queues})
            except MetaqError as error:
                failure = error if failure is None or not error.retryable else failure
                self._unsaved.update({where: offsets[where] for where in queues})
            else:
                for where in queues:
                    self._unsaved.pop(where, None)
                self._zeros |= {where for where in queues if offsets[where].offset == 0}
        if failure is not None:
            raise failure

    def close(self) -> None:
        """See ``OffsetStorage``."""


class RocketStarts:
    """Where a group begins: where ``committed`` says that it is, if that is given, else at ``start``.

    What comes again is always read from its first message.
    """

    def __init__(self, offsets: Offsets, group: str, start: Start, committed: BrokerOffsets | None) -> None:
        self._offsets, self._group, self._start, self._committed = offsets, group, start, committed

    def resolve(self, where: TopicPartition) -> GroupOffset:
        """Return the offset to begin at. Raises as ``Offsets``."""
        if self._committed is not None:
            offset = self._committed.committed(self._group, [where])[where]
            if offset is not None:
                return GroupOffset(offset)
        start: Start = "earliest" if where.topic.startswith(RETRY_PREFIX) else self._start
        match start:
            case "earliest" | "latest":
                available = self._offsets.ranges([where])[where]
                return GroupOffset(available.start if start == "earliest" else available.end)
            case datetime():
                return GroupOffset(self._offsets.at({where: int(start.timestamp() * 1000)})[where])
            case int():
                return GroupOffset(self._offsets.at({where: start})[where])
        named = _named(start, where)
        return GroupOffset(self._offsets.ranges([where])[where].start if named is None else named)


def _named(offsets: Mapping[Partition, int] | Mapping[TopicPartition, int], where: TopicPartition) -> int | None:
    return next((offset for name, offset in offsets.items() if name in (where, where.partition)), None)


def _by_broker(queues: Collection[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for where in queues:
        found.setdefault(where.partition.broker_name, []).append(where)
    return found
