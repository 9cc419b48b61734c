"""Saves the positions of a consumer, and none of a partition that has become another consumer's meanwhile.

A process that was frozen (a stopped process, a paused machine) goes on as if no time had passed, and learns only later
that its partitions were given to others. So before each save the registry of the group is asked whose they are now, and
a storage that can do so saves only where it still has what this consumer knows to be there. If it has something else:

==================================  ====================================================================================
a partition has one owner           it is asked again who that is; a position of this consumer's replaces what a former
                                    owner has written late
else (RocketMQ without locks)       who is further wins
==================================  ====================================================================================

A storage with ``load`` and ``save`` only cannot compare: a process that freezes between the registry's answer and the
save may write over the offset of the next owner. Then messages are repeated; none is lost.

Source: docs/client.md, "Where offsets are stored".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from metaq.client.groups.membership import Membership
from metaq.client.groups.owned import Owned
from metaq.client.groups.state import GroupState
from metaq.client.offsets import ConditionalStorage, OffsetStorage
from metaq.discovery.zk_layout import GroupOffset, is_further, is_unchanged
from metaq.errors import MetaqError, ZooKeeperAway
from metaq.model import TopicPartition

ATTEMPTS_MAX: Final = 3
"""How often the offset of a partition is compared in one save, while others go on writing it."""

_LOG: Final = logging.getLogger(__name__)


class _Kept(NamedTuple):
    position: GroupOffset
    saved: GroupOffset | None
    """What the storage had."""


class PositionSaver:
    """One thread at a time."""

    def __init__(self, state: GroupState[Any, Any, Any], membership: Membership, storage: OffsetStorage) -> None:
        self._state, self._membership, self._storage = state, membership, storage
        self._kept: dict[TopicPartition, _Kept] = {}
        """Of partitions that are not this consumer's any more, and could not be saved."""

    def save(self, places: Collection[TopicPartition] | None = None) -> bool:
        """Save the positions that have moved, of ``places`` only, if given; return whether none was refused.

        Raises:
            MetaqError: The registry or the storage could not be used. Positions are kept.
        """
        with self._state.lock:
            due = dict(self._state.unsaved(places))
            expected = {where: self._state.partitions[where].saved for where in due}
        refused: set[TopicPartition] = set()
        for _ in range(ATTEMPTS_MAX):
            if not due:
                break
            mine = self._membership.owned_now(due)
            refused |= due.keys() - mine
            due = {where: position for where, position in due.items() if where in mine}
            found = self._store(due, expected, is_compared=not self._membership.exclusive)
            self._state.note_saved({where: position for where, position in due.items() if where not in found})
            expected |= found
            due = {where: due[where] for where in found}
            refused |= {where for where, position in due.items() if not self._may_replace(found[where], position)}
            due = {where: position for where, position in due.items() if where not in refused}
        refused |= due.keys()
        if refused:
            named = ", ".join(map(str, sorted(refused)))
            _LOG.warning("group %s: positions are not saved, another consumer has %s", self._membership.group, named)
        return not refused

    def save_first(
        self, starts: Mapping[TopicPartition, GroupOffset]
    ) -> tuple[Mapping[TopicPartition, GroupOffset], Mapping[TopicPartition, GroupOffset]]:
        """Save where the group begins, so that nobody decides that again; return where it does, and what is saved.

        Another member may have been quicker. While the storage cannot be used, nothing is saved.

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
            _LOG.warning("group %s: where it begins in %s is not saved yet: %s", self._membership.group, named, error)
            return starts, {}
        begun = {where: found.get(where) or start for where, start in starts.items()}
        return begun, begun

    # partitions that are not this consumer's now

    def save_unclaimed(self, places: Collection[TopicPartition], *, and_kept: bool = False) -> None:
        """Save the positions of ``places``, also those that are kept, where the storage still has what it had.

        Raises:
            MetaqError: The storage could not be used. Positions are kept.
        """
        if places:
            there = self._storage.load(self._membership.group, places)
            self._state.note_missing(set(places) - there.keys())
        with self._state.lock:
            due = dict(self._state.unsaved(places))
            expected = {where: self._state.partitions[where].saved for where in due}
        if and_kept:
            due |= {where: kept.position for where, kept in self._kept.items()}
            expected |= {where: kept.saved for where, kept in self._kept.items()}
        found = self._store(due, expected, is_compared=True)
        stored = {where: position for where, position in due.items() if where not in found}
        self._state.note_saved(stored)
        self.forget(stored)

    def keep(self, partitions: Collection[Owned[Any, Any, Any]]) -> None:
        """Keep the positions of these, which are read no more, as far as they are not saved."""
        for one in partitions:
            if one.position != one.saved:
                self._kept[one.where] = _Kept(one.position, one.saved)

    def kept(self) -> dict[TopicPartition, GroupOffset | None]:
        """Return the partitions whose positions are kept, and what the storage had."""
        return {where: kept.saved for where, kept in self._kept.items()}

    def take_kept(
        self, places: Collection[TopicPartition], stored: Mapping[TopicPartition, GroupOffset]
    ) -> dict[TopicPartition, GroupOffset]:
        """Return where this consumer is in those of ``places`` that it goes on with, unless somebody is further."""
        found = {where: self._kept.pop(where) for where in places if where in self._kept}
        return {
            where: kept.position
            for where, kept in found.items()
            if where not in stored or not is_further(stored[where], kept.saved, kept.position)
        }

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Keep nothing of these."""
        for where in places:
            self._kept.pop(where, None)

    def _store(
        self,
        due: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
        *,
        is_compared: bool,
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Save; return what the storage has in the partitions where that is something else than was expected.

        ``is_compared``: also if the storage cannot do so in one step.
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
