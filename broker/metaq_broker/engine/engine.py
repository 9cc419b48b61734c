"""The broker's core: puts, reads and offset lookups on the partitions, with MetaQ's rules.

It knows no command class and no connection: every frontend calls the same methods with plain values and gets outcome
values back. Everything runs on the event-loop thread; nothing here waits for the disk. A put is carried out in two
steps: ``put`` writes and returns at once, ``when_durable`` tells when it may be acknowledged.

Source: docs/protocol.md; the order of checks is MetaQ's.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add
from typing import Final, Literal

from metaq.errors import CorruptFrame, MetaqError
from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import IDS_PER_MS, IdRange, IdWorker
from metaq.formats.message_types import Selection, encode_types
from metaq.model import INT64_MAX, Buffer
from metaq_broker.clock import Clock
from metaq_broker.config.configuration import BrokerConfig
from metaq_broker.engine.id_clock import IdClock
from metaq_broker.engine.outcomes import (
    Appended,
    BlockAppended,
    BlockInvalid,
    ChecksumMismatch,
    ClockImplausible,
    DiskFull,
    InsideMessage,
    NothingAt,
    OffsetMoved,
    PartitionClosed,
    PartitionEmpty,
    PartitionLimit,
    PartitionUnavailable,
    PartitionUnknown,
    Refusal,
    SizeInvalid,
    StorageFailed,
    TooLarge,
    TopicUnknown,
    TypesInvalid,
)
from metaq_broker.engine.put_block import BlockRefused, block_fault, check_count, number_block
from metaq_broker.engine.stores import TopicStores
from metaq_broker.engine.type_filter import BetweenBoundaries, LargeFrame, scan
from metaq_broker.monitoring.disk_guard import NoDiskGuard, Space
from metaq_broker.monitoring.statistics import Statistics
from metaq_broker.open_files import OpenFiles
from metaq_broker.replication.gate import PutGate
from metaq_broker.storage.errors import LogFailed, LogFull, is_disk_full
from metaq_broker.storage.flush import GroupCommit, OnReadable
from metaq_broker.storage.partition_log import PartitionLog
from metaq_broker.storage.reads import AtEnd, Moved, Slice

ANY_PARTITION: Final = -1
"""A put to this partition goes to one that the broker picks."""

NO_CHECKSUM: Final = (None, -1)
"""What a put carries when it does not say its checksum."""

NO_INCARNATION: Final = "-"
"""Stands for the incarnation of a partition of which nothing is durable yet."""

MARK_BYTES: Final = 1 << 14
"""Bytes between two frames of a block that the index hears of, at least: more of them cost more than they save."""

OffsetQuestion = Literal["segment", "boundary", "timestamp", "ordinal", "message", "incarnation"]
_HEADER: Final = struct.Struct(">iiqi")


_ANSWERS: Final[dict[OffsetQuestion, Callable[[PartitionLog, int], int | str]]] = {
    "segment": PartitionLog.segment_start,
    "boundary": PartitionLog.boundary,
    "timestamp": PartitionLog.first_at,
    "ordinal": PartitionLog.ordinal,
    "message": PartitionLog.offset_of_message,
    "incarnation": lambda log, _offset: log.incarnation or NO_INCARNATION,
}


class Engine:
    """One broker's partitions behind their rules."""

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
        self._mark_bytes = max(MARK_BYTES, config.system.index_interval_bytes)
        self._closed: set[tuple[str, int]] = set()

    # ---- putting

    def pick_partition(self, topic: str) -> int:
        """Return a random partition of ``topic`` that is open, or ``ANY_PARTITION`` when there is none to pick."""
        count = self.config.topic_settings(topic).num_partitions
        if not self._closed:
            return random.randrange(count)
        choices = [index for index in range(count) if (topic, index) not in self._closed]
        return random.choice(choices) if choices else ANY_PARTITION

    def put(
        self, topic: str, partition: int, flags: Sequence[int], checksums: Sequence[int | None], bodies: Sequence[bytes]
    ) -> Appended | Refusal:
        """Append the messages (columns of equal length, at least one) to one partition with one write.

        A message whose checksum is given and wrong, or whose body is too long, is left out and named in ``rejected``.
        """
        self.statistics.puts(topic, len(bodies), sum(map(len, bodies)))
        outcome = self._put(topic, partition, flags, checksums, bodies)
        failed = len(bodies) if isinstance(outcome, Refusal) else len(outcome.rejected)
        if failed:
            self.statistics.puts_failed(topic, failed)
        return outcome

    def _put(
        self, topic: str, partition: int, flags: Sequence[int], checksums: Sequence[int | None], bodies: Sequence[bytes]
    ) -> Appended | Refusal:
        log = self._known_log_for_put(topic, partition)
        if isinstance(log, Refusal):
            return log
        computed = [crc32(body) & CHECKSUM_MASK for body in bodies]
        rejected: dict[int, Refusal] = {}
        if computed != list(checksums) or max(map(len, bodies)) > self._system.message_bytes_max:
            rejected = self._reject(checksums, computed, bodies)
        if log is None:
            if len(rejected) == len(bodies):  # no partition is made for that
                return Appended(partition, [0] * len(bodies), [0] * len(bodies), 0, rejected, None)
            if isinstance(log := self._create_log(topic, partition), Refusal):
                return log
        if rejected:
            return self._put_rest(log, flags, computed, bodies, rejected)
        return self._append(log, flags, computed, bodies)

    def _append(
        self, log: PartitionLog, flags: Sequence[int], sums: Sequence[int], bodies: Sequence[bytes]
    ) -> Appended | Refusal:
        ids = _numbers(self.reserve_ids(len(bodies)))
        frames = list(map(add, map(_HEADER.pack, map(len, bodies), sums, ids, flags), bodies))
        try:
            first = log.append(frames)
        except LogFailed as failure:
            self.note_failure(log.topic, failure)
            return StorageFailed(str(failure))
        self._commit.schedule(log)
        offsets = list(accumulate(map(len, frames), initial=first))
        self.statistics.stored(log.topic, len(frames), offsets[-1] - first)
        return Appended(log.index, ids, offsets[:-1], offsets[-1], {}, log)

    def _reject(
        self, checksums: Sequence[int | None], computed: list[int], bodies: Sequence[bytes]
    ) -> dict[int, Refusal]:
        rejected: dict[int, Refusal] = {}
        for position, (given, actual, body) in enumerate(zip(checksums, computed, bodies, strict=True)):
            if given not in NO_CHECKSUM and given != actual:
                rejected[position] = ChecksumMismatch()
            elif len(body) > self._system.message_bytes_max:
                rejected[position] = TooLarge(len(body), self._system.message_bytes_max)
        return rejected

    def _put_rest(
        self,
        log: PartitionLog,
        flags: Sequence[int],
        sums: Sequence[int],
        bodies: Sequence[bytes],
        rejected: dict[int, Refusal],
    ) -> Appended | Refusal:
        keep = [position for position in range(len(bodies)) if position not in rejected]
        ids, offsets = [0] * len(bodies), [0] * len(bodies)
        if not keep:
            return Appended(log.index, ids, offsets, log.start_offset, rejected, log)
        rest = self._append(log, [flags[i] for i in keep], [sums[i] for i in keep], [bodies[i] for i in keep])
        if isinstance(rest, Refusal):
            return rest
        for position, message_id, offset in zip(keep, rest.message_ids, rest.offsets, strict=True):
            ids[position], offsets[position] = message_id, offset
        return Appended(log.index, ids, offsets, rest.log_end, rejected, log)

    def put_framed(self, topic: str, partition: int, block: Buffer, count: int) -> BlockAppended | None:
        """Append plain puts that are frames already, with ids of 0; they get theirs where they are.

        ``None``: nothing was stored, and ``put`` says which of them can be, and why the others cannot.
        """
        log = self._known_log_for_put(topic, partition)
        if log is None and block_fault(block, count, self._system.message_bytes_max, self._mark_bytes) is None:
            log = self._create_log(topic, partition)
        if log is None or isinstance(log, Refusal) or not log.has_space_for(len(block)):
            return None  # puts roll between each other, blocks do not
        try:
            appended = self._append_block(log, block, count)
        except (BlockRefused, LogFailed):
            return None
        self.statistics.puts(topic, count, len(block) - count * HEADER_BYTES)
        self.statistics.stored(topic, count, len(block))
        return appended

    def put_block(self, topic: str, partition: int, block: Buffer, count: int) -> BlockAppended | Refusal:
        """Append a block of ``count`` frames, whose ids are replaced, as one unit; one wrong frame refuses all.

        A ``block`` that can be written gets its ids where it is; nothing of it is kept when this returns.
        """
        self.statistics.puts(topic, count, max(0, len(block) - count * HEADER_BYTES))
        outcome = self._put_block(topic, partition, block, count)
        if isinstance(outcome, Refusal):
            self.statistics.puts_failed(topic, count)
        return outcome

    def _put_block(self, topic: str, partition: int, block: Buffer, count: int) -> BlockAppended | Refusal:
        log = self._known_log_for_put(topic, partition)
        if log is None:
            fault = block_fault(block, count, self._system.message_bytes_max, self._mark_bytes)
            if fault is not None:  # no partition is made for that
                return BlockInvalid(str(fault))
            log = self._create_log(topic, partition)
        if isinstance(log, Refusal):
            return log
        try:
            appended = self._append_block(log, block, count)
        except BlockRefused as fault:
            return BlockInvalid(str(fault))
        except LogFailed as failure:
            self.note_failure(topic, failure)
            return StorageFailed(str(failure))
        self.statistics.stored(topic, count, len(block))
        return appended

    def _append_block(self, log: PartitionLog, block: Buffer, count: int) -> BlockAppended:
        check_count(block, count)  # first: ids that are taken for nothing are gone
        ids = self.reserve_ids(count)
        numbered, marks = number_block(block, count, ids, self._system.message_bytes_max, self._mark_bytes)
        first = log.append_block(numbered, count, marks)
        self._commit.schedule(log)
        return BlockAppended(log.index, ids.first, first, first + len(block), log)

    def reserve_ids(self, count: int) -> IdRange:
        """Return ``count`` fresh consecutive message ids."""
        return self._ids.reserve(count, self.id_clock.time_ms())

    def when_durable(
        self, appended: Appended | BlockAppended, requests: int, done: Callable[[Refusal | None], None]
    ) -> None:
        """Call ``done`` once what was appended may be acknowledged, or with a refusal for all of it.

        ``requests`` is how many puts wait on it, for the statistics. ``done`` may be called before this returns.
        """
        log = appended.log
        if log is None:  # everything was refused, and no partition made for it
            done(None)
            return
        began, topic = self._clock.monotonic(), log.topic

        def finished(error: BaseException | None) -> None:
            if error is None:
                self.statistics.acknowledged(requests, self._clock.monotonic() - began)
                done(None)
                return
            self.statistics.puts_failed(topic, requests)
            done(StorageFailed(str(error)))

        self._commit.wait(log, appended.log_end, finished)

    def watch(self, topic: str, partition: int, callback: OnReadable) -> Callable[[], None]:
        """Call ``callback`` with the new readable end of a partition whenever that moves; return what ends it."""
        return self._commit.watch(topic, partition, callback)

    def log_for_put(self, topic: str, partition: int) -> PartitionLog | Refusal:
        """Return the partition's log, made when absent, or why nothing may be put there."""
        log = self._known_log_for_put(topic, partition)
        return log if log is not None else self._create_log(topic, partition)

    def _known_log_for_put(self, topic: str, partition: int) -> PartitionLog | Refusal | None:
        """The same, in MetaQ's order of checks; ``None`` where the partition is to be made first."""
        if self.gate.shut_by is not None:
            return self.gate.shut_by
        if (topic, partition) in self._closed or (partition == ANY_PARTITION and self._all_closed(topic)):
            return PartitionClosed(partition)
        if not self.config.accepts(topic):
            return TopicUnknown(topic)
        settings = self.config.topic_settings(topic)
        if not 0 <= partition < settings.num_partitions:
            return PartitionUnknown(partition)
        if self.space.low and (reason := self.space.refusal(settings.data_path)) is not None:
            return DiskFull(reason)
        if not self.id_clock.is_believed():
            return ClockImplausible(self.id_clock.fault or "")
        return self.stores.get(topic, partition)

    def _create_log(self, topic: str, partition: int) -> PartitionLog | Refusal:
        if (limit := self.more_partitions_refusal()) is not None:
            return PartitionLimit(limit)
        if (fault := self.stores.refusal(topic, partition)) is not None:
            return PartitionUnavailable(fault)
        try:
            return self.stores.get_or_create(topic, partition)
        except (OSError, MetaqError) as error:
            self.note_failure(topic, error)
            return StorageFailed(str(error))

    def more_partitions_refusal(self) -> str | None:
        """Return why no partition can be made beside those that there are, ``None`` if one can."""
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
        """Take note of why something could not be stored: if there was no space, no more is tried for a while."""
        if isinstance(failure, LogFull) or (isinstance(failure, OSError) and is_disk_full(failure)):
            self.space.ran_out(self.config.topic_settings(topic).data_path)

    # ---- reading

    def get(self, topic: str, partition: int, offset: int, bytes_max: int) -> Slice | Refusal:
        """Return the bytes from ``offset`` on: at most ``bytes_max`` and maxTransferSize, none behind the readable end.

        They may begin and end inside a frame. If the frame at ``offset`` is longer than maxTransferSize and not than
        ``bytes_max``, they are that one frame: a Java client puts no pieces together. Every other answer is a
        ``Refusal``.
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

        The refusals are those of ``get``. Beside them: ``InsideMessage``, ``TypesInvalid``, and ``StorageFailed`` for
        damage that nobody knew of.
        """
        self.statistics.get(topic)
        log = self._log_for_get(topic, partition, bytes_max)
        if isinstance(log, Refusal):
            return self._missed(topic, log)
        try:
            found = scan(log, offset, min(bytes_max, self._system.transfer_bytes_max), encode_types(types))
        except ValueError as fault:
            return TypesInvalid(str(fault))
        except BetweenBoundaries as inside:
            return InsideMessage(offset, inside.boundary)
        except (OSError, CorruptFrame) as error:
            return StorageFailed(str(error))
        if isinstance(found, AtEnd | Moved):
            return self._missed(topic, self._nothing_at(log, offset, found))
        self.statistics.sent(topic, found.frame_bytes)
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
        if isinstance(refusal, OffsetMoved | NothingAt | PartitionEmpty):
            self.statistics.get_missed(topic)
            if isinstance(refusal, OffsetMoved):
                self.statistics.offset(topic)
        return refusal

    def _nothing_at(self, log: PartitionLog, offset: int, found: AtEnd | Moved) -> Refusal:
        if isinstance(found, Moved):
            return OffsetMoved(found.offset)
        tell_end = self._system.update_consumer_offsets or offset == INT64_MAX
        if offset > log.readable_end and tell_end:
            return OffsetMoved(log.readable_end)
        return NothingAt(offset)

    def offset(self, topic: str, partition: int, offset: int, question: OffsetQuestion) -> int | str | Refusal:
        """Answer one of the questions about positions in a partition.

        ``segment``: start of the segment that holds ``offset`` (MetaQ's own meaning). ``boundary``: the frame boundary
        at or below it. ``timestamp``: the first message at or after ``offset``, read as epoch milliseconds.
        ``ordinal``: how many messages are before that boundary. ``message``: where the message with ``offset`` others
        before it begins. ``incarnation``: the partition's UUID, ``NO_INCARNATION`` while it has none.
        """
        self.statistics.offset(topic)
        log = self.stores.get(topic, partition)
        if log is None:
            return self._no_store(topic, partition)
        try:
            return _ANSWERS[question](log, offset)
        except OSError as error:
            return StorageFailed(str(error))

    def file_part(self, topic: str, partition: int, offset: int) -> Slice | Refusal:
        """Return all of the bytes that gets from ``offset`` on would give, as far as they are in one file.

        For a reader that reads the file itself. The refusals are those of ``get``.
        """
        self.statistics.file_lookup(topic)
        log = self._log_for_get(topic, partition, 1)
        if isinstance(log, Refusal):
            return log
        try:
            found = log.read(offset, INT64_MAX)
        except OSError as error:
            return StorageFailed(str(error))
        return found if isinstance(found, Slice) else self._nothing_at(log, offset, found)

    # ---- closing partitions

    def close_partition(self, topic: str, partition: int) -> None:
        """Refuse puts and gets on a partition from now on; kept in memory only, as in MetaQ."""
        self._closed.add((topic, partition))

    def open_partition(self, topic: str, partition: int) -> None:
        """Undo ``close_partition``."""
        self._closed.discard((topic, partition))

    def closed_partitions(self) -> list[tuple[str, int]]:
        """Return topic and index of the partitions that were closed, there or not, in order."""
        return sorted(self._closed)

    def is_closed(self, topic: str, partition: int) -> bool:
        """Say whether ``close_partition`` is in effect."""
        return (topic, partition) in self._closed

    def _all_closed(self, topic: str) -> bool:
        count = self.config.topic_settings(topic).num_partitions
        return all((topic, index) in self._closed for index in range(count))

    def _no_store(self, topic: str, partition: int) -> Refusal:
        fault = self.stores.refusal(topic, partition)
        return PartitionEmpty(topic, partition) if fault is None else PartitionUnavailable(fault)


def _whole_frame(log: PartitionLog, found: Slice, bytes_max: int) -> Slice:
    """Return the first frame of a slice, if it is longer than the slice and not than ``bytes_max``.

    Where the slice begins inside a message, what is taken for a length may be anything: the answer is then more of the
    bytes from there on, as many as were asked for at most.
    """
    frame_bytes = HEADER_BYTES + int.from_bytes(found.handle.pread(4, found.position), signed=True)
    if not found.length < frame_bytes <= bytes_max:
        return found
    whole = log.read(found.offset, frame_bytes)
    return whole if isinstance(whole, Slice) and whole.length == frame_bytes else found


def _numbers(ids: IdRange) -> Sequence[int]:
    # Within one millisecond ids are consecutive integers, and a range costs nothing to make.
    if ids.first_sequence + ids.count <= IDS_PER_MS:
        return range(ids.first, ids.first + ids.count)
    return list(ids)
