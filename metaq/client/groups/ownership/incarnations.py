"""Checks whether a partition is still the one that its stored offset belongs to.

Without a registry, a cluster is a list of addresses, and another broker with other messages may listen at one of them
later. An offset of the old broker then lies behind the end, or in the middle of a message. The bundled broker announces
an *incarnation* of each partition, created with the partition; a storage that supports it stores it with the offset::

    another incarnation than before                             begin as if there were no offset, and log it
    no incarnation is reported, the offset is behind the end    the same
    the last consumed message is missing (``last_consumed``)    continue with newer messages, and log it
    otherwise                                                   continue

While a consumer runs, incarnations are compared after each new connection to a broker, with each division, and before a
damaged message is an error: the old offset may be in the middle of a message. With a registry, which reports when to
divide, they are compared with each save, too, and no storage has them: a topic that was made again while no consumer of
the group had it is noticed by its last consumed message only.

Source: docs/client-internals.md, "How positions are kept".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from metaq.client.groups.ownership.last_consumed import LastConsumed
from metaq.client.offsets import IncarnationStorage, OffsetStorage
from metaq.discovery.base import Directory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import PartitionState, TopicPartition
from metaq.net.clock import wall_clock_ms

_LOG: Final = logging.getLogger(__name__)

_MADE_AGAIN: Final = "the topic was created again, or another broker is at this address"


class Incarnations:
    """The incarnations of the partitions that a consumer of ``group`` reads. Thread-safe.

    ``begin``: where the group begins in a partition without an offset; for one that was made again while it was read,
    with the time when this consumer began, ``began_ms``.
    """

    def __init__(
        self,
        directory: Directory,
        storage: OffsetStorage,
        group: str,
        topics: Collection[str],
        begin: Callable[[TopicPartition, int | None], GroupOffset],
        last: LastConsumed,
    ) -> None:
        self._directory, self._storage, self._group, self._topics = directory, storage, group, topics
        self._begin, self._last, self._began_ms = begin, last, wall_clock_ms()
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, str | None] = {}
        self._unsaved: set[TopicPartition] = set()

    def checked(
        self, stored: Mapping[TopicPartition, GroupOffset], fresh: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, GroupOffset]:
        """Return the group's offsets in partitions, with new ones in place of offsets that are not valid any more.

        New offsets are stored when this returns. ``fresh``: the partitions that were not read until now.

        Raises:
            MetaqError: The brokers, or the storage, could not be asked.
        """
        with self._lock:
            unknown = {where for where, reported in self._known.items() if reported is None or where in self._unsaved}
        if not (fresh or unknown):
            return stored
        now = self._directory.available(self._topics)
        before = self._stored_incarnations({*fresh, *unknown})
        offsets: dict[TopicPartition, GroupOffset] = {}
        for where in fresh:
            if where not in stored:
                continue
            if (why := _why_not(stored[where], before.get(where), now.get(where))) is None:
                offsets |= resumed(self._last, self._group, where, stored[where])
            else:
                offsets[where] = self._begin(where, self._began_ms if where in self._known else None)
                _warn_of_others(self._group, where, stored[where], why, offsets[where])
        found = {where: _incarnation(now.get(where)) for where in {*fresh, *unknown}}
        changed = {where: reported for where, reported in found.items() if reported not in (before.get(where), None)}
        is_stored = self._store(offsets, dict.fromkeys(offsets) | changed)
        with self._lock:
            self._known |= found
            self._unsaved = set() if is_stored else set(changed)
        return {**stored, **offsets}

    def changed(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those ``places`` whose incarnation has changed since they were read. Raises as ``checked``."""
        with self._lock:
            known = {where: reported for where in places if (reported := self._known.get(where)) is not None}
        if not known:
            return set()
        now, away = self._directory.available_now(self._topics)
        others = {where for where, reported in known.items() if _incarnation(now.get(where)) not in (reported, None)}
        return others | (set() if away else known.keys() - now.keys())

    def _stored_incarnations(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        if isinstance(self._storage, IncarnationStorage):
            return self._storage.incarnations(self._group, places)
        return {}

    def _store(
        self, offsets: Mapping[TopicPartition, GroupOffset], incarnations: Mapping[TopicPartition, str | None]
    ) -> bool:
        """Save; return whether that succeeded. Only new offsets must be saved before anything is read."""
        try:
            if isinstance(self._storage, IncarnationStorage) and (offsets or incarnations):
                self._storage.save_incarnations(self._group, offsets, incarnations)
            elif offsets:
                self._storage.save(self._group, offsets)
        except MetaqError as error:
            if offsets or not error.retryable:
                raise
            return False  # positions cannot be saved either, which is logged
        return True


class StoredOffsets:
    """The same interface for a cluster with a registry, which identifies brokers: incarnations are compared while a
    consumer reads a partition; at its beginning, only the last consumed message is looked for.
    """

    def __init__(
        self,
        directory: Directory,
        storage: OffsetStorage,
        group: str,
        topics: Collection[str],
        begin: Callable[[TopicPartition, int | None], GroupOffset],
        last: LastConsumed,
    ) -> None:
        self._directory, self._storage, self._group, self._topics = directory, storage, group, topics
        self._begin, self._last, self._began_ms = begin, last, wall_clock_ms()
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, str | None] = {}
        self._made_again: set[TopicPartition] = set()

    def checked(
        self, stored: Mapping[TopicPartition, GroupOffset], fresh: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, GroupOffset]:
        """Skip a partition that ends before its offset: it may be read from a slave that is behind."""
        now = self._directory.available(self._topics) if fresh else {}
        with self._lock:
            made_again = self._made_again & set(fresh)
        offsets: dict[TopicPartition, GroupOffset] = {}
        for where in fresh:
            if where not in stored:
                continue
            if where in made_again:
                offsets[where] = self._begin(where, self._began_ms)
                _warn_of_others(self._group, where, stored[where], _MADE_AGAIN, offsets[where])
            elif stored[where].offset and where in now and stored[where].offset <= now[where].offsets.end:
                offsets |= resumed(self._last, self._group, where, stored[where])
        if offsets:
            self._storage.save(self._group, offsets)
        with self._lock:
            self._known |= {where: _incarnation(now.get(where)) for where in fresh}
            self._made_again -= made_again
        return {**stored, **offsets}

    def changed(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """As ``Incarnations.changed``; one that nobody reports is not a changed one: its broker may be away."""
        now, _ = self._directory.available_now(self._topics)
        with self._lock:
            changed: set[TopicPartition] = set()
            for where in places:
                if (reported := _incarnation(now.get(where))) is not None:
                    if (self._known.get(where) or reported) != reported:
                        changed.add(where)
                    else:
                        self._known[where] = reported  # it had no message before
            self._made_again |= changed
        return changed


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


def _warn_of_others(group: str, where: TopicPartition, stored: GroupOffset, why: str, begun: GroupOffset) -> None:
    _LOG.warning(
        "group %s, %s: offset %d was stored for other messages: %s; beginning at %d",
        *(group, where, stored.offset, why, begun.offset),
    )


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
