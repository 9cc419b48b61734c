"""The broker's messages in RocketMQ's terms: by topic, queue and queue offset, or by physical offset.

Queues are the engine's partitions, queue offsets their ordinals, records are made of frames when they are read
(``metaq.formats.stored_records``). Sends, pulls, groups and delays access the engine's logs only through this module;
figures, deletions and a change of the role look at the logs themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, NamedTuple

from metaq.errors import CorruptFrame
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import HEADER_BYTES, encode_stored, frame_bytes, message_id_at
from metaq.formats.message_id import timestamp_ms
from metaq.formats.rocketmq.properties import BYTES_MAX
from metaq.formats.rocketmq.records import Record, read_record
from metaq.formats.stored_form import HEAD_BYTES_MAX, encode_head, tag_of
from metaq.formats.stored_records import Collected, QueueRecords, Wanted
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.ordinals import boundary_at, first_ordinal, message_at, remember, time_before
from metaq_broker.log.engine.outcomes import (
    Appended,
    BlockInvalid,
    NothingAt,
    PartitionClosed,
    PartitionEmpty,
    PartitionLimit,
    PartitionUnavailable,
    Refusal,
    StorageFailed,
)
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Boundary, ReadAtEnd, ReadMoved, Slice
from metaq_broker.log.sync.sync_queue import call
from metaq_broker.loop_step import LoopStep
from metaq_broker.rocketmq.messages.compiled_records import RECORDS
from metaq_broker.rocketmq.messages.partition_numbers import STRETCH_BYTES, PartitionNumbers

_LOG: Final = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 16
"""Bytes of a log that are read at once, unless a message is longer."""

READ_BYTES_MIN: Final = 1 << 12
"""Least bytes that are read at once, when few messages are wanted."""

LOOKED_AT_BYTES_MAX: Final = 1 << 20
"""Approximate limit on the bytes of the log that one read scans."""

QUEUES_MAX: Final = 10_000
"""Limit on queues whose ``QueueRecords`` are kept for the next read."""

EXTRA_BYTES_MAX: Final = 4 + HEAD_BYTES_MAX + 2 * BYTES_MAX
"""Limit on bytes of a frame's body in addition to the message: tag, fields, properties."""

ANY_BYTES: Final = 1 << 30
"""More bytes of a body than any configuration allows."""


class OutgoingMessage(NamedTuple):
    """A message to be stored. ``properties`` is RocketMQ's text of them, at most 32,767 bytes; the tag is in it.

    ``born_host`` has 8 or 20 bytes (``metaq.formats.rocketmq.hosts``), times are in milliseconds.
    """

    body: bytes
    properties: bytes
    born_timestamp: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


class StoredBatch(NamedTuple):
    """Where messages that were sent together are: they have the queue offsets from ``queue_offset`` on.

    ``store_host`` is the broker's address, in the digits with which the messages' ids begin. ``unnumbered``: why the
    physical offsets are not known yet; they are 0 then, where no message is. ``None``: they are known.
    """

    queue: int
    queue_offset: int
    physical_offsets: Sequence[int]
    store_time: int
    store_host: str
    unnumbered: str | None = None

    def message_ids(self) -> list[str]:
        """Return the messages' ids in RocketMQ's form (``OffsetMessageId``)."""
        return [f"{self.store_host}{offset:016X}" for offset in self.physical_offsets]


def as_numbered(outcome: StoredBatch | Refusal) -> StoredBatch | Refusal:
    """Return the outcome for who needs physical offsets: a refusal without them."""
    if isinstance(outcome, StoredBatch) and outcome.unnumbered is not None:
        return StorageFailed(outcome.unnumbered)
    return outcome


OnStored = Callable[[StoredBatch | Refusal], None]
WaitingFrames = tuple[FrameBlock, OnStored]
"""Frames that were sent together, and what is called with where they are, or why they are not stored."""

OnFrames = Callable[[str, int, int, FrameBlock, Sequence[int] | None, int], None]
"""Called with messages of one unit: topic, queue, first queue offset, frames, physical offsets, store time.

``None`` for physical offsets: the messages are stored, and have none, since the disk refused a number for them.
"""


class ReadRecords(NamedTuple):
    """The result of a read: ``records`` back to back, as in the body of a pull, and the next queue offset.

    The queue has offsets from ``min_offset`` to below ``max_offset``. ``looked_at`` messages were scanned,
    ``messages`` of them are in ``records``.
    """

    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    messages: int = 0
    looked_at: int = 0


