"""Saves a consumer's positions, except for partitions that now belong to another consumer.

A frozen process (stopped, or on a paused machine) continues as if no time had passed, and learns only later that its
partitions were assigned to others. So before each save the group's registry is asked for the current owners, and a
storage that can compare saves only where it still has the offset that this consumer knows. If it has another one:

==================================  ====================================================================================
a partition has one owner           the registry is asked again; this consumer's position replaces one that a former
                                    owner has written late
else (RocketMQ without locks)       the higher position wins
==================================  ====================================================================================

A storage with ``load`` and ``save`` only cannot compare: a process that freezes between the registry's answer and the
save may overwrite the offset of the next owner. Then messages are repeated; none is lost.

Source: docs/client-internals.md, "How positions are kept".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from metaq.client.groups.owned import Owned
from metaq.client.groups.ownership.membership import Membership
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import ConditionalStorage, OffsetStorage
from metaq.discovery.zk_layout import GroupOffset, is_further, is_unchanged
from metaq.errors import MetaqError, ZooKeeperAway
from metaq.model import TopicPartition

ATTEMPTS_MAX: Final = 3
"""Limit on comparisons of a partition's offset in one save, while other consumers keep writing it."""

_LOG: Final = logging.getLogger(__name__)


class PartlySaved(MetaqError):
    """A storage that consists of several could not use one of them, for the reason ``cause``.

    ``failed``: the partitions whose offsets are not saved for that. ``changed``: the stored offsets of others that are
    not as expected.
    """

    def __init__(
        self,
        cause: MetaqError,
        failed: Collection[TopicPartition],
        changed: dict[TopicPartition, GroupOffset | None],
    ) -> None:
        self.cause, self.failed, self.changed = cause, failed, changed
        self.retryable = cause.retryable
        super().__init__(cause, failed, changed)

    def __str__(self) -> str:
        return str(self.cause)


class _Kept(NamedTuple):
    position: GroupOffset
    saved: GroupOffset | None
    """The offset that was in the storage."""


