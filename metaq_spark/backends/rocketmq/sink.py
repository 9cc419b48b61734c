"""A write to RocketMQ: implements ``sink.backend.Sink``, including at-least-once delivery.

Every message has a UNIQ_KEY that is the same when a task or a micro-batch is repeated with its rows in the same order.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType, StructType

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.body_limits import BODY_BYTES_MAX, body_bytes_max
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import TopicNotFound
from metaq.model import Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.retry import ONCE, RetryPolicy, persist
from metaq_spark.backends.rocketmq.background import BackgroundWriter, Send
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.exactly_once import BranchedBlocks, BundledTransaction
from metaq_spark.backends.rocketmq.options import SinkOptions
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.columns.headers import properties_of_headers
from metaq_spark.columns.rocketmq.encode import Element, ElementEncoder, RowColumns, SingleMessage
from metaq_spark.columns.rocketmq.unique_keys import key_prefix
from metaq_spark.columns.row_layout import HEADERS
from metaq_spark.errors import ColumnError
from metaq_spark.options.parsing import ConnectionOptions
from metaq_spark.sink.backend import QUERY_ID, WriteTask
from metaq_spark.sink.columns import ColumnTypes, SinkColumn, SinkColumns, find_sink_columns
from metaq_spark.sink.first_look import FirstLook, wait_for_offer

SINK_COLUMNS: Final[ColumnTypes] = {
    "value": SinkColumn(
        (BinaryType, StringType),
        "The body, at most 4 MiB, or `maxMessageSize` of the brokers where that is more. The only column that is "
        "needed.",
    ),
    "topic": SinkColumn((StringType,), "The topic, where the option `topic` is not given."),
    "tags": SinkColumn(
        (StringType,),
        "The tag: one. A tag with `||` is refused: it stands between the tags of a subscription, so that no consumer "
        "could ask for it. A single bar is taken; 5.x's gRPC clients refuse it.",
    ),
    "keys": SinkColumn((StringType, ArrayType), "Keys to look the message up by. A string is taken as it is."),
    "properties": SinkColumn(
        (MapType,),
        "Properties of your own. Those with a meaning of their own (`KEYS`, `TAGS`, `DELAY`, `UNIQ_KEY`, `CLUSTER` "
        "...) are left out, so that the properties of a read can be written again. Null values are left out.",
    ),
    "headers": SinkColumn(
        (ArrayType,),
        "Instead of `properties`: headers as Kafka's sink takes them. Their values must be UTF-8.",
        HEADERS,
    ),
    "key": SinkColumn(
        (BinaryType, StringType, IntegerType, LongType),
        "Rows with the same key go to the same queue: CRC-32 of the key, modulo the number of queues.",
    ),
    "queue": SinkColumn(
        (IntegerType,),
        "The place in the list of the topic's queues, sorted by broker name and queue id; with one broker the queue "
        "id. Goes before `key`.",
    ),
    "delay_level": SinkColumn(
        (IntegerType,),
        "1 to 18: the broker delivers the message after 1 s, 5 s, ... 2 h. Such messages are sent one by one.",
    ),
}
"""Every column of a write. Only ``value`` is required."""

STORED_OVERHEAD: Final = 320
"""Limit on bytes that a broker adds to a message of a batch, and counts in the batch's limit."""


@dataclass(frozen=True)
class SentMessages(WriterCommitMessage):
    """What a task has stored: the number of messages, and their bytes as sent."""

    message_count: int
    sent_bytes: int


