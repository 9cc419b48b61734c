"""Where a consumer group is, as brokers keep it: read for ``startingOffsets=group``, written for
``commitGroupOffsets``."""

from __future__ import annotations

from collections.abc import Collection

from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.model import TopicPartition
from metaq.net.clock import Clock
from metaq_spark.backends.group_commits import GroupCommits
from metaq_spark.offsets import Offsets as QueueOffsets


class BrokerGroups:
    """Implements ``CommittedOffsets``. A broker that is away holds up neither the query nor the others."""

    def __init__(self, offsets: Offsets, clock: Clock) -> None:
        self._offsets, self._clock = offsets, clock
        self._commits: dict[str, GroupCommits] = {}

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> QueueOffsets:
        found = self._offsets.committed(group, partitions)
        return {where: offset for where, offset in found.items() if offset is not None}

    def commit(self, group: str, offsets: QueueOffsets) -> None:
        by_broker: dict[str, dict[TopicPartition, int]] = {}
        for where, offset in offsets.items():
            by_broker.setdefault(where.partition.broker_name, {})[where] = offset
        for name, of_broker in by_broker.items():
            if name not in self._commits:
                self._commits[name] = GroupCommits(f"broker {name!r}", self._offsets.commit, self._clock)
            self._commits[name].start(group, of_broker)
        for name in by_broker:
            self._commits[name].wait()
