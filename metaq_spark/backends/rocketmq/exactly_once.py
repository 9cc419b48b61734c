"""Exactly-once writes to the bundled broker, through the transactions of MetaQ's protocol.

Every broker of the topic reports where it serves that protocol over the same log. Rows become the frames that the
broker itself would store for a send (``metaq.formats.stored_form``). They are put into branches of the batch's
transaction, which the driver decides, exactly as for ``format("metaq")``.

Bodies and properties decide whether a repeated batch has the same rows. The UNIQ_KEY is excluded: it numbers the rows
of a task, and a repetition may get them in another order.

Source: docs/transactions.md, "Exactly once"; docs/adr/0032-one-log-for-two-protocols.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.bundled import MetaQBroker, NotBundled, ask_for_metaq
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError, TopicNotFound
from metaq.formats.checksum import crc32
from metaq.formats.frames import encode_stored
from metaq.formats.rocketmq.batches import decode_batch
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import encode_head, tag_of
from metaq.model import Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms
from metaq.net.retry import ONCE, Attempts, RetryPolicy, persist
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, abort_write, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan, plan_transaction
from metaq_spark.backends.metaq.exactly_once.task import begin_attempt
from metaq_spark.backends.metaq.options import SinkOptions as MetaQOptions
from metaq_spark.backends.rocketmq.options import SinkOptions
from metaq_spark.columns.blocks import MASK, EncodedBlock, of_header
from metaq_spark.errors import ExactlyOnceError, ParticipantMissing
from metaq_spark.options.parsing import ConnectionOptions, TransactionOptions
from metaq_spark.sink.backend import Messages, WriteTask
from metaq_spark.sink.first_look import FirstLook, wait_for_offer

Brokers = Mapping[str, MetaQBroker]
"""The bundled brokers by their RocketMQ names."""

Connections = Callable[[], tuple[SessionPool, NameServerDirectory]]

NO_HOST: Final = host_bytes("0.0.0.0", 0)
"""Born host of rows: the executor's address has no meaning."""

_KEY: Final = b"UNIQ_KEY\x01"
_PAIR_END: Final = b"\x02"


def find_brokers(
    options: SinkOptions, directory: NameServerDirectory, pool: SessionPool, policy: RetryPolicy
) -> dict[str, MetaQBroker]:
    """Ask the brokers of the option ``topic`` where they serve MetaQ's protocol; without it, all brokers of all topics.

    Raises:
        ExactlyOnceError: One of them is not a bundled broker.
        TopicNotFound, MetaqError: A name server or broker could not be asked.
    """

    def homes() -> dict[str, str]:
        found: dict[str, str] = {}
        for topic in [options.topic] if options.topic is not None else directory.topics():
            try:
                for queue in (*directory.queues(topic), *directory.writable(topic)):
                    found.setdefault(queue.broker_name, topic)
            except TopicNotFound:  # a listed one may have been deleted since
                if options.topic is not None:
                    raise
        return found

    asked = persist(homes, policy, SYSTEM_CLOCK)
    return {name: ask_broker(directory, pool, name, topic, policy) for name, topic in asked.items()}


def ask_broker(
    directory: NameServerDirectory, pool: SessionPool, name: str, topic: str, policy: RetryPolicy
) -> MetaQBroker:
    """Ask the broker ``name``, which has ``topic``, where it serves MetaQ's protocol. Raises as ``find_brokers``."""

    def ask() -> MetaQBroker:
        return ask_for_metaq(pool, name, directory.write_address(name, topic=topic))

    try:
        return persist(ask, policy, SYSTEM_CLOCK)
    except NotBundled as error:
        raise ExactlyOnceError(
            f"{error}; a RocketMQ broker has no transactions over several messages, so a batch cannot become readable "
            "as one. Use delivery = at_least_once: if a repeated task has its rows in the same order, each message has "
            'its UNIQ_KEY again, so that dropDuplicates("message_id") or the option dropRepeatedWithin of a read '
            "leaves one of each"
        ) from None


