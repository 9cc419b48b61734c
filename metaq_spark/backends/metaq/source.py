"""A read of MetaQ: implements ``source.backend.Source``.

A broker may offer partitions that it does not list: empty ones, or ones not opened since its restart. A Java broker
opens only some of its partitions when it starts; until their next put, the others answer 404 as if they were empty. A
broker that reports incarnations lists everything on its disk, so a missing partition has no messages. For other brokers
it is unknown. Such a partition fails a batch read that names it, as a loss does. Otherwise a warning names it: a
partition of a new topic looks the same, and a stream reads it from its start when it is listed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType

from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.unlisted import unlisted_text
from metaq.errors import BrokerError, DataMissing, MetaqError, TopicNotFound
from metaq.formats.message_types import is_message_type
from metaq.model import OffsetRange, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.statuses import NOT_FOUND
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.group_offsets import required_groups
from metaq_spark.backends.metaq.options import NOTATION, SourceOptions
from metaq_spark.backends.metaq.partition_reader import RangePartition, read_partition
from metaq_spark.offsets import AvailableRanges
from metaq_spark.options.positions import Specific, Timestamps
from metaq_spark.options.selection import Assigned, Selection, topics_of
from metaq_spark.source.backend import CommittedOffsets, LossSentences, PushedColumns
from metaq_spark.source.losses import report_data_loss

SENTENCES: Final = LossSentences(
    not_listed=(
        "the brokers do not list it any more. Either it was deleted, or its broker has not opened it since it was "
        "restarted: a Java broker opens some of its partitions only with their next put. If it was deleted for good, "
        "start the query with a new checkpoint"
    ),
    made_again=(
        "the topic was deleted and made again, or the broker has another data folder than before (metaq-broker dev "
        "without a folder has a new one each time). Start the query with a new checkpoint to read what is there now, "
        "or start the broker with the data folder that it had"
    ),
    end_lost=(
        "the topic was deleted and made again, or the broker lost its end. Restore the broker's data folder, with the "
        "broker stopped; if the topic was made again, start the query with a new checkpoint"
    ),
    removed="the messages between were removed by its delete policy",
    put_back=(
        "the broker's data folder was put back to an older copy, or the topic was deleted and made again, and other "
        "messages are stored there now"
    ),
)


def _topic(where: TopicPartition) -> Any:
    return where.topic


def _broker_id(where: TopicPartition) -> Any:
    return where.partition.broker_id


def _index(where: TopicPartition) -> Any:
    return where.partition.index


_CONSTANTS: Final = {"topic": (_topic, str), "broker_id": (_broker_id, int), "partition": (_index, int)}


class MetaQSource:
    """Reads with ``options``. ``pool``, ``clock`` and ``groups`` are for tests."""

    notation = NOTATION
    sentences = SENTENCES

    def __init__(
        self,
        options: SourceOptions,
        pool: SessionPool | None = None,
        clock: Clock = SYSTEM_CLOCK,
        groups: CommittedOffsets | None = None,
    ) -> None:
        self.options, self.clock, self._pool = options, clock, pool
        self.groups = required_groups(options, groups)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process-local objects."""
        kept = {name: value for name, value in self.__dict__.items() if name != "cluster"}
        return kept | {"_pool": None}

    @property
    def pushed_columns(self) -> PushedColumns:
        """Return the columns of pushed filters; a condition on an attribute that is a map does not apply to
        its text.
        """
        text = isinstance(self.options.row_layout.types.get("attribute") or StringType(), StringType)
        return PushedColumns(_CONSTANTS, "offset", "timestamp", "attribute" if text else None, is_message_type)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.options, self._pool, self.clock)

    def check(self, *, streaming: bool, read: Collection[str] = ()) -> None:
        options = self.options
        if not options.wait_for_topic:
            self.cluster.require(options.selection, stored=not streaming, read=read)
        if options.required_brokers is not None:
            self.cluster.require_brokers("requireBrokers", options.required_brokers, options.selection)
        if options.dead_letter_topic is not None:
            self.cluster.writable(options.dead_letter_topic)  # an unknown one must not be found out at the first damage

    def report_unlisted(self, available: AvailableRanges, *, streaming: bool) -> None:
        report_unopened(self.options, available, self.cluster, streaming=streaming)

    def is_data_loss(self, error: MetaqError) -> bool:
        return isinstance(error, DataMissing) or (isinstance(error, BrokerError) and error.code == NOT_FOUND)

    def part(self, where: TopicPartition, offsets: OffsetRange, incarnation: str | None) -> RangePartition:
        return RangePartition(where, self.cluster.address_of(where), offsets, incarnation)

    def wants_type(self, name: str) -> bool:
        return self.options.message_types is None or name in self.options.message_types

    def with_types(self, types: tuple[str, ...]) -> MetaQSource:
        return MetaQSource(replace(self.options, message_types=types), self._pool, self.clock, self.groups)

    def read(self, parts: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        from metaq_spark.backends.metaq.small_ranges import read_small  # with the decoder, which only tasks need

        own = cast(Sequence[RangePartition], parts)
        intact = read_small(own, self.options, self._pool)
        for part in own:
            yield from intact[part] if part in intact else read_partition(part, self.options, self._pool)


_log = logging.getLogger(__name__)


def report_unopened(options: SourceOptions, available: AvailableRanges, cluster: Cluster, *, streaming: bool) -> None:
    """Fail or warn about unlisted partitions that may have messages; see the module.

    Raises:
        DataLoss: An option of a batch read names one, and the option ``failOnDataLoss`` is true.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """
    if available and all(one.incarnation is not None for one in available.values()):
        return
    missing = _unknowable(_offered(options.selection, available, cluster) - available.keys(), cluster)
    named = [] if streaming or options.wait_for_topic else sorted(_named(options) & missing)
    if named:
        report_data_loss(unlisted_text(list(map(str, named))), fail=options.fail_on_data_loss)
    if others := sorted(missing.difference(named)):
        _log.warning("%s", unlisted_text(list(map(str, others))))


def _offered(selection: Selection, available: AvailableRanges, cluster: Cluster) -> set[TopicPartition]:
    if isinstance(selection, Assigned):
        return _assigned(selection)
    offered: set[TopicPartition] = set()
    for topic in topics_of(selection) or sorted({where.topic for where in available}):
        with suppress(TopicNotFound):  # closed for writing
            offered.update(TopicPartition(topic, partition) for partition in cluster.writable(topic))
    return offered


def _assigned(selection: Assigned) -> set[TopicPartition]:
    return {TopicPartition(topic, each) for topic, found in selection.partitions.items() for each in found}


def _named(options: SourceOptions) -> set[TopicPartition]:
    """The partitions that an option names one by one."""
    named = _assigned(options.selection) if isinstance(options.selection, Assigned) else set()
    for position in (options.start, options.end):
        match position:
            case Specific(offsets):
                named |= offsets.keys()
            case Timestamps(of_each_ms=of_each_ms):
                named |= of_each_ms.keys()
    return named


def _unknowable(partitions: Iterable[TopicPartition], cluster: Cluster) -> set[TopicPartition]:
    """Return the partitions on brokers that do not report incarnations."""
    return {where for where, reported in cluster.reports_incarnations(sorted(partitions)).items() if not reported}
