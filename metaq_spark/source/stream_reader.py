"""The streaming source: where micro-batches begin and end, and the tasks between.

Spark keeps one object of this class in a separate process while a query runs and calls everything but ``read`` on it;
the tasks use a second copy. So the object may cache look-ups, but ``partitions`` depends only on its two offsets (Spark
calls it again when it replays a batch), and tasks get all they need in their partition.

State kept between calls: the last look-up, the last offsets in both forms, the first offset, since when partitions have
been suspect, the time of the last batch, since when the query is idle, the last planned end, and for AvailableNow the
ends at which the run stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NoReturn, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import wall_clock_ms
from metaq_spark.errors import ConnectorError, NotSelected
from metaq_spark.offsets import AvailableRanges, Offsets, Progress, ProgressMemory, Since, ends_of, incarnations_of
from metaq_spark.options.selection import chosen, option_of
from metaq_spark.plain_errors import plain_errors, plain_errors_of_rows
from metaq_spark.source.appeared import Appeared, since_of
from metaq_spark.source.backend import Cuts, Source
from metaq_spark.source.continuity import Continuity
from metaq_spark.source.limits import BatchLimits, TriggerDelay
from metaq_spark.source.lookup import IdleBackoff, Lookup, Snapshot
from metaq_spark.source.losses import LossReport
from metaq_spark.source.planning import Plan, plan_batch, ranges_between, suspect, waited_for
from metaq_spark.source.resolution import require_named, starting_offsets
from metaq_spark.source.tasks import read_task, tasks
from metaq_spark.spark_version import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from metaq_spark.worker_package import ShippedToWorkers

_SHOWN_MAX: Final = 10
_log = logging.getLogger(__name__)


class StreamReader(ShippedToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of messages.

    An offset of the stream has one offset for each known partition, where the first message that is *not* yet read
    begins. If the last message of partition 0-1 of "orders" begins at byte 102 and has 21 bytes, a query that has read
    it is at 123; a query of RocketMQ that has read message 11 of the queue broker-a:0 is at 12::

        {"v": 2, "topics": {"orders": {"0-0": 0, "0-1": 123}}, "incarnations": {"orders": {"0-0": "5f0c..."}}}
        {"v": 2, "topics": {"orders": {"broker-a:0": 12}}, "incarnations": {}}

    The batch from ``start`` to ``end`` has the messages that begin in ``[start, end)`` of each partition. A partition
    that only ``end`` names has no messages in this batch; its offset is where the next batch begins.
    ``metaq.formats.checkpoint_offsets`` describes the other keys.
    """

    def __init__(self, source: Source, cpu_s: Callable[[], float] = time.process_time) -> None:
        """``cpu_s`` returns the processor time of this process, which decides how long an idle query rests."""
        self._source = source
        self._options, self._clock = source.options, source.clock
        self._initial: Progress | None = None
        self._ceiling: Progress | None = None
        self._expected = False
        self._read_topics: Collection[str] = ()
        self._suspect_since_s: dict[TopicPartition, float] = {}
        self._selected: tuple[Progress | None, Progress] = (None, Progress({}))
        self._known, self._idling = ProgressMemory(source.notation.parse_partition), IdleBackoff(source.clock, cpu_s)
        self._ends: tuple[AvailableRanges | None, Progress] = (None, Progress({}))
        self._trigger_delay = TriggerDelay(source.clock, source.options.trigger_delay_ms_max / 1000)
        self._report_loss = LossReport(fail=source.options.fail_on_data_loss)
        self._continuity = Continuity(source, self._report_loss)
        self._planned: Progress | None = None

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint. Spark asks twice, and must get the same answer."""
        if self._initial is None:
            require_named(self._checked)
            now_ms = wall_clock_ms()
            available = self._lookup.latest(fresh=True, complete=True).available
            self._source.report_unlisted(available, streaming=True)
            at = starting_offsets(self._source, {where: one.offsets for where, one in available.items()})
            self._initial = Progress(at, incarnations_of(available), since=self._since(now_ms))
        return self._known.write(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxBytesPerTrigger``. Spark takes a single limit; the others are added in ``latestOffset``."""
        return ReadMaxBytes(self._options.trigger_bytes_max)

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current ends: this run stops when they are reached."""
        if self._ceiling is None:
            self._ceiling = ends_of(self._lookup.latest(fresh=True, complete=True).available)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``; ``start`` itself if there is nothing to read now.

        With ``commitGroupOffsets`` it also commits ``start`` for the group: Spark has completed everything before it,
        and calls ``commit`` only when it plans a later batch, so not for the last one of a run.
        """
        ends_run = self._ends_run(limit)
        known = self._known.read(start)
        self._read_topics = {where.topic for where in known.offsets}
        selected = self._selected_of(known).offsets
        if not self._expected:
            self._source.cluster.expect(selected.keys())
            self._expected = True
        if known != self._initial:
            self._pass_to_group(selected)
        try:
            end = self._end_of_batch(known, limit, ends_run)
        except MetaqError as error:
            if not self._source.is_data_loss(error):
                raise
            _log.warning("%s. Looking up the partitions again", error)
            self._lookup.latest(fresh=True)
            end = self._end_of_batch(known, limit, ends_run)
        available = self._lookup.latest().available
        if resumed := self._continuity.resumed(known, available):
            end = replace(end, offsets=dict(end.offsets) | resumed)
        if end != known:
            self._idling.reset()
            self._planned = self._continuity.noted(known, end, available)
            self._bring_ceiling_down(known, self._planned)
            return self._known.write(self._planned)
        if not ends_run:
            self._idling.rest()
        return start

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of all partitions, regardless of limits, for the lag in the query's progress."""
        available = self._lookup.latest().available
        if available is not self._ends[0]:
            self._ends = available, ends_of(available)
        return self._known.write(self._ends[1])

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between the two offsets."""
        begin, upto = self._known.read(start), self._known.read(end)
        self._read_topics = {where.topic for where in upto.offsets}
        ranges = ranges_between(begin, upto)
        if upto.last and upto is not self._planned and upto != self._initial:
            lost = self._continuity.require_planned(begin, upto, self._lookup.latest().available)
            ranges = {where: span for where, span in ranges.items() if where not in lost}
        return tasks(ranges, upto.incarnations, self._checked)

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._source)

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """The batch up to ``end`` is committed in Spark's checkpoint."""
        if self._options.commit_group_offsets:
            self._pass_to_group(self._selected_of(self._known.read(end)).offsets)

    def _pass_to_group(self, offsets: Offsets) -> None:
        """Commit ``offsets`` for the consumer group, if configured."""
        if self._options.commit_group_offsets:
            assert self._source.groups is not None  # the options were checked
            assert self._options.group is not None
            self._source.groups.commit(self._options.group, offsets)

    def _selected_of(self, known: Progress) -> Progress:
        """Return the part of ``known`` that the options select. Other partitions keep their offsets.

        Raises:
            NotSelected: There are other partitions, and the option ``failOnDataLoss`` is true.
        """
        if known is not self._selected[0]:
            selected = chosen(self._options.selection, known.offsets)
            if len(selected) < len(known.offsets):
                self._report_unselected(sorted(known.offsets.keys() - selected.keys()), alone=not selected)
            self._selected = known, replace(known, offsets=selected)
        return self._selected[1]

    def _report_unselected(self, partitions: Sequence[TopicPartition], *, alone: bool) -> None:
        names = ", ".join(map(str, partitions[:_SHOWN_MAX]))
        more = f" and {len(partitions) - _SHOWN_MAX} more" if len(partitions) > _SHOWN_MAX else ""
        option = option_of(self._options.selection)
        if self._options.fail_on_data_loss:
            raise NotSelected(names + more, option, alone)
        if not self._expected:
            _log.warning("the option %s does not select %s%s, so nothing of it is read", option, names, more)

    @cached_property
    def _checked(self) -> Source:
        """Return the source after checking that brokers know the names in the options."""
        self._source.check(streaming=True, read=self._read_topics)
        return self._source

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self._checked.cluster, self._options, self._clock)

    @cached_property
    def _appeared(self) -> Appeared:
        return Appeared(self._checked.cluster)

    def _since(self, now_ms: int) -> Since | None:
        """Return the start time for the checkpoint of a query that begins now; older versions cannot read it."""
        if not self._options.prove_offsets:
            return None
        return since_of(self._options.start, now_ms, self._checked.cluster.listed_whole)

    def _end_of_batch(self, known: Progress, limit: ReadLimit, ends_run: bool) -> Progress:
        plan = self._plan(known, last_chance=ends_run)
        positions, least = self._checked.cluster.positions, None if ends_run else self._least(limit)
        # Record an accepted loss at once, so that it is not reported again at every look-up.
        if self._trigger_delay.should_wait(plan.ahead, None if plan.passed_over else least, positions):
            return known
        return self._cut(plan, limit)

    def _plan(self, known: Progress, *, last_chance: bool) -> Plan:
        """Return what can be read. A run that would end with this batch waits for partitions that may come back."""
        snapshot = self._lookup.latest(complete=last_chance)
        selected = self._selected_of(known)
        if suspect(selected, snapshot.available) - self._suspect_since_s.keys():
            snapshot = self._lookup.latest(fresh=True, complete=last_chance)  # the cache may be too old
        overdue = self._overdue(selected, snapshot)
        while last_chance and set(self._suspect_since_s) - overdue:
            self._clock.sleep(self._options.offset_poll_ms / 1000)
            snapshot = self._lookup.latest(fresh=True, complete=True)
            overdue = self._overdue(selected, snapshot)
        available, begins = self._appeared.look_up(known, snapshot.available, wait=not last_chance)
        return plan_batch(
            known,
            available,
            begins=begins,
            ceiling=self._ceiling,
            overdue=overdue,
            sentences=self._source.sentences,
            report_loss=self._report_loss,
        )

    def _overdue(self, known: Progress, snapshot: Snapshot) -> set[TopicPartition]:
        """Return the partitions that were suspect for longer than ``lossGraceMs`` when the brokers were asked."""
        before = self._suspect_since_s
        waiting = [where for where in suspect(known, snapshot.available) if not self._lookup.is_away(where)]
        self._suspect_since_s = waited_for(before, waiting, snapshot.since_s)
        for where in sorted(self._suspect_since_s.keys() - before.keys()):
            if where in snapshot.available:
                _log.warning("%s ends before offset %d, which was read; waiting there", where, known.offsets[where])
            else:
                _log.warning("the brokers do not list %s any more; the query waits there until they do", where)
        grace_s = self._options.loss_grace_ms / 1000
        return {where for where, since_s in self._suspect_since_s.items() if snapshot.since_s - since_s >= grace_s}

    def _ends_run(self, limit: ReadLimit) -> bool:
        """Whether the run may end with this batch."""
        return self._ceiling is not None or isinstance(limit, ReadAllAvailable)

    def _bring_ceiling_down(self, known: Progress, end: Progress) -> None:
        """Bring the ends of the run down to boundaries, where a partition continues further back: in another log."""
        ceiling = {} if self._ceiling is None else self._ceiling.offsets
        lowered = {where: at for where, at in end.offsets.items() if at < known.offsets.get(where, at)}
        asked = {where: Cuts(at, [ceiling[where]]) for where, at in lowered.items() if at < ceiling.get(where, at)}
        if self._ceiling is not None and asked:
            found = {where: at for where, (at,) in self._checked.cluster.positions.boundaries(asked).items()}
            self._ceiling = replace(self._ceiling, offsets={**ceiling, **found})

    def _cut(self, plan: Plan, limit: ReadLimit) -> Progress:
        """Return where a planned batch ends under the limits."""
        return plan.end(self._limits(limit), self._checked.cluster.positions)

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits()
        return BatchLimits(
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.trigger_bytes_max,
            limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.trigger_messages_max,
        )

    def _least(self, limit: ReadLimit) -> int | None:
        return limit.min_rows if isinstance(limit, ReadMinRows) else self._options.trigger_messages_min


class RefusedStream(ShippedToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot be read, because of its options or its schema: every call raises ``reason``.

    PySpark's source process hides an error of ``streamReader`` behind its own (it stops a reader that does not exist).
    So this reader raises the error on the first call.
    """

    def __init__(self, reason: ConnectorError) -> None:
        self._reason = reason

    @plain_errors
    def _refuse(self, *values: Any) -> NoReturn:
        raise self._reason

    initialOffset = latestOffset = reportLatestOffset = cast(Any, _refuse)
    getDefaultReadLimit = prepareForTriggerAvailableNow = partitions = read = cast(Any, _refuse)