class RocketMQSink:
    """Writes with ``options``. ``pool`` and ``directory`` are for tests.

    Raises:
        ColumnError: The DataFrame's columns are not valid for a write.
        TopicNotFound: No broker accepts messages for the topic of the option.
        ExactlyOnceError: A broker of the topic cannot take part in exactly-once delivery.
        MetaqError: No name server could be asked.
    """

    def __init__(
        self,
        options: SinkOptions,
        schema: StructType,
        *,
        streaming: bool,
        pool: SessionPool | None = None,
        directory: NameServerDirectory | None = None,
    ) -> None:
        self.options, self._pool, self._directory = options, pool, directory
        self.columns: SinkColumns = find_sink_columns(schema, options.topic, SINK_COLUMNS, "queue")
        _check_nested(schema)
        self._write = None if streaming else uuid.uuid4().hex
        self._queues: FirstLook[list[Partition]] = FirstLook([])
        topic, directory = options.topic, self._connections()[1]
        if topic is not None:
            look = partial(writable_queues, directory, topic, options.first_policy)
            self._queues = FirstLook.of(look, streaming=streaming)
        self.transaction = self._transaction(streaming) if options.exactly_once else None

    def _transaction(self, streaming: bool) -> BundledTransaction:
        if "delay_level" in self.columns.others:
            raise ColumnError("delay_level", "delivery = exactly_once cannot delay messages; use at_least_once")
        return BundledTransaction(self.options, self._connections, streaming)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process-local objects."""
        return self.__dict__ | {"_pool": None, "_directory": None}

    @property
    def reach(self) -> ConnectionOptions:
        return self.options if self.transaction is None else self.transaction.reach

    def begin(self, task: WriteTask) -> RocketMQDelivery:
        write = self._write or task.local_property(QUERY_ID) or uuid.uuid4().hex
        batch_id = 0 if self._write else task.batch_id or 0
        prefix = key_prefix(write, batch_id, task.number)
        pool, directory = self._connections()
        queues = TaskQueues(self.options, self._queues, pool, directory, begun=task.follows_others)
        blocks: Blocks = AcknowledgedBlocks(self.options, pool, directory)
        if self.transaction is not None:
            blocks = BranchedBlocks(self.transaction, task, self.options)
        return RocketMQDelivery(self.columns, self.options, prefix, task.number, queues, blocks)

    def _connections(self) -> tuple[SessionPool, NameServerDirectory]:
        if self._pool is None or self._directory is None:
            return connections_of(self.options)
        return self._pool, self._directory


class TaskQueues:
    """The writable queues of a task's topics; the topic of the option is known, others are looked up once.

    ``begun``: the query has written before, so wait for brokers that are away.
    """

    def __init__(
        self,
        options: SinkOptions,
        known: FirstLook[list[Partition]],
        pool: SessionPool,
        directory: NameServerDirectory,
        *,
        begun: bool,
    ) -> None:
        self._options, self._known, self._begun = options, known, begun
        self._pool, self._directory = pool, directory
        self._queues: dict[str, list[Partition]] = {}

    def partitions_of(self, topic: str) -> Sequence[Partition]:
        if topic not in self._queues:
            known = self._known.get(lambda: self._find(topic), begun=self._begun)
            self._queues[topic] = known or self._find(topic)
        return self._queues[topic]

    def value_bytes_max(self) -> int:
        """How large a message all brokers take that this task has written to, or writes to now."""
        brokers = {queue.broker_name: topic for topic, queues in self._queues.items() for queue in queues}
        policy = self._options.waiting_policy if self._begun else self._options.first_policy
        return persist(lambda: self._smallest_limit(brokers), policy, SYSTEM_CLOCK)

    def _smallest_limit(self, brokers: Mapping[str, str]) -> int:
        where = {name: self._directory.write_address(name, topic=topic) for name, topic in brokers.items()}
        return min(body_bytes_max(self._pool, name, address) for name, address in where.items())

    def _find(self, topic: str) -> list[Partition]:
        if not self._begun:
            return writable_queues(self._directory, topic, self._options.first_policy)
        policy = self._options.waiting_policy
        return wait_for_offer(lambda: writable_queues(self._directory, topic, ONCE), policy, SYSTEM_CLOCK)


def writable_queues(directory: NameServerDirectory, topic: str, policy: RetryPolicy) -> list[Partition]:
    """Return the queues that accept messages for ``topic``, at least one.

    Raises:
        TopicNotFound: There is none.
    """
    queues = persist(lambda: directory.writable_or_new(topic), policy, SYSTEM_CLOCK)
    if not queues:
        raise TopicNotFound(topic, [f"{server} (with write permission)" for server in directory.servers])
    return queues


def _check_nested(schema: StructType) -> None:
    """The parts of arrays and maps are strings."""
    for column in schema.fields:
        kind = column.dataType
        if column.name.lower() == "headers":
            continue  # it was checked as a whole
        parts = (
            [kind.elementType] if isinstance(kind, ArrayType)
            else [kind.keyType, kind.valueType] if isinstance(kind, MapType)
            else []
        )  # fmt: skip
        if not all(isinstance(part, StringType) for part in parts):
            wanted = "array<string>" if isinstance(kind, ArrayType) else "map<string,string>"
            raise ColumnError(column.name, f"type {kind.simpleString()} is not allowed; it must be {wanted}")


class Blocks(Protocol):
    """The delivery of a task's blocks to their brokers, and its guarantees: the rest of ``TaskDelivery``."""

    def put(self, target: TopicPartition, block: EncodedBlock) -> None: ...

    def finish(self) -> WriterCommitMessage: ...

    def give_up(self, error: BaseException) -> None: ...


