"""A read of RocketMQ: implements ``source.backend.Source``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from metaq.backends.rocketmq.errors import OffsetOutOfRange
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import DataMissing, MetaqError
from metaq.formats.rocketmq.tags import TagFilter
from metaq.model import OffsetRange, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.backends.rocketmq.cluster import Cluster
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.group_offsets import BrokerGroups
from metaq_spark.backends.rocketmq.options import NOTATION, SourceOptions
from metaq_spark.backends.rocketmq.range_task import QueuePartition, read_queue
from metaq_spark.backends.rocketmq.small_ranges import read_small
from metaq_spark.offsets import AvailableRanges
from metaq_spark.source.backend import CommittedOffsets, LossSentences, PushedColumns

SENTENCES: Final = LossSentences(
    not_listed=(
        "no name server lists it any more, and no broker has it. Either the topic was deleted, or it has fewer queues "
        "than before. If that is meant to be so, start the query with a new checkpoint"
    ),
    made_again="the topic was deleted and made again. Start the query with a new checkpoint to read what is there now",
    end_lost=(
        "the topic was deleted and made again, or has fewer queues than before, or the broker lost its end, as when a "
        "slave that was behind took over. If the topic was made again, start the query with a new checkpoint"
    ),
    removed="the messages between were removed by its retention",
    put_back="the broker was put back to an older copy, and other messages are stored there now",
)


def _topic(where: TopicPartition) -> Any:
    return where.topic


def _broker_name(where: TopicPartition) -> Any:
    return where.partition.broker_name


def _queue_id(where: TopicPartition) -> Any:
    return where.partition.index


_CONSTANTS: Final = {"topic": (_topic, str), "broker_name": (_broker_name, str), "queue_id": (_queue_id, int)}
_OF_PROCESS: Final = ("cluster", "groups")


class RocketMQSource:
    """Reads with ``options``. ``pool``, ``directory`` and ``clock`` are for tests."""

    notation = NOTATION
    sentences = SENTENCES

    def __init__(
        self,
        options: SourceOptions,
        pool: SessionPool | None = None,
        directory: NameServerDirectory | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.options, self.clock, self._pool, self._directory = options, clock, pool, directory

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process-local objects."""
        kept = {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}
        return kept | {"_pool": None, "_directory": None}

    @property
    def pushed_columns(self) -> PushedColumns:
        """Return the columns of pushed filters; with an SQL condition, no tags can be added."""
        types = None if self.options.sql is not None else "tags"
        return PushedColumns(_CONSTANTS, "queue_offset", "store_timestamp", types, TagFilter.is_tag)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.options, self._pool, self._directory, self.clock)

    @cached_property
    def groups(self) -> CommittedOffsets | None:
        return None if self.options.group is None else BrokerGroups(self.cluster.offsets, self.clock)

    def check(self, *, streaming: bool, read: Collection[str] = ()) -> None:
        options = self.options
        if not options.wait_for_topic:
            self.cluster.require(options.selection, read)
        if options.required_brokers is not None:
            self.cluster.require_brokers("requireBrokers", options.required_brokers, options.selection)
        if options.dead_letter_topic is not None:
            self.cluster.require_writable(options.dead_letter_topic)

    def report_unlisted(self, available: AvailableRanges, *, streaming: bool) -> None:
        """Do nothing: name servers list all queues."""

    def is_data_loss(self, error: MetaqError) -> bool:
        return isinstance(error, DataMissing | OffsetOutOfRange)

    def part(self, where: TopicPartition, offsets: OffsetRange, incarnation: str | None) -> QueuePartition:
        """Return a task's input: the task itself looks up the broker."""
        return QueuePartition(where, offsets)

    def wants_type(self, name: str) -> bool:
        return self.options.subscription.tags.matches(name)

    def with_types(self, types: tuple[str, ...]) -> RocketMQSource:
        options = replace(self.options, tags=Subscription(TagFilter.either(types)))
        return RocketMQSource(options, self._pool, self._directory, self.clock)

    def read(self, parts: Sequence[InputPartition]) -> Iterator[pa.RecordBatch]:
        if self._pool is None or self._directory is None:
            pool, directory = connections_of(self.options)
        else:
            pool, directory = self._pool, self._directory
        own = cast(Sequence[QueuePartition], parts)
        # A single queue is read with one round trip anyway, and as frames from the bundled broker.
        intact = read_small(own, self.options, pool, directory) if len(own) > 1 else {}
        for part in own:
            yield from intact[part] if part in intact else read_queue(part, self.options, pool, directory)
