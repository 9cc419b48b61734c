"""The lag of queues, from their brokers: implements ``backend.LagLookup``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from metaq.errors import MetaqError
from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq_spark.backends.rocketmq.cluster import Cluster
from metaq_spark.backends.rocketmq.options import ServerOptions
from metaq_spark.lag.unread import LagStatus, PartitionLag, lags, waited_s
from metaq_spark.offsets import Progress


class LagLookup:
    """Asks the brokers that ``options`` lead to. ``now_s`` is the time of day."""

    def __init__(
        self, options: ServerOptions, cluster: Cluster | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._cluster, self._now_s = cluster or Cluster(options), now_s

    def lags(self, read_to: Progress, others: Iterable[TopicPartition] | None = ()) -> list[PartitionLag]:
        """Return the lags. ``seconds`` is the age of the first unread message, by its store time."""
        queues = {*read_to.offsets, *(self._all_queues(read_to) if others is None else others)}
        return self._measured(read_to, self._cluster.offsets.ranges(sorted(queues)))

    def lags_now(self, read_to: Progress) -> tuple[list[PartitionLag], dict[str, MetaqError]]:
        """Return the lag of all queues of the topics in ``read_to`` at the brokers that answer, and the errors of the
        others by name.
        """
        queues = {*read_to.offsets, *self._all_queues(read_to)}
        ranges, away = self._cluster.offsets.ranges_now(sorted(queues))
        asked = {where: at for where, at in read_to.offsets.items() if where.partition.broker_name not in away}
        answered = replace(read_to, offsets=asked)
        return self._measured(answered, ranges), away

    def _measured(self, read_to: Progress, ranges: Mapping[TopicPartition, OffsetRange]) -> list[PartitionLag]:
        available = {
            where: PartitionState(span, None) for where, span in ranges.items() if _is_there(span, where, read_to)
        }
        measured = lags(read_to, available)
        behind = {lag.where: lag.unread.start for lag in measured if len(lag.unread)}
        spans = {lag.where: lag.unread for lag in measured if len(lag.unread)}
        times_ms = self._cluster.positions.store_times_ms(behind)
        sizes = self._cluster.positions.bytes_per_offset(spans) if spans else {}
        return [self._aged(lag, times_ms.get(lag.where), sizes.get(lag.where, 0.0)) for lag in measured]

    def _aged(self, lag: PartitionLag, stored_ms: int | None, size: float) -> PartitionLag:
        if lag.status_note is LagStatus.GONE:
            return lag
        if not len(lag.unread):
            return replace(lag, seconds=0.0, bytes_estimate=0)
        seconds = None if stored_ms is None else waited_s(stored_ms, self._now_s())
        return replace(lag, seconds=seconds, bytes_estimate=int(size * len(lag.unread)))

    def _all_queues(self, read_to: Progress) -> Iterable[TopicPartition]:
        for topic in {where.topic for where in read_to.offsets}:
            try:
                listed = self._cluster.directory.queues(topic)
            except MetaqError:
                continue
            yield from (TopicPartition(topic, queue) for queue in listed)


def _is_there(span: OffsetRange, where: TopicPartition, read_to: Progress) -> bool:
    """Whether the queue exists: a missing one looks empty, which a queue that was read must not be."""
    return span.end > 0 or not read_to.offsets.get(where)
