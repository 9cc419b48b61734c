"""The offsets of a MetaQ consumer group: read for ``startingOffsets=group``, written for ``commitGroupOffsets``.

A group's offsets are stored in ZooKeeper, so only reads that find their brokers there have them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from metaq.discovery.group_offsets import GroupOffsetStore, check_name
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.model import INT64_MAX, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.backends.group_commits import GroupCommits
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets
from metaq_spark.options.positions import LATEST_OFFSET, Group
from metaq_spark.source.backend import CommittedOffsets

_log = logging.getLogger(__name__)


class ZooKeeperGroups:
    """Implements ``CommittedOffsets``, in the tree at ``address``; ``timeout_s`` for each step."""

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = GroupOffsetStore(address, timeout_s)
        self._commits = GroupCommits("ZooKeeper", self._write, clock)
        self._looked = False

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's positions; a Java group that begins at the end, and has not read yet, is at the end."""
        found = self._store.read(group, partitions)
        return {where: LATEST_OFFSET if at.offset == INT64_MAX else at.offset for where, at in found.items()}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets without the id of the last message, which is unknown here."""
        self._commits.start(group, offsets)
        self._commits.wait()

    def _write(self, group: str, changed: Offsets) -> None:
        self._warn_of_others(group)
        self._store.write(group, {where: GroupOffset(offset) for where, offset in changed.items()})

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
