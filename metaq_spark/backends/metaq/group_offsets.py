"""The offsets of a MetaQ consumer group: read for ``startingOffsets=group``, written for ``commitGroupOffsets``.

A group's offsets are stored in ZooKeeper, so only reads that find their brokers there have them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from metaq.discovery.group_offsets import GroupOffsetStore, check_name
from metaq.discovery.refreshed import AWAY_PAUSE_S, REFRESH_WAIT_S
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import MetaqError
from metaq.model import INT64_MAX, TopicPartition
from metaq.net.background import Background
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets
from metaq_spark.options.positions import LATEST_OFFSET, Group
from metaq_spark.source.backend import CommittedOffsets

_log = logging.getLogger(__name__)


class ZooKeeperGroups:
    """Implements ``CommittedOffsets``, in the tree at ``address``; ``timeout_s`` for each step.

    A failed commit is logged once; a later one replaces it: the query's own offsets are in its checkpoint, and must not
    wait for this copy. A write that takes longer than ``REFRESH_WAIT_S`` is not waited for; while ZooKeeper is away, a
    thread retries every ``AWAY_PAUSE_S`` with the newest offsets.
    """

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._clock = GroupOffsetStore(address, timeout_s), clock
        self._written: dict[TopicPartition, int] = {}
        self._failed_at_s: float | None = None
        self._looked, self._group = False, ""
        self._writing: Background[Offsets] | None = None

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's positions; a Java group that begins at the end, and has not read yet, is at the end."""
        found = self._store.read(group, partitions)
        return {where: LATEST_OFFSET if at.offset == INT64_MAX else at.offset for where, at in found.items()}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets without the id of the last message, which is unknown here."""
        self._take_in()
        changed = {where: offset for where, offset in offsets.items() if self._written.get(where) != offset}
        left_alone = self._failed_at_s is not None and self._clock.monotonic() - self._failed_at_s < AWAY_PAUSE_S
        if not changed or left_alone or self._writing is not None:
            return
        self._group = group
        self._writing = Background("metaq-group", lambda: self._write(group, changed))
        if self._failed_at_s is None and not self._writing.wait(REFRESH_WAIT_S):
            self._note_failure("ZooKeeper does not answer")
        self._take_in()

    def _write(self, group: str, changed: Offsets) -> Offsets:
        self._warn_of_others(group)
        self._store.write(group, {where: GroupOffset(offset) for where, offset in changed.items()})
        return changed

    def _take_in(self) -> None:
        """Process the result of a finished write."""
        if self._writing is None or not self._writing.done:
            return
        writing, self._writing = self._writing, None
        try:
            self._written |= writing.result()
        except MetaqError as error:
            self._note_failure(str(error))
        else:
            self._failed_at_s = None

    def _note_failure(self, why: str) -> None:
        if self._failed_at_s is None:
            _log.warning("the offsets of group %s are not written for now: %s", self._group, why)
        self._failed_at_s = self._clock.monotonic()

    def _warn_of_others(self, group: str) -> None:
        if not self._looked and (others := self._store.consumers(group)):
            _log.warning("group %s has running consumers (%s): they write its offsets, too", group, ", ".join(others))
        self._looked = True


def required_groups(options: SourceOptions, groups: CommittedOffsets | None) -> CommittedOffsets | None:
    """Return ``groups`` or the groups in the options; ``None`` if the options need none.

    Raises:
        OptionError: They need groups that are not available.
    """
    if groups is None and options.zookeeper is not None and options.group is not None:
        try:
            check_name(options.group, "group")
        except ValueError as error:
            raise OptionError("group", str(error)) from None
        groups = ZooKeeperGroups(options.zookeeper, options.timeouts.connect_s)
    for needed, option in (
        (isinstance(options.start, Group), "startingOffsets"),
        (options.commit_group_offsets, "commitGroupOffsets"),
    ):
        if needed and groups is None:
            raise OptionError(
                option,
                "the offsets of a consumer group are kept in ZooKeeper, so it needs discovery by ZooKeeper; give the "
                "option zookeeper instead of brokers",
            )
    return groups
