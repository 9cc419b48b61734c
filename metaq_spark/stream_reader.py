"""The streaming source: where micro-batches begin and end, and the tasks between.

Spark keeps one object of this class in a process of its own for the life of a query run and calls everything but
``read`` on it; a second copy is made for the tasks. So the object may remember what it looked up, but ``partitions``
depends on its two offsets alone (Spark calls it again when it replays a batch), and tasks get all they need in their
partition.

What is kept between calls: the last lookup (an idle query asks every few milliseconds; the brokers are asked at most
every ``offsetPollMs``), the first offset, the partitions that were warned about, and for AvailableNow the ends at
which the run is to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from metaq.client.clock import SYSTEM_CLOCK, Clock
from metaq.client.pool import SessionPool
from metaq.model import TopicPartition
from metaq_spark import offsets
from metaq_spark.cluster import Cluster
from metaq_spark.data_loss import report_data_loss
from metaq_spark.offsets import Offsets, Ranges
from metaq_spark.options import SourceOptions
from metaq_spark.partition_reader import RangePartition, read_partition
from metaq_spark.planning import check_boundaries, plan_batch, ranges_between, resolve

_log = logging.getLogger(__name__)


class MetaQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of messages; see the module. Offsets are in the form of ``offsets.to_json``."""

    def __init__(self, options: SourceOptions, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._pool, self._clock = options, pool, clock
        self._cluster: Cluster | None = None
        self._held: Ranges = {}
        self._held_since_s: float | None = None
        self._initial: Offsets | None = None
        self._ceiling: Offsets | None = None
        self._missed: set[TopicPartition] = set()

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Spark asks twice, and must hear the same."""
        if self._initial is None:
            self._initial = self._find_initial()
        return offsets.to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxBytesPerTrigger``."""
        return ReadMaxBytes(self._options.trigger_bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: this run stops when it has been read."""
        self._ceiling = {where: span.end for where, span in self._look_up(fresh=True).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at ``start``. Only ``ReadMaxBytes`` limits it."""
        known = offsets.from_json(start)
        held = self._look_up()
        if any(where in held and at > held[where].end for where, at in known.items()):
            held = self._look_up(fresh=True)  # before data is called lost, look again
        self._warn_of_missed(known, held)
        end = plan_batch(
            known,
            held,
            ceiling=self._ceiling,
            bytes_max=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            frames=self._brokers(),
            report_loss=partial(report_data_loss, fail=self._options.fail_on_data_loss),
        )
        return offsets.to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of all partitions, whatever limits apply: shows in the query's progress how far it is behind."""
        return offsets.to_json({where: span.end for where, span in self._look_up().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition that moved between the two offsets."""
        ranges = ranges_between(offsets.from_json(start), offsets.from_json(end))
        return [RangePartition(where, self._brokers().address_of(where), span) for where, span in ranges.items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition)
        return read_partition(partition, self._options, self._pool)

    def _brokers(self) -> Cluster:
        if self._cluster is None:
            cluster = Cluster(self._options, self._pool, self._clock)
            cluster.require_possible(self._options.topics)
            self._cluster = cluster
        return self._cluster

    def _look_up(self, fresh: bool = False) -> Ranges:
        now_s = self._clock.monotonic()
        stale = self._held_since_s is None or now_s - self._held_since_s >= self._options.offset_poll_ms / 1000
        if fresh or stale:
            self._held = self._brokers().held(self._options.topics)
            self._held_since_s = self._clock.monotonic()
        return self._held

    def _warn_of_missed(self, known: Offsets, held: Ranges) -> None:
        missed = {where for where in known if where not in held}
        for where in sorted(missed - self._missed):
            _log.warning("the brokers do not list %s any more; the query waits there until they do", where)
        self._missed = missed

    def _find_initial(self) -> Offsets:
        report_loss = partial(report_data_loss, fail=self._options.fail_on_data_loss)
        held, position = self._look_up(fresh=True), self._options.starting_offsets
        initial = resolve("startingOffsets", position, held, report_loss)
        check_boundaries("startingOffsets", position, initial, held, self._brokers())
        return initial