class RocketMQDelivery:
    """Implements ``TaskDelivery``: rows become elements, which ``blocks`` takes."""

    def __init__(
        self,
        columns: SinkColumns,
        options: SinkOptions,
        prefix: bytes,
        task: int,
        queues: TaskQueues,
        blocks: Blocks,
    ) -> None:
        self._columns, self._options, self._prefix = columns, options, prefix
        self._place = f"the input of task {task}"
        self._queues, self.partitions_of = queues, queues.partitions_of
        self.put, self.finish, self.give_up = blocks.put, blocks.finish, blocks.give_up

    def require(self, target: TopicPartition) -> None:
        """Do nothing: all queues of ``partitions_of`` accept messages."""

    def encoder(self, batch: pa.RecordBatch, first_row: int) -> ElementEncoder:
        others = self._columns.others

        def column(name: str) -> pa.Array | None:
            return None if name not in others else batch.column(others[name])

        rows = RowColumns(
            batch.column(self._columns.value),
            column("tags"),
            column("keys"),
            self._properties(batch, first_row),
            column("delay_level"),
        )
        return ElementEncoder(rows, self._prefix, first_row, self._place, value_bytes_max=self._queues.value_bytes_max)

    def _properties(self, batch: pa.RecordBatch, first_row: int) -> pa.MapArray | None:
        others = self._columns.others
        if "headers" in others:
            return properties_of_headers(batch.column(others["headers"]), self._place, first_row)
        return None if "properties" not in others else batch.column(others["properties"])

    def open_block(self) -> OpenBlock:
        """Return a block with at most as many messages as a broker accepts at this size, including its overhead."""
        size = self._options.block_bytes
        return OpenBlock(size, min(self._options.block_messages, (BODY_BYTES_MAX - size) // STORED_OVERHEAD))


class AcknowledgedBlocks:
    """Implements ``Blocks``: every block is stored when ``finish`` returns; some may be stored twice."""

    def __init__(self, options: SinkOptions, pool: SessionPool, directory: NameServerDirectory) -> None:
        self._options, self._pool, self._directory = options, pool, directory
        self._writers: dict[str, BackgroundWriter] = {}
        self._count = self._size = 0

    def put(self, target: TopicPartition, block: EncodedBlock) -> None:
        topic, queue = target.topic, target.partition.index
        if isinstance(block, SingleMessage) or (block.count == 1 and len(block.data) > self._options.block_bytes):
            element = Element.of(block.data)
            send: Send = partial(_send, topic, queue, element)
        else:
            send = partial(_write, topic, queue, block)
        self._writer(target.partition.broker_name).put(send, len(block.data))
        self._count, self._size = self._count + block.count, self._size + len(block.data)

    def _writer(self, broker_name: str) -> BackgroundWriter:
        writer = self._writers.get(broker_name)
        if writer is None:
            writer = self._writers[broker_name] = BackgroundWriter(
                BatchWriter(
                    self._pool, self._directory, broker_name,
                    group=self._options.asking_group, policy=self._options.waiting_policy, receipts=False,
                )
            )  # fmt: skip
        return writer

    def finish(self) -> SentMessages:
        for writer in self._writers.values():
            writer.finish()
        return SentMessages(self._count, self._size)

    def give_up(self, error: BaseException) -> None:
        for writer in self._writers.values():
            writer.give_up()


def _send(topic: str, queue: int, element: Element, writer: BatchWriter) -> None:
    writer.send(topic, queue, element.body, element.properties.decode())


def _write(topic: str, queue: int, block: EncodedBlock, writer: BatchWriter) -> None:
    writer.write(topic, queue, block.data, block.count)
