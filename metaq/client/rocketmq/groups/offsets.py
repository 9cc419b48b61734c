"""Offsets of a group at its brokers, and where it begins in queues that it has none of.

A consumer remembers what it has saved. If it gets a queue back in the next minute (while its broker is away, no time
passes), or a broker was away when it saved, it goes on there, unless somebody was further: a broker that was killed may
have lost the last offsets, and a Java consumer that had the queue for a moment saves the older offset that it began at.

While the master is in no route any more, because it was killed, its slave is asked where the group is, as Java's client
does; what was committed in the last seconds may come again. A slave that knows nothing of the group proves nothing: it
may have copied no offsets yet, so a queue that has none there waits for its master.

Brokers of 4.9 and the bundled one say 0 for a group that they do not know, as long as a queue has its first message in
memory. Where that matters, because the group is not to begin at the first message, they are asked for all offsets.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Final

from metaq.backends.rocketmq.errors import BrokerAway
from metaq.backends.rocketmq.offsets import Offsets
from metaq.client.groups.starts import Start
from metaq.client.rocketmq.groups.subscriptions import RETRY_PREFIX
from metaq.discovery.zk_layout import GroupOffset, is_unchanged
from metaq.errors import MetaqError
from metaq.model import Partition, TopicPartition
from metaq.net.clock import Clock

OWN_S: Final = 60.0
"""How long an offset that this consumer has saved counts, whatever a broker says later."""

_LOG: Final = logging.getLogger(__name__)


class BrokerOffsets:
    """The offset storage of a group without another one. The masters have the offsets, each those of its queues.

    ``verify_zero``: find out whether an offset of 0 was really saved.
    """

    def __init__(self, offsets: Offsets, clock: Clock, *, verify_zero: bool = False) -> None:
        self._offsets, self._clock, self._verify_zero = offsets, clock, verify_zero
        self._lock = threading.Lock()  # around changes of the next one
        self._own: dict[TopicPartition, tuple[int, float]] = {}  # what was saved last, and how long that counts
        self._zeros: set[TopicPartition] = set()  # saved, without doubt
        self._away: Collection[str] = ()

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
            found |= {where: GroupOffset(offset) for where, offset in committed.items() if offset is not None}
            found |= self._ours(group, committed)
        return found

    def note_away(self, names: Collection[str]) -> None:
        """Take note of the brokers that are away: what was saved there counts until they have been back for a while."""
        if names == self._away:
            return
        now_s, back = self._clock.monotonic(), set(self._away) - set(names)
        with self._lock:
            for where, (offset, until_s) in self._own.items():
                if where.partition.broker_name in back:
                    self._own[where] = offset, now_s + OWN_S
                elif where.partition.broker_name in names and now_s < until_s:
                    self._own[where] = offset, inf
        self._away = names

    def _ours(self, group: str, committed: Mapping[TopicPartition, int | None]) -> Mapping[TopicPartition, GroupOffset]:
        """Return the offsets that this consumer has saved and the broker has not, and save them again."""
        now_s = self._clock.monotonic()
        lost = {}
        for where, offset in committed.items():
            ours, until_s = self._own.get(where, (0, now_s))
            if now_s < until_s and (offset is None or offset < ours):
                lost[where] = ours
        if lost:
            with suppress(MetaqError):  # they are remembered
                self._offsets.commit(group, lost)
        return {where: GroupOffset(offset) for where, offset in lost.items()}

    def committed(self, group: str, queues: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Return what the group has saved in queues of one broker. Raises as ``Offsets``.

        If a slave had to be asked, only queues for which the group has an offset there are returned.
        """
        try:
            return self._certain(group, self._offsets.committed(group, queues))
        except BrokerAway as away:
            there = self._offsets.committed(group, queues, at_slaves=True)
            found = {
                where: offset
                for where, offset in self._certain(group, there, at_slaves=True).items()
                if offset is not None
            }
            if not found:
                raise away from None
            return found

    def _certain(
        self, group: str, committed: Mapping[TopicPartition, int | None], *, at_slaves: bool = False
    ) -> dict[TopicPartition, int | None]:
        """Return what was committed without the zeros that nobody has saved."""
        found = dict(committed)
        uncertain = {where for where, offset in found.items() if offset == 0} - self._zeros
        if (self._verify_zero or at_slaves) and uncertain:
            saved = self._offsets.all_committed(group, next(iter(uncertain)), at_slaves=at_slaves)
            for where in uncertain if saved is not None or at_slaves else ():
                if where in (saved or {}):
                    self._zeros.add(where)
                else:
                    found[where] = None
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """All brokers are tried, whatever one of them answers."""
        self._save_each(group, offsets, lambda queues: queues)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Brokers cannot compare: their offsets are asked for just before they are set."""
        changed: dict[TopicPartition, GroupOffset | None] = {}

        def unchanged(queues: Collection[TopicPartition]) -> Collection[TopicPartition]:
            for where, offset in self._offsets.committed(group, queues).items():
                before = expected.get(where)
                is_zero = offset == 0 and before is None and where not in self._zeros  # of a group that is not known
                there = None if offset is None or is_zero else GroupOffset(offset)
                if not is_unchanged(there, before, offsets[where]):
                    changed[where] = there
            return [where for where in queues if where not in changed]

        self._save_each(group, offsets, unchanged)
        return changed

    def _save_each(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        select: Callable[[Collection[TopicPartition]], Collection[TopicPartition]],
    ) -> None:
        """Save at each broker what ``select`` says of its queues."""
        failure: MetaqError | None = None
        for queues in _by_broker(offsets).values():
            try:
                selected = select(queues)
                if selected:
                    self._offsets.commit(group, {where: offsets[where].offset for where in selected})
            except MetaqError as error:
                failure = error if failure is None or not error.retryable else failure
                self._note_own(offsets, queues, inf)
            else:
                self._note_own(offsets, selected, self._clock.monotonic() + OWN_S)
                self._zeros |= {where for where in selected if offsets[where].offset == 0}
        if failure is not None:
            raise failure

    def _note_own(
        self, offsets: Mapping[TopicPartition, GroupOffset], queues: Collection[TopicPartition], until_s: float
    ) -> None:
        with self._lock:
            self._own |= {where: (offsets[where].offset, until_s) for where in queues}

    def close(self) -> None: ...


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
