"""Offsets of a group at its brokers, and where the group begins in queues without one.

A consumer remembers the offsets that it has saved. If it gets a queue back within a minute (time does not count while
its broker is away), or a broker was away during a save, it continues at the remembered offset unless a higher one was
committed: a killed broker may have lost the last offsets, and a Java consumer that had the queue for a moment saves the
older offset at which it began. An offset that an administrator has set replaces the remembered one.

While a killed master is in no route, its slave is asked for the group's offsets, as Java's client does; messages
committed in the last seconds may be delivered again. A slave without an offset of the group proves nothing, because it
may not have copied the offsets yet: such a queue waits for its master.

Brokers of 4.9 and the bundled one report 0 for an unknown group while the queue's first message is in memory. Where
that matters, because the group does not begin at the first message, they are asked for all offsets.
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
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.client.groups.ownership.starts import Start
from metaq.discovery.zk_layout import GroupOffset, is_unchanged
from metaq.errors import MetaqError
from metaq.formats.topic_names import RETRY_PREFIX
from metaq.model import Partition, TopicPartition
from metaq.net.clock import Clock

OWN_S: Final = 60.0
"""Seconds for which an offset saved by this consumer counts, whatever a broker reports later."""

_LOG: Final = logging.getLogger(__name__)


class BrokerOffsets:
    """The default offset storage of a group: each master stores the offsets of its queues.

    ``verify_zero``: find out whether an offset of 0 was really saved.
    """

    def __init__(self, offsets: Offsets, clock: Clock, *, verify_zero: bool = False) -> None:
        self._offsets, self._clock, self._verify_zero = offsets, clock, verify_zero
        self._lock = threading.Lock()  # guards ``_own``
        self._own: dict[TopicPartition, tuple[int, float]] = {}  # the offset saved last, and until when it counts
        self._zeros: set[TopicPartition] = set()  # offsets of 0 that were certainly saved
        self._away: Collection[str] = ()

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        """Return the offsets; queues whose broker does not answer are left out, as callers notice when they
        read them.
        """
        found: dict[TopicPartition, GroupOffset] = {}
        for broker_name, queues in _by_broker(partitions).items():
            try:
                committed = self.committed(group, queues)
            except MetaqError as error:
                if not error.retryable:
                    raise
                _LOG.warning("group %s: the offsets at broker %s are not available: %s", group, broker_name, error)
                continue
            found |= {where: GroupOffset(offset) for where, offset in committed.items() if offset is not None}
            found |= self._ours(group, committed)
        return found

    def note_away(self, names: Collection[str]) -> None:
        """Note which brokers are away: offsets saved there count until the brokers have been back for a while."""
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

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Forget the offsets that were saved in ``places``: others were set there."""
        with self._lock:
            for where in places:
                self._own.pop(where, None)

    def _ours(self, group: str, committed: Mapping[TopicPartition, int | None]) -> Mapping[TopicPartition, GroupOffset]:
        """Return remembered offsets that the broker does not have, and save them again."""
        now_s = self._clock.monotonic()
        lost = {}
        for where, offset in committed.items():
            ours, until_s = self._own.get(where, (0, now_s))
            if now_s < until_s and (offset is None or offset < ours):
                lost[where] = ours
        if lost:
            with suppress(MetaqError):  # they stay remembered
                self._offsets.commit(group, lost)
        return {where: GroupOffset(offset) for where, offset in lost.items()}

    def committed(self, group: str, queues: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Return the group's offsets in queues of one broker. Raises as ``Offsets``.

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
        """Return the committed offsets, without zeros that no member has saved."""
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
        """Save the offsets at all brokers, even if one of them fails."""
        self._save_each(group, offsets, lambda queues: queues)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Compare and save. Brokers cannot compare: their offsets are read just before they are set."""
        changed: dict[TopicPartition, GroupOffset | None] = {}

        def unchanged(queues: Collection[TopicPartition]) -> Collection[TopicPartition]:
            for where, offset in self._offsets.committed(group, queues).items():
                before = expected.get(where)
                is_zero = offset == 0 and before is None and where not in self._zeros  # possibly of an unknown group
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
        """Save at each broker the offsets of the queues that ``select`` returns."""
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
    """Where a group begins: at the offset that ``committed`` reports, if given, else at ``start``.

    Retry topics are always read from their first message.
    """

    def __init__(self, offsets: Offsets, group: str, start: Start, committed: BrokerOffsets | None) -> None:
        self._offsets, self._group, self._start, self._committed = offsets, group, start, committed

    def resolve(self, where: TopicPartition, since_ms: int | None = None) -> GroupOffset:
        """Return the start offset; ``since_ms``: "latest" means all messages from that time on. Raises as
        ``Offsets``.
        """
        if self._committed is not None:
            offset = self._committed.committed(self._group, [where])[where]
            if offset is not None:
                return GroupOffset(offset)
        start: Start = "earliest" if where.topic.startswith(RETRY_PREFIX) else self._start
        if start == "latest" and since_ms is not None:
            start = since_ms or "earliest"
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