class PositionSaver:
    """Saves the positions of one consumer. One thread at a time."""

    def __init__(self, state: ConsumerState[Any, Any, Any], membership: Membership, storage: OffsetStorage) -> None:
        self._state, self._membership, self._storage = state, membership, storage
        self._kept: dict[TopicPartition, _Kept] = {}
        """Unsaved positions of partitions that this consumer has lost."""

    def save(self, places: Collection[TopicPartition] | None = None) -> bool:
        """Save the changed positions, of ``places`` only if given; return whether none was refused.

        Raises:
            MetaqError: The registry or the storage could not be used. Positions are kept.
        """
        with self._state.lock:
            due = dict(self._state.unsaved(places))
            expected = {where: self._state.partitions[where].saved for where in due}
        refused: set[TopicPartition] = set()
        failure: MetaqError | None = None
        for _ in range(ATTEMPTS_MAX):
            if not due:
                break
            mine = self._membership.owned_now(due)
            refused |= due.keys() - mine
            due = {where: position for where, position in due.items() if where in mine}
            try:
                found = self._store(due, expected, is_compared=not self._membership.exclusive)
            except PartlySaved as error:
                failure, found = error.cause, error.changed
                due = {where: position for where, position in due.items() if where not in error.failed}
            self._state.note_saved({where: position for where, position in due.items() if where not in found})
            expected |= found
            due = {where: due[where] for where in found}
            refused |= {where for where, position in due.items() if not self._may_replace(found[where], position)}
            due = {where: position for where, position in due.items() if where not in refused}
        refused |= due.keys()
        if refused:
            named = ", ".join(map(str, sorted(refused)))
            _LOG.warning("group %s: positions are not saved: another consumer owns %s", self._membership.group, named)
        if failure is not None:
            raise failure
        return not refused

    def save_first(
        self, starts: Mapping[TopicPartition, GroupOffset]
    ) -> tuple[Mapping[TopicPartition, GroupOffset], Mapping[TopicPartition, GroupOffset]]:
        """Save where the group begins, so that it is decided once; return the start offsets, and the saved ones among
        them.

        Another member may have saved one before. While the storage cannot be used, nothing is saved.

        Raises:
            ZooKeeperAway: The session has ended.
        """
        try:
            found = self._store(starts, dict.fromkeys(starts), is_compared=True)
        except ZooKeeperAway:
            raise
        except MetaqError as error:
            if not error.retryable:
                raise
            named = ", ".join(map(str, sorted(starts)))
            _LOG.warning("group %s: the start in %s is not saved yet: %s", self._membership.group, named, error)
            return starts, {}
        begun = {where: found.get(where) or start for where, start in starts.items()}
        return begun, begun

    # partitions that do not belong to this consumer now

    def save_unclaimed(
        self, places: Collection[TopicPartition], away: Collection[int | str] = (), *, and_kept: bool = False
    ) -> None:
        """Save the positions of ``places``, and the kept ones, where the storage still has the expected offset. Forget
        kept ones that another consumer has passed. Leave out the partitions of brokers that are ``away``.

        Raises:
            MetaqError: The storage could not be used. Positions are kept.
        """
        places = {where for where in places if where.partition.broker not in away}
        if places:
            there = self._storage.load(self._membership.group, places)
            self._state.note_missing(set(places) - there.keys())
        with self._state.lock:
            due = dict(self._state.unsaved(places))
            expected = {where: self._state.partitions[where].saved for where in due}
        if and_kept:
            asked = {where: kept for where, kept in self._kept.items() if where.partition.broker not in away}
            due |= {where: kept.position for where, kept in asked.items()}
            expected |= {where: kept.saved for where, kept in asked.items()}
        failure: MetaqError | None = None
        try:
            found = self._store(due, expected, is_compared=True)
        except PartlySaved as error:
            failure, found = error.cause, error.changed
            due = {where: position for where, position in due.items() if where not in error.failed}
        stored = {where: position for where, position in due.items() if where not in found}
        self._state.note_saved(stored)
        passed = {at for at, there in found.items() if there is not None and is_further(there, expected[at], due[at])}
        self.forget(stored.keys() | passed)
        if failure is not None:
            raise failure

    def keep(self, partitions: Collection[Owned[Any, Any, Any]]) -> None:
        """Keep the unsaved positions of partitions that are not read any more."""
        for one in partitions:
            if one.position != one.saved:
                self._kept[one.where] = _Kept(one.position, one.saved)

    def kept(self) -> dict[TopicPartition, GroupOffset | None]:
        """Return the partitions whose positions are kept, and the offset in the storage."""
        return {where: kept.saved for where, kept in self._kept.items()}

    def take_kept(
        self, places: Collection[TopicPartition], stored: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, GroupOffset]:
        """Return this consumer's kept positions in ``places``, except where the stored one is further ahead."""
        found = {where: self._kept.pop(where) for where in places if where in self._kept}
        return {
            where: kept.position
            for where, kept in found.items()
            if where not in stored or not is_further(stored[where], kept.saved, kept.position)
        }

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Drop the kept positions of ``places``."""
        for where in places:
            self._kept.pop(where, None)

    def _store(
        self,
        due: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
        *,
        is_compared: bool,
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Save; return the stored offsets of partitions where they differ from ``expected``.

        ``is_compared``: compare even if the storage cannot do so atomically.
        """
        if not due:
            return {}
        group, storage = self._membership.group, self._storage
        if isinstance(storage, ConditionalStorage):
            return storage.save_if_unchanged(group, due, expected)
        found: dict[TopicPartition, GroupOffset | None] = {}
        if is_compared:
            there = storage.load(group, due)
            found = {
                where: there[where]
                for where, position in due.items()
                if where in there and not is_unchanged(there[where], expected[where], position)
            }
        if len(found) < len(due):
            storage.save(group, {where: position for where, position in due.items() if where not in found})
        return found

    def _may_replace(self, there: GroupOffset | None, position: GroupOffset) -> bool:
        return self._membership.exclusive or there is None or there.offset < position.offset
