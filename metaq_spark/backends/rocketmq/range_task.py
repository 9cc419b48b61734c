"""One task of a read: a range of one queue, pulled and turned into record batches. Runs in Spark's Python workers.

::

    range ──▶ pulls, several under way ──▶ lengths, topic, queue, order ──▶ decoder: checksum, columns ──▶ batches
                  │ moved, missing             │                                │ damaged
                  ▼                            ▼                                ▼
              data loss                   onCorrupt: fail, skip, deadletter

The bundled broker sends frames instead of records where possible; special cases use pulls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.backends.rocketmq.errors import AccessDenied, OffsetOutOfRange
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.frame_reader import PULLED_AFTER_FAULT, Measures, read_range
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, ReadFrom, pull_range
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import DataMissing, MetaqError, ProtocolError
from metaq.formats.stored_records import FrameRun
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.damage import BadRecordHandler, damage_handler
from metaq_spark.backends.rocketmq.options import SourceOptions
from metaq_spark.backends.rocketmq.record_measure import RecordMeasure, measure_frames
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker, RepeatedMessages
from metaq_spark.columns.rocketmq.checks import ExpectedQueue, FrameUnusable, UnusableRecord
from metaq_spark.columns.rocketmq.decode import RecordDecoder
from metaq_spark.columns.schema import arrow_schema
from metaq_spark.errors import ConnectorError, ReadFailed
from metaq_spark.source.losses import report_data_loss

_log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 2.0
"""Until a master that was frozen knows that there is another one."""

WAIT_S: Final = 30.0
"""Seconds to wait for messages that a broker has announced but does not return yet."""

_NEEDED: Final = "a read needs SUB and GET on the topic, and SUB on its group"


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """The input of a task: messages of a queue."""

    source: TopicPartition
    offsets: OffsetRange


def read_queue(
    part: QueuePartition,
    options: SourceOptions,
    pool: SessionPool | None = None,
    directory: NameServerDirectory | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the range, in order, as batches of the selected columns.

    Raises:
        DataLoss: Messages of the range are deleted and the option ``failOnDataLoss`` is true.
        CorruptRecord: A record cannot be used and the option ``onCorrupt`` is ``fail``.
        ReadFailed: The broker could not be asked, even after retries, or refused.
    """
    if pool is None or directory is None:
        pool, directory = connections_of(options)
    task = QueueTask(part.source, part.offsets, options, pool, directory)
    try:
        yield from task.batches()
    except (UnusableRecord, ConnectorError):
        raise
    except MetaqError as error:
        raise read_failed(part, task.position, error, options) from error


