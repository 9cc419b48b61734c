"""The broker's core: puts, reads and offset lookups on the partitions, with MetaQ's rules.

It knows no command class and no connection: every front end calls the same methods with plain values and gets outcome
values. Everything runs on the event-loop thread and never waits for the disk. ``append`` takes all messages of clients:
it writes a block of frames, returns at once, and calls back when the block may be acknowledged. Only copies of another
broker's log do not pass it (``replication/local.py``).

Source: docs/protocol.md; the order of checks is MetaQ's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from metaq.errors import CorruptFrame, MetaqError
from metaq.formats.frame_block import BlockRefused, FrameBlock, check_count
from metaq.formats.frames import frame_bytes
from metaq.formats.message_id import EPOCH_MS, IDS_PER_MS, LATEST_MS, IdRange, IdWorker, timestamp_ms
from metaq.formats.message_types import Selection, encode_types, select, select_run
from metaq.model import INT64_MAX
from metaq_broker.clock import Clock
from metaq_broker.log.engine.appends import Append, Terms, sort_out
from metaq_broker.log.engine.gates import NoDiskGuard, PutGate, Space
from metaq_broker.log.engine.id_clock import IdClock
from metaq_broker.log.engine.outcomes import (
    AllRejected,
    Appended,
    BlockInvalid,
    ClockImplausible,
    DiskFull,
    InsideMessage,
    NothingAt,
    OffsetNotStored,
    PartitionClosed,
    PartitionEmpty,
    PartitionLimit,
    PartitionUnavailable,
    PartitionUnknown,
    Refusal,
    SizeInvalid,
    StorageFailed,
    TopicReserved,
    TopicUnknown,
    TypesInvalid,
)
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.engine.type_filter import BetweenBoundaries, LargeFrame, Pick, scan
from metaq_broker.log.files.errors import LogFailed, LogFull, is_disk_full
from metaq_broker.log.files.open_files import OpenFiles
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import ReadAtEnd, ReadMoved, Slice
from metaq_broker.log.sync.group_commit import GroupCommit, OnReadable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.statistics import Statistics

ANY_PARTITION: Final = -1
"""The partition of a put that leaves the choice to the broker."""

NO_INCARNATION: Final = "-"
"""The incarnation of a partition of which nothing is durable yet."""

NO_IDS: Final = IdRange(EPOCH_MS, 0, 0, 0)
"""Committed messages have ids already."""

OffsetQuestion = Literal["segment", "boundary", "timestamp", "ordinal", "message", "incarnation"]
OnDurable = Callable[[StorageFailed | None], None]
"""Called when a block may be acknowledged, or with the failure if it never may."""


_ANSWERS: Final[dict[OffsetQuestion, Callable[[PartitionLog, int], int | str]]] = {
    "segment": PartitionLog.segment_start,
    "boundary": PartitionLog.boundary,
    "timestamp": PartitionLog.first_at,
    "ordinal": PartitionLog.ordinal,
    "message": PartitionLog.offset_of_message,
    "incarnation": lambda log, _offset: log.incarnation or NO_INCARNATION,
}


class Engine:
    """The partitions of one broker, with their rules."""

    def __init__(
        self,
        config: BrokerConfig,
        stores: TopicStores,
        commit: GroupCommit,
        ids: IdWorker,
        clock: Clock,
        statistics: Statistics,
        space: Space | None = None,
    ) -> None:
        self.config = config
        self.stores = stores
        self.statistics = statistics
        self.space = space or NoDiskGuard()
        self.gate = PutGate()
        self.port = config.system.server_port
        """Where clients connect."""
        self._system = config.system
        self._files = OpenFiles.of_process()
        self._commit = commit
        self._ids = ids
        self._clock = clock
        self.id_clock = IdClock(clock, ids.step_back)
        self._closed: set[tuple[str, int]] = set()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # ---- putting

    def pick_partition(self, topic: str) -> int:
        """Return a random partition of ``topic`` that is open, or ``ANY_PARTITION`` when there is none to pick."""
        count = self.config.topic_settings(topic).num_partitions
        if not self._closed:
            return random.randrange(count)
        choices = [index for index in range(count) if (topic, index) not in self._closed]
        return random.choice(choices) if choices else ANY_PARTITION

    def append(self, unit: Append, on_durable: OnDurable) -> Appended | Refusal:
        """Write a unit; ``on_durable`` is called once: with ``None`` when it may be acknowledged, or with the error.

        All messages of clients go through here: puts, batches, commits, sends. After a refusal nothing is stored, and
        ``on_durable`` is not called. Otherwise it is called exactly once: after this has returned, or for a committed
        unit possibly before. The ``rejected`` puts are not stored, the others are.
        """
        if unit.terms is Terms.COMMITTED:
            return self._write(unit, unit.block, NO_IDS, on_durable)
        topic, count = unit.topic, unit.block.count
        self.statistics.block_puts(topic, count, len(unit.block))
        refusal = self.put_refusal(topic, unit.partition, is_ours=unit.terms is Terms.MADE)
        outcome = refusal or self._append(unit, on_durable)
        failed = count if isinstance(outcome, Refusal) else len(outcome.rejected)
        if failed:
            self.statistics.puts_failed(topic, failed)
        return outcome

    def _append(self, unit: Append, on_durable: OnDurable) -> Appended | Refusal:
        block, body_bytes_max = unit.block, self._system.message_bytes_max + unit.extra_bytes
        try:
            if unit.terms is Terms.BLOCK:
                check_count(block)  # before ids are reserved: reserved ids cannot be given back
            ids = self._ids.reserve(block.count, self.id_clock.latest_ms)  # read when the put was checked
            number = block.renumbered if unit.terms is Terms.MADE else block.numbered
            numbered = number(ids, body_bytes_max)
        except BlockRefused as fault:
            return self._append_correct(unit, on_durable) if unit.terms is Terms.PUTS else BlockInvalid(str(fault))
        return self._write(unit, numbered, ids, on_durable)

    def _write(self, unit: Append, block: FrameBlock, ids: IdRange, on_durable: OnDurable) -> Appended | Refusal:
        """Write the ``block`` of a unit, which was checked and numbered; see ``append``."""
        topic, is_committed = unit.topic, unit.terms is Terms.COMMITTED
        log = self.stores.get(topic, unit.partition) or self._create_log(topic, unit.partition, promised=is_committed)
        if isinstance(log, Refusal):
            return log
        ordinal, first = log.end_ordinal, log.end_offset
        rejected: dict[int, Refusal] = {}
        try:
            log.append_blocks((block, *unit.behind), may_roll=unit.terms is Terms.PUTS)
        except LogFailed as failure:
            self.note_failure(topic, failure)
            failure.__cause__ = failure.__context__ = None  # frames of tracebacks would keep the messages in memory
            refusal = StorageFailed(str(failure), failure.with_traceback(None))
            if not failure.stored:
                return refusal
            ids = replace(ids, count=failure.stored)
            rejected = dict.fromkeys(range(failure.stored, block.count), refusal)
        end, began, count = log.end_offset, self._clock.monotonic(), log.end_ordinal - ordinal
        self.statistics.stored(topic, count, end - first)

        def durable(error: Exception | None) -> None:
            if error is not None:
                self.statistics.puts_failed(topic, 0 if is_committed else count)
            elif not is_committed:
                self.statistics.put_seconds.observe(self._clock.monotonic() - began, count)
            on_durable(None if error is None else StorageFailed(str(error), error))

        commit = self._commit
        wait = commit.wait_durable if is_committed else commit.wait_patiently if unit.is_patient else commit.wait
        wait(log, end, durable)
        return Appended(log.index, ids, first, end, ordinal, rejected)

    def _append_correct(self, unit: Append, on_durable: OnDurable) -> Appended | Refusal:
        """Append the messages that can be stored, if there are any."""
        try:
            correct, rejected = sort_out(unit.block, self._system.message_bytes_max)
        except (BlockRefused, CorruptFrame) as fault:
            return BlockInvalid(str(fault))
        if correct is None:
            return AllRejected(rejected)
        outcome = self._append(unit._replace(block=correct), on_durable)
        if isinstance(outcome, Refusal):
            return outcome
        positions = [position for position in range(unit.block.count) if position not in rejected]
        return outcome._replace(rejected=rejected | {positions[at]: each for at, each in outcome.rejected.items()})

    def reserve_ids(self, count: int) -> IdRange:
        return self._ids.reserve(count, self.id_clock.time_ms())

    def ids_above_stored(self, message_id: int = -1) -> None:
        """Let all further ids be above ``message_id`` and every stored message's id, whatever the clock says.

        For a broker that was elected or promoted: the former master's clock may have been ahead of this one's.
        """
        self._ids.start_above(message_id)
        self._ids_above(log.latest_ms for log in self.stores.logs())

    def continue_ids(self, message_id: int) -> None:
        """At a start, do the same for ids that are ahead of the clock by a small step. Others do not count."""
        is_ahead = self.id_clock.is_ahead
        if is_ahead(timestamp_ms(message_id) or 0):
            self._ids.start_above(message_id)
        self._ids_above(log.latest_ms for log in self.stores.logs() if is_ahead(log.latest_ms))

    def _ids_above(self, times_ms: Iterable[int]) -> None:
        latest_ms = max(times_ms, default=0)
        if EPOCH_MS < latest_ms <= LATEST_MS:
            self._ids.start_above(IdRange(latest_ms, IDS_PER_MS - 1, 1, 0).first)

    def watch(self, topic: str, partition: int, callback: OnReadable) -> Callable[[], None]:
        """Call ``callback`` with the new readable end of a partition whenever it moves; return a function that ends the
        watch.

        For long polls: a callback runs on the event loop and may stop its own watch.
        """
        return self._commit.watch(topic, partition, callback)

    def put_refusal(self, topic: str, partition: int, *, is_ours: bool = False) -> Refusal | None:
        """Return why a put to a partition is refused now, in MetaQ's order of checks; ``None`` if it is not.

        ``is_ours``: the broker itself puts, also to topics that are reserved for it.
        """
        if not is_ours and topic in self.config.reserved_topics:
            return TopicReserved(topic)
        if self.gate.shut_by is not None:
            return self.gate.shut_by
        if (topic, partition) in self._closed or (partition == ANY_PARTITION and self._all_closed(topic)):
            return PartitionClosed(partition)
        if (settings := self.config.accepted_settings(topic)) is None:
            return TopicUnknown(topic)
        if topic in self.config.unmatched and not self.stores.has_topic(topic):
            return TopicUnknown(topic)
        if not 0 <= partition < settings.num_partitions:
            return PartitionUnknown(partition)
        if self.space.low and (reason := self.space.refusal(settings.data_path)) is not None:
            return DiskFull(reason)
        self.id_clock.time_ms()
        if self.id_clock.fault is not None:
            return ClockImplausible(self.id_clock.fault)
        return None

    def log_for_put(self, topic: str, partition: int) -> PartitionLog | Refusal:
        """Return the partition's log, created if necessary, or why a put is refused."""
        refusal = self.put_refusal(topic, partition)
        return refusal or self.stores.get(topic, partition) or self._create_log(topic, partition)

    def _create_log(self, topic: str, partition: int, *, promised: bool = False) -> PartitionLog | Refusal:
        """Create a partition's log. ``promised``: its messages are committed already, so only the disk may refuse."""
        if not promised and (limit := self.more_partitions_refusal()) is not None:
            return PartitionLimit(limit)
        if not promised and (fault := self.stores.refusal(topic, partition)) is not None:
            return PartitionUnavailable(fault)
        try:
            return self.stores.get_or_create(topic, partition)
        except (OSError, MetaqError) as error:
            self.note_failure(topic, error)
            return StorageFailed(str(error), error)

    def more_partitions_refusal(self) -> str | None:
        """Return why no further partition can be created; ``None`` if one can."""
        count = self.stores.partition_count
        if count >= self._system.partitions_max:
            return f"the broker has {count} partitions, maxPartitions allows no more"
        if count >= self._files.partitions_max:
            return (
                f"the broker has {count} partitions, its limit of open files (ulimit -n), {self._files.limit}, allows "
                "no more"
            )
        return None

    def note_failure(self, topic: str, failure: Exception) -> None:
        """Record why a message could not be stored: without space, puts are refused for a while."""
        if isinstance(failure, LogFull) or (isinstance(failure, OSError) and is_disk_full(failure)):
            self.space.ran_out(self.config.topic_settings(topic).data_path)

    # ---- reading

    def get(self, topic: str, partition: int, offset: int, bytes_max: int) -> Slice | Refusal:
        """Return the bytes from ``offset`` to the readable end, at most ``bytes_max`` and maxTransferSize.

        They may begin and end inside a frame. A frame at ``offset`` that is longer than maxTransferSize, but not than
        ``bytes_max``, is returned alone, because Java clients do not join pieces. Everything else is a ``Refusal``.
        """
        self.statistics.get(topic)
        log = self._log_for_get(topic, partition, bytes_max)
        if isinstance(log, Refusal):
            return self._missed(topic, log)
        limit = self._system.transfer_bytes_max
        try:
            found = log.read(offset, bytes_max if bytes_max < limit else limit)
            if bytes_max > limit and isinstance(found, Slice) and found.length == limit:
                found = _whole_frame(log, found, bytes_max)
        except OSError as error:
            return StorageFailed(str(error))
        if not isinstance(found, Slice):
            return self._missed(topic, self._nothing_at(log, offset, found))
        self.statistics.sent(topic, found.length)
        return found

    def get_types(
        self, topic: str, partition: int, offset: int, bytes_max: int, types: Sequence[str]
    ) -> Selection | LargeFrame | Refusal:
        """Return the messages of ``types`` among about ``bytes_max`` bytes (and maxTransferSize) from ``offset`` on.

        The refusals are as for ``get``. In addition: ``InsideMessage``, ``TypesInvalid``, and ``StorageFailed`` for
        newly found damage.
        """
        try:
            found = self._scanned(topic, partition, offset, bytes_max, encode_types(types))
        except ValueError as fault:
            return TypesInvalid(str(fault))
        if not isinstance(found, Refusal):
            self.statistics.sent(topic, found.frame_bytes)
        return found

    def get_run(
        self, topic: str, partition: int, offset: int, bytes_max: int, types: Collection[bytes]
    ) -> bytes | Slice | Refusal:
        """Return the messages of ``types`` that follow each other from ``offset`` on, without others between them.

        A reader continues at ``offset`` plus their length. The refusals are as for ``get_types``; ``OffsetNotStored``
        also means that all messages before that offset have other types.
        """
        found = self._scanned(topic, partition, offset, bytes_max, types, select_run)
        if isinstance(found, Refusal):
            return found
        if not found.frame_bytes:
            return self._missed(topic, OffsetNotStored(found.next_offset))
        self.statistics.sent(topic, found.frame_bytes)
        return found.frame if isinstance(found, LargeFrame) else b"".join(frame for _, frame in found.kept)

    def _scanned(
        self, topic: str, partition: int, offset: int, bytes_max: int, types: Collection[bytes], pick: Pick = select
    ) -> Selection | LargeFrame | Refusal:
        self.statistics.get(topic)
        log = self._log_for_get(topic, partition, bytes_max)
        if isinstance(log, Refusal):
            return self._missed(topic, log)
        try:
            found = scan(log, offset, min(bytes_max, self._system.transfer_bytes_max), types, pick)
        except BetweenBoundaries as inside:
            return InsideMessage(offset, inside.boundary)
        except (OSError, CorruptFrame) as error:
            return StorageFailed(str(error))
        if isinstance(found, ReadAtEnd | ReadMoved):
            return self._missed(topic, self._nothing_at(log, offset, found))
        return found

    def _log_for_get(self, topic: str, partition: int, bytes_max: int) -> PartitionLog | Refusal:
        if self._closed and (topic, partition) in self._closed:
            return PartitionClosed(partition)
        log = self.stores.get(topic, partition)
        if log is None:
            return self._no_store(topic, partition)
        if bytes_max <= 0:
            return SizeInvalid(bytes_max)
        return log

    def _missed(self, topic: str, refusal: Refusal) -> Refusal:
        if isinstance(refusal, OffsetNotStored | NothingAt | PartitionEmpty):
            self.statistics.get_missed(topic)
            if isinstance(refusal, OffsetNotStored):
                self.statistics.offset(topic)
        return refusal

    def _nothing_at(self, log: PartitionLog, offset: int, found: ReadAtEnd | ReadMoved) -> Refusal:
        if isinstance(found, ReadMoved):
            return OffsetNotStored(found.offset)
        report_end = self._system.update_consumer_offsets or offset == INT64_MAX
        if offset > log.readable_end and report_end:
            return OffsetNotStored(log.readable_end)
        return NothingAt(offset)

    def offset(self, topic: str, partition: int, offset: int, question: OffsetQuestion) -> int | str | Refusal:
        """Answer a question about a position in a partition.

        ``segment``: start of the segment with ``offset`` (MetaQ's own meaning). ``boundary``: the frame boundary at or
        below it. ``timestamp``: the first message at or after ``offset``, read as epoch milliseconds. ``ordinal``: how
        many messages are before that boundary. ``message``: start of the message with ``offset`` messages before it.
        ``incarnation``: the partition's UUID, ``NO_INCARNATION`` while it has none.
        """
        self.statistics.offset(topic)
        log = self.stores.get(topic, partition)
        if log is None:
            return self._no_store(topic, partition)
        try:
            return _ANSWERS[question](log, offset)
        except OSError as error:
            return StorageFailed(str(error))

    # ---- closing partitions

    def close_partition(self, topic: str, partition: int) -> None:
        """Refuse puts and gets on a partition from now on; kept in memory only, as in MetaQ."""
        self._closed.add((topic, partition))

    def open_partition(self, topic: str, partition: int) -> None:
        """Undo ``close_partition``."""
        self._closed.discard((topic, partition))

    def closed_partitions(self) -> list[tuple[str, int]]:
        """Return topic and index of the closed partitions in order, including ones that do not exist."""
        return sorted(self._closed)

    def is_closed(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._closed

    def _all_closed(self, topic: str) -> bool:
        count = self.config.topic_settings(topic).num_partitions
        return all((topic, index) in self._closed for index in range(count))

    def _no_store(self, topic: str, partition: int) -> Refusal:
        fault = self.stores.refusal(topic, partition)
        return PartitionEmpty(topic, partition) if fault is None else PartitionUnavailable(fault)


def _whole_frame(log: PartitionLog, found: Slice, bytes_max: int) -> Slice:
    """Return the first frame of a slice, if it is longer than the slice but not than ``bytes_max``.

    If the slice begins inside a message, the length read may be anything: the answer is then more bytes from there, at
    most ``bytes_max``.
    """
    size = frame_bytes(found.handle.pread(4, found.position))
    if not found.length < size <= bytes_max:
        return found
    whole = log.read(found.offset, size)
    return whole if isinstance(whole, Slice) and whole.length == size else found