@dataclass(frozen=True, kw_only=True)
class BundledOptions(MetaQOptions):
    """MetaQ options for a write to RocketMQ; ``found`` is its ``found_by``."""

    found: str

    @property
    def found_by(self) -> str:
        return self.found

    @property
    def finds_brokers(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class BundledPlan:
    """``plan`` is carried out with ``options``, at ``brokers``."""

    plan: TransactionPlan
    options: BundledOptions
    brokers: Brokers


class BundledTransaction:
    """Implements ``SinkTransaction`` for a write of ``format("rocketmq")``; made on the driver.

    ``connections`` returns the pool and the directory of the calling process.
    """

    def __init__(self, options: SinkOptions, connections: Connections, streaming: bool) -> None:
        """Name the write and find out whether it was written before. Raises as ``plan_transaction``."""
        self._options, self._connections, self._streaming = options, connections, streaming
        self._batch: BatchName | None = None
        """Of a batch write, once its brokers are looked for again: it keeps its name."""
        self._first = FirstLook.of(lambda: self._find(options.first_policy), streaming=streaming)

    def bundled(self, *, begun: bool) -> BundledPlan:
        """The plan; see ``MetaQTransaction.plan``."""
        policy = self._options.waiting_policy
        return self._first.get(lambda: wait_for_offer(lambda: self._find(ONCE), policy, SYSTEM_CLOCK), begun=begun)

    def _find(self, policy: RetryPolicy) -> BundledPlan:
        pool, directory = self._connections()
        brokers = find_brokers(self._options, directory, pool, policy)
        options = _bundled_options(self._options, brokers)
        plan = plan_transaction(options, self._streaming, RetryingSessions(options, policy=policy))
        return BundledPlan(dataclasses.replace(plan, batch=self._batch or plan.batch), options, brokers)

    @property
    def reach(self) -> ConnectionOptions:
        return self._options if self._first.found is None else self._first.found.options

    def broker_named(self, name: str, topic: str) -> MetaQBroker:
        """A broker of ``topic`` that was not there when the write began. Raises as ``find_brokers``."""
        pool, directory = self._connections()
        return ask_broker(directory, pool, name, topic, self._options.waiting_policy)

    def commit(self, messages: Messages, batch_id: int | None) -> None:
        """Commit the batch; a broker that has left the route is waited for. Raises as ``commit_batch``."""
        self._end(lambda plan, sessions: commit_batch(plan, messages, batch_id, sessions))

    def abort(self) -> None:
        """Undo a failed batch write, or finish it if it was decided; a broker that has left the route is waited for."""
        self._end(abort_write)

    def _end(self, end: Callable[[TransactionPlan, RetryingSessions], None]) -> None:
        asked: set[int] = set()
        attempts = Attempts(self._options.waiting_policy, SYSTEM_CLOCK)
        while True:
            found = self.bundled(begun=True)
            try:
                if left := sorted(asked - set(found.plan.participants)):  # it may have decided the batch just now
                    raise ParticipantMissing(left[0], found.options.found_by)
                asked.update(found.plan.participants)
                return end(found.plan, RetryingSessions(found.options))
            except ParticipantMissing as missing:
                self._connections()[1].invalidate()
                self._batch, self._first = found.plan.batch, FirstLook(error=_NotListed(missing))
                try:
                    attempts.pause_after(_NotListed(missing))
                except _NotListed:
                    raise missing from None


class _NotListed(MetaqError):
    """A broker that has a part of the batch is in no route now."""

    retryable = away = True

    def __init__(self, cause: ParticipantMissing) -> None:
        self._cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        return str(self._cause)


def _bundled_options(options: SinkOptions, brokers: Brokers) -> BundledOptions:
    shared = {each.name: getattr(options, each.name) for each in dataclasses.fields(TransactionOptions)}
    addresses = tuple(dict.fromkeys(broker.address for broker in brokers.values()))
    named = ", ".join(f"{name} = broker {found.broker_id} at {found.address}" for name, found in brokers.items())
    return BundledOptions(
        **shared, brokers=addresses, zookeeper=None, ordered_partitions=None, found=f"{options.found_by} ({named})"
    )


class BranchedBlocks:
    """Puts the blocks of one task attempt into branches, and counts their contents."""

    def __init__(
        self,
        transaction: BundledTransaction,
        task: WriteTask,
        options: SinkOptions,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        found = transaction.bundled(begun=task.follows_others)
        self._attempt = begin_attempt(found.plan, found.options, task, RetryingSessions(found.options))
        self._transaction, self._brokers = transaction, dict(found.brokers)
        self._options, self._now_ms = options, now_ms
        self._counts: dict[TopicPartition, Count] = {}
        self._count = self._size = 0

    def put(self, target: TopicPartition, block: EncodedBlock) -> None:
        """Send the elements in ``block`` as frames. Raises as ``TaskDelivery.put``.

        Raises:
            ExactlyOnceError: The broker was not there when the write began, and is not the bundled one.
        """
        name = target.partition.broker_name
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = self._transaction.broker_named(name, target.topic)
        topic = with_namespace(target.topic, self._options.namespace)
        partition = TopicPartition(topic, Partition(broker.broker_id, target.partition.index))
        frames = to_frames(block, self._now_ms())
        self._attempt.puts.put(partition, broker.address, frames)
        self._count, self._size = self._count + frames.count, self._size + len(frames.data)
        counted = self._counts.get(partition, Count())
        self._counts[partition] = counted.plus(Count(frames.count, frames.fingerprint))

    def finish(self) -> WrittenMessages:
        branches = self._attempt.puts.finish()
        batch, run = self._attempt.batch, self._attempt.run
        return WrittenMessages(self._count, self._size, batch, branches, self._counts, run)

    def give_up(self, error: BaseException) -> None:
        self._attempt.puts.give_up(error)


def to_frames(block: EncodedBlock, born_ms: int = 0) -> EncodedBlock:
    """Convert a block of elements into frames in the stored form; its fingerprint excludes UNIQ_KEYs."""
    fingerprint, frames = 0, []
    head = encode_head(0, 0, born_ms, NO_HOST)
    for body, properties, _ in decode_batch(block.data):
        frames.append(encode_stored(tag_of(properties), head, properties, body))
        fingerprint += _fingerprint(body, properties)
    return EncodedBlock(b"".join(frames), block.count, fingerprint & MASK)


def _fingerprint(body: bytes, properties: bytes) -> int:
    others = b"".join(_pairs_but_key(properties))
    return of_header(len(body), crc32(others, crc32(body)) & 0x7FFFFFFF, 1)


def _pairs_but_key(properties: bytes) -> Iterator[bytes]:
    for pair in properties.split(_PAIR_END):
        if pair and not pair.startswith(_KEY):
            yield pair + _PAIR_END