class StoredRun(NamedTuple):
    """Messages as they are stored, whole frames in ``file``: those with queue offsets from ``begin`` to below ``end``.

    The queue has offsets from ``min_offset`` to below ``max_offset``. The first frame is at ``physical_offset``;
    ``known_ms`` is the store time of messages whose id has none.
    """

    file: Slice
    begin: int
    end: int
    min_offset: int
    max_offset: int
    physical_offset: int
    known_ms: int


@dataclass(frozen=True, slots=True)
class NumberPending(Refusal):
    """The messages at ``offset`` have no physical offsets yet; ``MessageStore.when_numbered`` calls back when they
    have.
    """

    topic: str
    queue: int
    offset: int


class MessageStore:
    """``store_host`` (8 or 20 bytes) is the address in message ids. A body may have ``body_bytes_max`` bytes."""

    def __init__(self, engine: Engine, numbers: PartitionNumbers, store_host: bytes, body_bytes_max: int = 0) -> None:
        self.engine, self.numbers = engine, numbers
        self._extra_bytes = EXTRA_BYTES_MAX + max(0, body_bytes_max - engine.config.system.message_bytes_max)
        self.store_host = store_host
        self._records: dict[tuple[str, int], QueueRecords] = {}
        self.listeners: list[OnFrames] = []
        self._unreported: dict[tuple[str, int], list[int]] = {}

    @cached_property
    def step(self) -> LoopStep:
        """The steps of the event loop on which messages are stored."""
        return LoopStep.of(asyncio.get_running_loop())

    def move_to(self, store_host: bytes) -> None:
        """Name another host in ids and records from now on."""
        self.store_host = store_host
        self._records.clear()

    def when_stored(self, listener: OnFrames) -> None:
        """Call ``listener`` with all messages that are stored from now on, when they are durable and answered."""
        self.listeners.append(listener)

    # ---- storing

    def append(
        self,
        topic: str,
        queue: int,
        messages: Sequence[OutgoingMessage],
        done: OnStored,
        *,
        is_own: bool = False,
    ) -> None:
        """Store messages as one unit; ``done`` is called once with where they are, or why they are not.

        It is called when they may be acknowledged, and never before this returns, except with a refusal. The callers
        check the lengths of clients' messages: one that waits may have been stored when longer ones were allowed.

        ``is_own``: the broker repeats what is refused, so messages that will be readable are not refused: they wait
        for the slave of a pair as long as necessary.

        Raises:
            FieldError: A number of a message does not fit.
        """
        frames = [
            encode_stored(
                tag_of(each.properties),
                encode_head(
                    each.flag,
                    each.sys_flag,
                    each.born_timestamp,
                    each.born_host,
                    each.reconsume_times,
                    each.prepared_offset,
                ),
                each.properties,
                each.body,
            )
            for each in messages
        ]
        self._append(topic, queue, [(FrameBlock.of(frames), done)], ANY_BYTES, is_own=is_own)

    def append_frames(self, topic: str, queue: int, sends: Sequence[WaitingFrames]) -> None:
        """Append the frames of some sends as one unit; their ids are assigned when they are stored.

        If the unit is refused because a frame is invalid, the sends are appended one by one.
        """
        self._append(topic, queue, sends, self._extra_bytes)

    def _append(
        self, topic: str, queue: int, sends: Sequence[WaitingFrames], extra_bytes: int, *, is_own: bool = False
    ) -> None:
        unit = _Unit(self, topic, queue, sends)
        append = Append(topic, queue, unit.frames, Terms.MADE, extra_bytes, is_patient=is_own)
        outcome = self.engine.append(append, unit.durable)
        if isinstance(outcome, BlockInvalid) and len(sends) > 1:
            for send in sends:
                self._append(topic, queue, [send], extra_bytes)
        elif isinstance(outcome, Refusal):
            unit.refuse(outcome)
        else:
            unit.appended = outcome
            self._unreported.setdefault((topic, queue), []).append(outcome.first_ordinal)

    def reported(self, topic: str, queue: int, ordinal: int) -> None:
        """Record that a unit was refused, or that the listeners were notified of it."""
        unreported = self._unreported[topic, queue]
        unreported.remove(ordinal)  # the first, unless the topic was recreated meanwhile
        if not unreported:
            del self._unreported[topic, queue]

    # ---- reading

    def read(self, topic: str, queue: int, queue_offset: int, wanted: Wanted) -> ReadRecords | Refusal:
        """Return messages from ``queue_offset`` on.

        If ``queue_offset`` is outside the queue's range: no message, and the same next offset. Damaged messages are
        skipped.
        """
        log = self._log(topic, queue)
        if isinstance(log, Refusal):
            return log
        first, end = first_ordinal(log), log.durable_ordinal
        if not first <= queue_offset < end:
            return ReadRecords(b"", queue_offset, first, end)
        try:
            return self._read(log, queue_offset, wanted)
        except (OSError, CorruptFrame) as error:
            return StorageFailed(str(error))

    def _read(self, log: PartitionLog, queue_offset: int, wanted: Wanted) -> ReadRecords | Refusal:
        offset, ordinal = message_at(log, queue_offset)
        began, collected, records = offset, Collected(wanted), self._records_of(log)
        run_bytes = min(READ_BYTES, max(READ_BYTES_MIN, records.frame_bytes * wanted.messages_max * 5 // 4))
        frame_bytes = 0  # of a frame that is longer than a run
        while not collected.is_full and offset - began < LOOKED_AT_BYTES_MAX:
            found = log.read(offset, frame_bytes or min(run_bytes, STRETCH_BYTES - offset % STRETCH_BYTES))
            if isinstance(found, ReadAtEnd):
                break
            if isinstance(found, ReadMoved):
                offset, ordinal = found.offset, boundary_at(log, found.offset).ordinal
                continue
            base = self.numbers.base(log, offset)
            if base is None:
                if not collected.looked_at:
                    return NumberPending(log.topic, log.index, offset)
                break
            run, before = found.read(), collected.looked_at
            try:
                known_ms, where = time_before(log, offset), log.name
                passed = RECORDS.of_run(records, run, offset, ordinal, base, known_ms, collected, where)
            except CorruptFrame as error:
                if collected.looked_at:
                    break
                offset, ordinal = after_damage(log, offset, error), ordinal + 1
                continue
            if not passed and not collected.is_full:
                frame_bytes = frame_bytes_of(log, offset, run)
                continue
            offset, ordinal = offset + passed, ordinal + collected.looked_at - before
            run_bytes, frame_bytes = READ_BYTES, 0
        if collected.looked_at:
            records.frame_bytes = (offset - began) // collected.looked_at + 1
        remember(log, ordinal, offset)
        body, first, end = b"".join(collected.records), first_ordinal(log), log.durable_ordinal
        return ReadRecords(body, ordinal, first, end, collected.count, collected.looked_at)

    def stored(
        self, topic: str, queue: int, queue_offset: int, messages_max: int, bytes_max: int
    ) -> StoredRun | ReadRecords | Refusal:
        """Return where messages from ``queue_offset`` on are stored, without work for each message.

        At least one message, within the given number and bytes, as far as they are in one file and not known to be
        damaged. An empty batch if ``queue_offset`` is outside the queue's range.
        """
        log = self._log(topic, queue)
        if isinstance(log, Refusal):
            return log
        nothing = ReadRecords(b"", queue_offset, first_ordinal(log), log.durable_ordinal)
        if not nothing.min_offset <= queue_offset < nothing.max_offset:
            return nothing
        try:
            return self._stored(log, nothing, messages_max, bytes_max)
        except (OSError, CorruptFrame) as error:
            return StorageFailed(str(error))

    def _stored(
        self, log: PartitionLog, nothing: ReadRecords, messages_max: int, bytes_max: int
    ) -> StoredRun | Refusal:
        at = message_at(log, nothing.next_offset)
        found = log.read(at.offset, bytes_max)
        if isinstance(found, ReadMoved):  # into damage
            at = boundary_at(log, found.offset)
            found = log.read(at.offset, bytes_max)
        if not isinstance(found, Slice) or at.ordinal < nothing.next_offset:
            return StorageFailed(f"{log.name}: message {nothing.next_offset} is not where the index says")
        base = self.numbers.base(log, at.offset)
        if base is None:
            return NumberPending(log.topic, log.index, at.offset)
        end = self._whole_frames(log, at, found, messages_max)
        remember(log, end.ordinal, end.offset)
        return StoredRun(
            found._replace(length=end.offset - at.offset),
            at.ordinal,
            end.ordinal,
            nothing.min_offset,
            nothing.max_offset,
            base + at.offset,
            time_before(log, at.offset),
        )

    def _whole_frames(self, log: PartitionLog, at: Boundary, found: Slice, messages_max: int) -> Boundary:
        """Return where whole frames end in a slice that begins with one: at least one, at most ``messages_max``.

        Raises:
            CorruptFrame: The first is longer than the stored bytes.
        """
        limit = min(at.offset + found.length, at.offset + STRETCH_BYTES - at.offset % STRETCH_BYTES)
        end = message_at(log, at.ordinal + messages_max)
        if end.offset > limit:
            end = boundary_at(log, limit)
        if end.offset > at.offset:
            return end
        header = found._replace(length=HEADER_BYTES).read()
        return Boundary(at.offset + frame_bytes_of(log, at.offset, header), at.ordinal + 1)

    def when_numbered(self, pending: NumberPending, then: Callable[[Refusal | None], None]) -> None:
        """Call ``then`` when the partition has its number, with ``None``, or with the reason why it gets none."""
        log = self._log(pending.topic, pending.queue)
        if isinstance(log, Refusal):
            then(log)
        else:
            self.numbers.require(
                log,
                pending.offset,
                lambda base: then(StorageFailed(str(base)) if isinstance(base, Exception) else None),
            )

    def find(self, physical_offset: int) -> Record | Refusal:
        """Return the message at a physical offset, or the reason why there is none."""
        found = self.numbers.find(physical_offset)
        if found is None:
            return NothingAt(physical_offset)
        stretch, offset = found
        log = self._log(stretch.topic, stretch.queue)
        if isinstance(log, Refusal):
            return log
        try:
            where = boundary_at(log, offset)
            is_there = log.start_offset <= offset < log.readable_end and where.offset == offset
            if not is_there or stretch.incarnation != log.incarnation:
                return NothingAt(physical_offset)
            remember(log, where.ordinal, offset)
            batch = self._read(log, where.ordinal, Wanted(1, 1, 1))
        except (OSError, CorruptFrame) as error:
            return StorageFailed(str(error))
        if isinstance(batch, Refusal):
            return batch
        record = read_record(batch.records) if batch.records else None
        return record if record and record.physical_offset == physical_offset else NothingAt(physical_offset)

    # ---- positions

    def min_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset of the oldest stored message, 0 if none was ever stored."""
        log = self._log(topic, queue)
        return 0 if isinstance(log, Refusal) else first_ordinal(log)

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset after the last message that can be read."""
        log = self._log(topic, queue)
        return 0 if isinstance(log, Refusal) else log.durable_ordinal

    def reported_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset below which listeners were notified of all messages."""
        unreported, end = self._unreported.get((topic, queue)), self.max_offset(topic, queue)
        return min(unreported[0], end) if unreported else end

    def fault(self, topic: str, queue: int) -> Refusal | None:
        """Return why a queue that may have messages cannot be read now; ``None`` if it can, or has none."""
        log = self._log(topic, queue)
        return log if isinstance(log, Refusal) and not isinstance(log, PartitionEmpty) else None

    def put_refusal(self, topic: str, queue: int) -> Refusal | None:
        """Return why a message for a queue would be refused now, ``None`` if it would not."""
        refusal = self.engine.put_refusal(topic, queue, is_ours=True) or self.fault(topic, queue)
        if refusal is not None or self.engine.stores.get(topic, queue) is not None:
            return refusal
        limit = self.engine.more_partitions_refusal()
        return None if limit is None else PartitionLimit(limit)

    def steady_ms(self) -> int:
        """Return the time without jumps, which determines due messages (``log.engine.steady_time``)."""
        return self.engine.id_clock.steady_ms()

    def steady_time_of(self, wall_ms: int) -> int:
        """Return where a time that this broker's clock has shown is on that line."""
        return self.engine.id_clock.steady.of(wall_ms)

    def renumbered(self, topic: str, queue: int) -> int | None:
        """Return the first queue offset if the queue was renumbered when it was opened, else ``None``."""
        log = self._log(topic, queue)
        return None if isinstance(log, Refusal) else log.recovery.renumbered

    def offset_at(self, topic: str, queue: int, time_ms: int) -> int | Refusal:
        """Return the queue offset of the first message that was stored at or after ``time_ms``, the end without one."""
        log = self._log(topic, queue)
        if isinstance(log, Refusal):
            return log
        try:
            return boundary_at(log, log.first_at(time_ms)).ordinal
        except OSError as error:
            return StorageFailed(str(error))

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int | None:
        """Return a message's store time in milliseconds; ``None`` if it does not exist or the time is unknown."""
        log = self._log(topic, queue)
        if isinstance(log, Refusal) or not first_ordinal(log) <= queue_offset < log.durable_ordinal:
            return None
        try:
            where = message_at(log, queue_offset)
            found = log.read(where.offset, HEADER_BYTES)
            if not isinstance(found, Slice) or where.ordinal != queue_offset:
                return None
            return timestamp_ms(message_id_at(found.read())) or time_before(log, found.offset)
        except OSError:
            return None

    def watch(self, topic: str, queue: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` whenever a queue has more readable messages; return a function that ends it."""
        return self.engine.watch(topic, queue, lambda _end: callback())

    def _log(self, topic: str, queue: int) -> PartitionLog | Refusal:
        engine = self.engine
        if engine.is_closed(topic, queue):
            return PartitionClosed(queue)
        log = engine.stores.get(topic, queue)
        if log is not None:
            return log
        fault = engine.stores.refusal(topic, queue)
        return PartitionEmpty(topic, queue) if fault is None else PartitionUnavailable(fault)

    def _records_of(self, log: PartitionLog) -> QueueRecords:
        key = log.topic, log.index
        made = self._records.get(key)
        if made is None:
            if len(self._records) >= QUEUES_MAX:
                self._records.clear()
            made = self._records[key] = QueueRecords(*key, self.store_host)
        return made


class _Unit:
    """The acknowledgement of sends that are appended as one unit: ``durable`` is called by the log, and answers each.

    ``appended`` is set when the unit is in the log, before it is durable.
    """

    __slots__ = ("_queue", "_sends", "_store", "_topic", "appended", "frames")

    appended: Appended

    def __init__(self, store: MessageStore, topic: str, queue: int, sends: Sequence[WaitingFrames]) -> None:
        self._store, self._topic, self._queue, self._sends = store, topic, queue, sends
        self.frames = FrameBlock.joined([frames for frames, _ in sends])

    def refuse(self, refusal: Refusal) -> None:
        """Answer all sends that they are not stored."""
        for _, done in self._sends:
            call(done, refusal)

    def durable(self, refusal: Refusal | None) -> None:
        store = self._store
        log = store.engine.stores.get(self._topic, self._queue)
        if refusal is not None or log is None:  # without a log, an operator has just deleted it
            store.reported(self._topic, self._queue, self.appended.first_ordinal)
            self.refuse(refusal or StorageFailed("the partition was removed"))
        else:
            store.numbers.require(log, self.appended.first_offset, self._answer)

    def _answer(self, base: int | Exception) -> None:
        """Answer all sends: ``base`` makes offsets physical, or there is none, because the disk refused it.

        The messages are stored in either case, so that nobody may store them again.
        """
        _, ids, first_offset, _, ordinal, _ = self.appended
        host, store_time = self._store.store_host.hex().upper(), ids.first_ms
        unnumbered = offsets = None
        if isinstance(base, Exception):
            unnumbered = f"the message is stored; its queue has no number for message ids yet: {base}"
            places = [0] * self.frames.count
        else:
            first = base + first_offset
            places = offsets = [first + start for start in (0, *self.frames.ends[:-1])]
        at = 0
        for frames, done in self._sends:
            end = at + frames.count
            call(done, StoredBatch(self._queue, ordinal + at, places[at:end], store_time, host, unnumbered))
            at = end
        self._store.step.at_end(partial(self._report, offsets))  # listeners are called when the answers have left

    def _report(self, offsets: Sequence[int] | None) -> None:
        ordinal, store_time = self.appended.first_ordinal, self.appended.ids.first_ms
        try:
            for listener in self._store.listeners:
                listener(self._topic, self._queue, ordinal, self.frames, offsets, store_time)
        finally:
            self._store.reported(self._topic, self._queue, ordinal)


def after_damage(log: PartitionLog, offset: int, error: CorruptFrame) -> int:
    """Return where the message after a newly found damaged one begins: one damaged frame costs one frame.

    Raises:
        CorruptFrame: There is no intact message at the end of the damaged one.
        OSError: The segment cannot be read.
    """
    front = log.read(offset, 4)
    end = offset + frame_bytes(front.read()) if isinstance(front, Slice) else -1
    if not offset < end <= log.readable_end or (end < log.readable_end and next(log.scan(end), None) is None):
        raise error
    fields = {"partition": log.name, "offset": offset, "reason": error.reason}
    _LOG.error("a damaged message was left out; check the partition with fsck", extra={"fields": fields})
    return end


def frame_bytes_of(log: PartitionLog, offset: int, run: bytes) -> int:
    """Return how many bytes the frame at ``offset`` takes, of which ``run`` has too few.

    Raises:
        CorruptFrame: It cannot be so long.
    """
    size = frame_bytes(run) if len(run) >= HEADER_BYTES else HEADER_BYTES
    if not len(run) < size <= log.readable_end - offset:
        raise CorruptFrame(log.name, offset, f"it announces {size} bytes, more than there are")
    return size
