"""Exactly-once writes to the bundled broker, through the transactions of MetaQ's protocol.

Every broker of the topic says where it serves that protocol over the same log. What rows become is what the broker
itself would store of a send: frames in the stored form (``metaq.formats.stored_form``). They go into branches of the
batch's transaction, and the driver decides it, exactly as for ``format("metaq")``.

Bodies and properties decide whether a repeated batch has the same rows. The UNIQ_KEY is not among them: it numbers
the rows of a task, and a repetition may get them in another order.

Source: docs/transactions.md, "Exactly once"; docs/adr/0032-one-log-for-two-protocols.md.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from metaq.backends.rocketmq.bundled import MetaQBroker, NotBundled, ask_for_metaq
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.checksum import crc32
from metaq.formats.rocketmq.batches import decode_batch
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import encode_head, encode_stored, tag_of
from metaq.model import Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms
from metaq.net.retry import persist
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.commit import MetaQTransaction, WrittenMessages
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.backends.metaq.exactly_once.task import Attempt, begin_attempt
from metaq_spark.backends.metaq.options import SinkOptions as MetaQOptions
from metaq_spark.backends.rocketmq.options import SinkOptions
from metaq_spark.columns.blocks import MASK, Block, of_frame
from metaq_spark.errors import ExactlyOnceError
from metaq_spark.options.parsing import TransactionOptions
from metaq_spark.sink.backend import WriteTask

Brokers = Mapping[str, MetaQBroker]
"""The bundled brokers by the names that RocketMQ's clients know them by."""

NO_HOST: Final = host_bytes("0.0.0.0", 0)
"""Born host of rows: where an executor ran says nothing about them."""

_MESSAGE: Final = struct.Struct(">iiqi")
_KEY: Final = b"UNIQ_KEY\x01"
_PAIR_END: Final = b"\x02"


def find_brokers(
    options: SinkOptions, directory: NameServerDirectory, pool: SessionPool, topic: str | None
) -> dict[str, MetaQBroker]:
    """Ask the brokers of ``topic`` where they serve MetaQ's protocol; ``None``: all brokers of all topics.

    Raises:
        ExactlyOnceError: One of them is not the bundled one.
        TopicNotFound, MetaqError: A name server or broker could not be asked.
    """
    topics = [topic] if topic is not None else directory.topics()
    homes: dict[str, str] = {}
    for each in topics:
        for queue in (*directory.queues(each), *directory.writable(each)):
            homes.setdefault(queue.broker_name, each)
    return {name: _ask(options, directory, pool, name, home) for name, home in homes.items()}


def _ask(options: SinkOptions, directory: NameServerDirectory, pool: SessionPool, name: str, topic: str) -> MetaQBroker:
    def ask() -> MetaQBroker:
        return ask_for_metaq(pool, name, directory.write_address(name, topic=topic))

    try:
        return persist(ask, options.retry_policy, SYSTEM_CLOCK)
    except NotBundled as error:
        raise ExactlyOnceError(
            f"{error}; a RocketMQ broker has no transactions over several messages, so a batch cannot become readable "
            "as one. Use delivery = at_least_once: every message has a UNIQ_KEY that is the same when it is written "
            'again, so that dropDuplicates("message_id") or the option dropRepeatedWithin of a read leaves one of each'
        ) from None


class BundledTransaction(MetaQTransaction):
    """Implements ``Transaction`` for a write of ``format("rocketmq")``; made on the driver."""

    def __init__(self, options: SinkOptions, brokers: Brokers, streaming: bool) -> None:
        """Name the write and find out whether it was written before. Raises as ``plan_transaction``."""
        self.brokers = dict(brokers)
        self._metaq_options = _metaq_options(options, brokers)
        super().__init__(plan_transaction(self._metaq_options, streaming), self._metaq_options)

    def begin(self, task: WriteTask) -> Attempt:
        """Begin a task attempt. Raises as ``begin_attempt``."""
        return begin_attempt(self.plan, self._metaq_options, task, RetryingSessions(self._metaq_options))


def _metaq_options(options: SinkOptions, brokers: Brokers) -> MetaQOptions:
    shared = {each.name: getattr(options, each.name) for each in dataclasses.fields(TransactionOptions)}
    addresses = tuple(dict.fromkeys(broker.address for broker in brokers.values()))
    return MetaQOptions(**shared, brokers=addresses, zookeeper=None, ordered_partitions=None)


class BranchedBlocks:
    """The blocks of one task attempt on their way into branches, and the count of what they contain."""

    def __init__(
        self, attempt: Attempt, brokers: Brokers, options: SinkOptions, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self._attempt, self._brokers, self._options, self._now_ms = attempt, brokers, options, now_ms
        self._counts: dict[TopicPartition, Count] = {}
        self._count = self._size = 0

    def put(self, target: TopicPartition, block: Block) -> None:
        """Send the elements in ``block`` as frames. Raises as ``Delivery.put``.

        Raises:
            ExactlyOnceError: The broker was not there when the write began.
        """
        name = target.partition.broker_name
        broker = self._brokers.get(name)
        if broker is None:
            raise ExactlyOnceError(f"broker {name!r} got topic {target.topic!r} after the write began; run it again")
        topic = with_namespace(target.topic, self._options.namespace)
        partition = TopicPartition(topic, Partition(broker.broker_id, target.partition.index))
        frames = to_frames(block, self._now_ms())
        self._attempt.puts.put(partition, broker.address, frames)
        self._count, self._size = self._count + frames.count, self._size + len(frames.data)
        counted = self._counts.get(partition, Count())
        self._counts[partition] = counted.plus(Count(frames.count, frames.fingerprint))

    def finish(self) -> WrittenMessages:
        """See ``Delivery``."""
        branches = self._attempt.puts.finish()
        batch, run = self._attempt.batch, self._attempt.run
        return WrittenMessages(self._count, self._size, batch, branches, self._counts, run)

    def give_up(self, error: BaseException) -> None:
        """See ``Delivery``."""
        self._attempt.puts.give_up(error)


def to_frames(block: Block, born_ms: int = 0) -> Block:
    """Return a block of elements as one of frames in the stored form; its fingerprint leaves UNIQ_KEYs out."""
    fingerprint, frames = 0, []
    head = encode_head(0, 0, born_ms, NO_HOST)
    for body, properties, _ in decode_batch(block.data):
        frames.append(encode_stored(tag_of(properties), head, properties, body))
        fingerprint += _fingerprint(body, properties)
    return Block(b"".join(frames), block.count, fingerprint & MASK)


def _fingerprint(body: bytes, properties: bytes) -> int:
    others = b"".join(_pairs_but_key(properties))
    return of_frame(_MESSAGE.pack(len(body), crc32(others, crc32(body)) & 0x7FFFFFFF, 0, 1))


def _pairs_but_key(properties: bytes) -> Iterator[bytes]:
    for pair in properties.split(_PAIR_END):
        if pair and not pair.startswith(_KEY):
            yield pair + _PAIR_END
