"""Checks whether a partition is still the one that its stored offset belongs to.

Without a registry, a cluster is a list of addresses, and another broker with other messages may listen at one of them
later. An offset of the old broker then lies beyond the end, or in the middle of a message. The bundled broker announces
an *incarnation* of each partition, created with the partition; a storage that supports it stores it with the offset::

    another incarnation than before                             begin as if there were no offset, and log it
    no incarnation is reported, the offset is beyond the end    the same
    the last consumed message is missing (``last_consumed``)    continue with newer messages, and log it
    otherwise                                                   continue

While a consumer runs, incarnations are compared after each new connection to a broker, with each division, and before a
damaged message is an error: the old offset may be in the middle of a message. With a registry, which reports when to
divide, the fetch threads compare them instead of the divisions, every ``save_s``, each for its broker. No storage keeps
incarnations: a topic that was made again while no consumer of the group had it is noticed by its last consumed message
only.

Source: docs/client-internals.md, "How positions are kept".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from metaq.client.groups.ownership.last_consumed import LastConsumed
from metaq.client.offsets import IncarnationStorage, OffsetStorage
from metaq.discovery.base import Directory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import PartitionState, TopicPartition
from metaq.net.clock import wall_clock_ms

_LOG: Final = logging.getLogger(__name__)

_MADE_AGAIN: Final = "the topic was created again, or another broker is at this address"


@dataclass(eq=False)
class IncarnationCheck:
    """What both checks below have: the incarnations of the partitions that a consumer of ``group`` reads.

    ``with_divisions``: whether they are compared with each division, for all brokers at once.

    ``begin``: where the group begins in a partition without an offset; for one that was made again while it was read,
    with the time when this consumer began, ``began_ms``. ``known``: the incarnation of each partition that was read,
    ``None`` if none was reported.
    """

    with_divisions: ClassVar[bool]

    directory: Directory
    storage: OffsetStorage
    group: str
    topics: Collection[str]
    begin: Callable[[TopicPartition, int | None], GroupOffset]
    last: LastConsumed
    began_ms: int = field(default_factory=wall_clock_ms, init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    known: dict[TopicPartition, str | None] = field(default_factory=dict, init=False)

    def _begin_again(
        self, where: TopicPartition, stored: GroupOffset, why: str, since_ms: int | None
    ) -> GroupOffset:
        """Return where the group begins in a partition to whose messages ``stored`` does not belong, and log it."""
        begun = self.begin(where, since_ms)
        _LOG.warning(
            "group %s, %s: offset %d was stored for other messages: %s; beginning at %d",
            *(self.group, where, stored.offset, why, begun.offset),
        )
        return begun


@dataclass(eq=False)
class Incarnations(IncarnationCheck):
    """The check without a registry. Thread-safe."""

    with_divisions = True

    _unsaved: set[TopicPartition] = field(default_factory=set, init=False)

    def checked(
        self, stored: Mapping[TopicPartition, GroupOffset], fresh: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, GroupOffset]:
        """Return the group's offsets in partitions, with new ones in place of offsets that are not valid any more.

        New offsets are stored when this returns. ``fresh``: the partitions that were not read until now.

        Raises:
            MetaqError: The brokers, or the storage, could not be asked.
        """
        with self.lock:
            unknown = {where for where, reported in self.known.items() if reported is None or where in self._unsaved}
        if not (fresh or unknown):
            return stored
        now = self._now({where for where in fresh if where in stored and stored[where].offset})
        unknown &= now.keys()  # the storage of others may be away with their broker
        before = self._stored_incarnations({*fresh, *unknown})
        offsets: dict[TopicPartition, GroupOffset] = {}
        for where in fresh:
            if where not in stored:
                continue
            if (why := _why_not(stored[where], before.get(where), now.get(where))) is None:
                offsets |= resumed(self.last, self.group, where, stored[where])
            else:
                since_ms = self.began_ms if where in self.known else None
                offsets[where] = self._begin_again(where, stored[where], why, since_ms)
        found = {where: _incarnation(now.get(where)) for where in {*fresh, *unknown}}
        changed = {where: reported for where, reported in found.items() if reported not in (before.get(where), None)}
        is_stored = self._store(offsets, dict.fromkeys(offsets) | changed)
        with self.lock:
            self.known |= found
            self._unsaved -= found.keys()
            self._unsaved |= set() if is_stored else changed.keys()
        return {**stored, **offsets}

    def _now(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, PartitionState]:
        """Return the partitions of the brokers that answer. Raise if a broker of ``places`` may not be among them."""
        now, away = self.directory.available_now(self.topics)
        answering = {where.partition.broker for where in now}
        if away and any(where not in now and where.partition.broker not in answering for where in places):
            raise next(iter(away.values())).with_traceback(None)
        return now

    def changed(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those ``places`` whose incarnation has changed since they were read. Raises as ``checked``."""
        with self.lock:
            known = {where: reported for where in places if (reported := self.known.get(where)) is not None}
        if not known:
            return set()
        now, away = self.directory.available_now(self.topics)
        others = {where for where, reported in known.items() if _incarnation(now.get(where)) not in (reported, None)}
        return others | (set() if away else known.keys() - now.keys())

    def _stored_incarnations(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        if isinstance(self.storage, IncarnationStorage):
            return self.storage.incarnations(self.group, places)
        return {}

    def _store(
        self, offsets: Mapping[TopicPartition, GroupOffset], incarnations: Mapping[TopicPartition, str | None]
    ) -> bool:
        """Save; return whether that succeeded. Only new offsets must be saved before anything is read."""
        try:
            if isinstance(self.storage, IncarnationStorage) and (offsets or incarnations):
                self.storage.save_incarnations(self.group, offsets, incarnations)
            elif offsets:
                self.storage.save(self.group, offsets)
        except MetaqError as error:
            if offsets or not error.retryable:
                raise
            return False  # positions cannot be saved either, which is logged
        return True


@dataclass(eq=False)
class StoredOffsets(IncarnationCheck):
    """The check with a registry, which identifies brokers: incarnations are compared while a consumer reads a
    partition; at its beginning, only the last consumed message is looked for. Asks only brokers of the partitions in
    question: another one may be silent. Thread-safe.
    """

    with_divisions = False

    _made_again: set[TopicPartition] = field(default_factory=set, init=False)

    def checked(
        self, stored: Mapping[TopicPartition, GroupOffset], fresh: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, GroupOffset]:
        """Skip a partition that ends before its offset: it may be read from a slave that is behind; and one whose
        broker does not answer.
        """
        now = self._now(fresh)
        with self.lock:
            made_again = self._made_again & set(fresh)
        offsets: dict[TopicPartition, GroupOffset] = {}
        for where in fresh:
            if where not in stored:
                continue
            if where in made_again:
                offsets[where] = self._begin_again(where, stored[where], _MADE_AGAIN, self.began_ms)
            elif stored[where].offset and where in now and stored[where].offset <= now[where].offsets.end:
                offsets |= resumed(self.last, self.group, where, stored[where])
        if offsets:
            self.storage.save(self.group, offsets)
        with self.lock:
            self.known |= {where: _incarnation(now.get(where)) for where in fresh}
            self._made_again -= made_again
        return {**stored, **offsets}

    def changed(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the ``places`` whose incarnation has changed since they were read; a place that no broker reports has
        not changed: its broker may be away. Raises as ``checked``.
        """
        now = self._now(places)
        with self.lock:
            changed: set[TopicPartition] = set()
            for where in places:
                if (reported := _incarnation(now.get(where))) is not None:
                    if (self.known.get(where) or reported) != reported:
                        changed.add(where)
                    else:
                        self.known[where] = reported  # it had no message before
            self._made_again |= changed
        return changed

    def _now(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, PartitionState]:
        brokers = {where.partition.broker for where in places}
        return self.directory.available_now(self.topics, brokers)[0] if places else {}


def resumed(
    last: LastConsumed, group: str, where: TopicPartition, stored: GroupOffset
) -> dict[TopicPartition, GroupOffset]:
    """Return where a group continues in a partition that was reset to an older copy; empty if it was not."""
    found = last.resumed(where, stored)
    if found is None:
        return {}
    _LOG.warning(
        "group %s, %s: message %d, which was consumed last, is missing: the broker was restored from an older copy; "
        "continuing at %d instead of %d, with newer messages",
        *(group, where, stored.message_id, found.offset, stored.offset),
    )
    return {where: found}


def _incarnation(state: PartitionState | None) -> str | None:
    return None if state is None else state.incarnation


def _why_not(stored: GroupOffset, before: str | None, now: PartitionState | None) -> str | None:
    """Return why an offset is not valid in a partition; ``None`` if it is."""
    if now is None:
        return "the partition has none" if stored.offset else None
    if before is not None and now.incarnation is not None:
        return None if before == now.incarnation else _MADE_AGAIN
    if stored.offset > now.offsets.end:
        return f"they end at {now.offsets.end}"
    return None
