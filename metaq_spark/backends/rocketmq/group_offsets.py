"""Where a consumer group is, as brokers keep it: read for ``startingOffsets=group``, written for
``commitGroupOffsets``."""

from __future__ import annotations

import logging
from collections.abc import Collection

from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import Clock
from metaq_spark.offsets import Offsets as QueueOffsets

AWAY_PAUSE_S = 10.0
"""Seconds without writes after a failure: the query's own offsets are in its checkpoint, and must not wait."""

_log = logging.getLogger(__name__)


class BrokerGroups:
    """Implements ``CommittedOffsets``. A failed commit is logged once; a later one replaces it."""

    def __init__(self, offsets: Offsets, clock: Clock) -> None:
        self._offsets, self._clock = offsets, clock
        self._written: dict[TopicPartition, int] = {}
        self._failed_at_s: float | None = None

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> QueueOffsets:
        found = self._offsets.committed(group, partitions)
        return {where: offset for where, offset in found.items() if offset is not None}

    def commit(self, group: str, offsets: QueueOffsets) -> None:
        changed = {where: offset for where, offset in offsets.items() if self._written.get(where) != offset}
        now_s = self._clock.monotonic()
        if not changed or (self._failed_at_s is not None and now_s - self._failed_at_s < AWAY_PAUSE_S):
            return
        try:
            self._offsets.commit(group, changed)
        except MetaqError as error:
            if self._failed_at_s is None:
                _log.warning("the offsets of group %s are not written for now: %s", group, error)
            self._failed_at_s = now_s
        else:
            self._written |= changed
            self._failed_at_s = None