class QueueTask:
    """Yields the batches of ``offsets``; everything before ``position`` is decoded."""

    def __init__(
        self,
        source: TopicPartition,
        offsets: OffsetRange,
        options: SourceOptions,
        pool: SessionPool,
        directory: NameServerDirectory,
    ) -> None:
        self._source, self._options, self._pool, self._directory = source, options, pool, directory
        self.position, self._end, self._pulled_until = offsets.start, offsets.end, 0
        self._missing_from, self._has_asked_for_damage = -1, False
        self._report_loss = partial(report_data_loss, fail=options.fail_on_data_loss)
        self._handler: BadRecordHandler = damage_handler(options, pool, directory)
        subscription = options.subscription
        dense = subscription.is_all and not options.compacted_topics
        self._queue = ExpectedQueue(
            with_namespace(source.topic, directory.namespace).encode(), source.partition.index, dense
        )
        self._measure = RecordMeasure(str(source), self._queue)
        self._settings = _settings(options, subscription)
        schema = arrow_schema(options.row_layout)
        self._repeated = None
        if options.drop_repeated_within is not None:
            self._repeated = RepeatedMessages(schema, options.drop_repeated_within)
            schema = self._repeated.schema
        value_type = options.row_layout.types.get("value")
        maker = RecordBatchMaker(source, schema, value_type, subscription.tags, options.row_layout.json)
        self._decoder = RecordDecoder(self._queue, maker, self._report_gap)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the range; raise for data loss and damage unless the options accept it."""
        if self._repeated is not None:
            self._look_back(self._repeated)
        for batch in self._decoded():
            kept = batch if self._repeated is None else self._repeated.without(batch)
            if kept.num_rows:
                yield kept

    def _decoded(self) -> Iterator[pa.RecordBatch]:
        while self.position < self._end:
            try:
                yield from self._pulled()
            except FrameUnusable as found:
                self.position = found.offset
                self._pulled_until = found.offset + PULLED_AFTER_FAULT
            except UnusableRecord as damage:
                self.position = damage.offset  # the records before it are decoded
                if self._is_asked_again_for(damage):
                    continue
                if self._handler.fails:
                    raise
                self._handler.handle(self._source, damage)
                self.position = damage.offset + damage.count
            except OffsetOutOfRange as moved:
                if moved.lost or not self._is_asked_again():
                    self._report_loss(str(moved))
                    self.position = max(self.position, min(moved.first, self._end)) if moved.lost else self._end
            except DataMissing as missing:  # for so long that another master would have been found
                self._report_loss(str(missing))
                self.position = self._end
        yield from self._decoder.flush()

    def _is_asked_again(self) -> bool:
        """Return whether messages that were planned and are beyond the queue's end are asked for again: once, with a
        new route.

        A master that was frozen answers for a moment after another one took its place, and lacks what that was sent.
        """
        if self._missing_from == self.position:
            return False
        self._missing_from = self.position
        _log.warning("%s ends before offset %d; asking again in %g s", self._source, self._end, ASK_AGAIN_S)
        self._directory.invalidate()
        self._pool.clock.sleep(ASK_AGAIN_S)
        return True

    def _is_asked_again_for(self, damage: UnusableRecord) -> bool:
        """Return whether a damaged record is asked for again, with a new route: the first one of the task.

        It may be on the disk of a master that was frozen, and not on the disk of the one that took its place.
        """
        has_asked, self._has_asked_for_damage = self._has_asked_for_damage, True
        if not has_asked:
            _log.warning("%s; asking again", damage)
            self._directory.invalidate()
        return not has_asked

    def _pulled(self) -> Iterator[pa.RecordBatch]:
        first, bytes_seen = self.position, 0
        runs = read_range(
            self._pool, self._directory, self._source.topic, self._source.partition,
            OffsetRange(self.position, self._end), self._settings,
            measures=Measures(self._measure, measure_frames), pulled_until=self._pulled_until,
        )  # fmt: skip
        with closing(runs):
            for run in runs:
                bytes_seen += len(run.data)
                left = bytes_seen * (self._end - run.start) // max(1, run.end - first)
                if isinstance(run, FrameRun):
                    yield from self._decoder.decode_frames(run, left)
                else:
                    yield from self._decoder.decode(run.data, run.start, run.end, left)
                self.position = run.end

    def _look_back(self, repeated: RepeatedMessages) -> None:
        """Record the keys of the messages before the range, as far as they are stored."""
        start = max(0, self.position - repeated.within)
        maker = RecordBatchMaker(self._source, repeated.key_schema, None, self._options.subscription.tags)
        queue = ExpectedQueue(self._queue.topic, self._queue.queue_id, dense=False)
        decoder = RecordDecoder(queue, maker, lambda *_: None)
        while start < self.position:
            try:
                runs = pull_range(
                    self._pool, self._directory, self._source.topic, self._source.partition,
                    OffsetRange(start, self.position), self._settings, measure=self._measure,
                )  # fmt: skip
                with closing(runs):
                    for run in runs:
                        for batch in decoder.decode(run.data, run.start, run.end):
                            repeated.note(batch)
                        start = run.end
            except OffsetOutOfRange as moved:
                if moved.lost:
                    start = max(start + 1, moved.first)
                elif not self._is_asked_again():
                    start = self._not_looked_back(moved)
            except DataMissing as missing:
                start = self._not_looked_back(missing)
            except UnusableRecord as damage:
                if not self._is_asked_again_for(damage):
                    start = damage.offset + damage.count
        for batch in decoder.flush():
            repeated.note(batch)

    def _not_looked_back(self, error: MetaqError) -> int:
        """Log that messages before the range cannot be read; return the range's start."""
        _log.warning("%s; what repeats messages before offset %d is not dropped", error, self.position)
        return self.position

    def _report_gap(self, start: int, end: int) -> None:
        self._report_loss(f"{self._source}: the broker sent no messages with the offsets {start} to {end - 1}")


def _settings(options: SourceOptions, subscription: Subscription) -> PullSettings:
    return PullSettings(
        group=options.asking_group,
        subscription=subscription,
        messages_max=options.pull_messages,
        in_flight=options.pulls_in_flight,
        bytes_max=options.fetch_bytes,
        wait_s=WAIT_S,
        read_from=ReadFrom(options.read_from),
        gaps_allowed=options.compacted_topics,
        policy=options.waiting_policy,
    )


def read_failed(part: QueuePartition, at: int, error: MetaqError, options: SourceOptions) -> ReadFailed:
    """Return the error for a read that ends at offset ``at``, because of ``error``."""
    return ReadFailed(str(part.source), at, str(error), _advice(error, options))


def _advice(error: MetaqError, options: SourceOptions) -> str:
    if isinstance(error, AccessDenied):
        return f"Of an account, {_NEEDED}"
    if isinstance(error, ProtocolError):
        return "Check that the address is a RocketMQ broker's, and what the broker's log says"
    return options.advice_after(error, "The broker's log says more")
