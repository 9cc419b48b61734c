"""One partition: frames appended at one end, made durable, read by byte offset, deleted by segments at the other end.

Invariants. Tests name them by number (``# I3``):

I1. ``start_offset <= readable_end <= end_offset``. None moves back within an incarnation, but for ``end_offset``
    when a failed log is reopened: it never moves below ``readable_end``.
I2. Only what is durable is read: bytes from ``readable_end`` on are never served.
I3. Only what is durable is acknowledged: ``readable_end`` moves when every step of a sync has succeeded.
I4. A write is stored whole or leaves no trace. One that finds no space is refused and changes nothing; after any other
    failed write the log is read-only, and what was appended before is still synced and served.
I5. After a failed fsync nothing after the durable end is trusted, even if later syncs succeed.
I6. Segments follow each other without a gap. Segments are forgotten from the oldest one on, only finished and durable
    ones, and never the one that is written.
I7. Recovery cuts only what was not acknowledged: the torn tail of the newest segment. Damage elsewhere is quarantined,
    and only the messages that it touches are lost.
I8. A message keeps its offset and its ordinal as long as the partition's incarnation lasts. Where a number is lost,
    numbers go on above all that were ever given.

Everything runs on one thread (the event loop) and never waits for the disk, except opening, reopening and closing.
``pending_sync`` captures what is to be synced, a worker thread runs it, and ``complete_sync``, back on the loop, moves
``readable_end``. ``reopen``, or a restart, recovers a log that is read-only.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from pathlib import Path

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import Frame
from metaq.model import Buffer, OffsetRange
from metaq_broker.clock import Clock
from metaq_broker.log.files.durable_ends import KnownEnd
from metaq_broker.log.files.errors import LogFailed, LogFull, is_disk_full
from metaq_broker.log.files.files import FileHandle, Files, HandleCache
from metaq_broker.log.partitions import reads
from metaq_broker.log.partitions.damage import COPIED, Damage, write_quarantine
from metaq_broker.log.partitions.folders import parse_folder_name
from metaq_broker.log.partitions.incarnation import Incarnation
from metaq_broker.log.partitions.layout import Layout
from metaq_broker.log.partitions.loading import Loaded, LogSettings, Verify, load
from metaq_broker.log.partitions.numbering import FirstEntryJob
from metaq_broker.log.partitions.reads import ReadAtEnd, ReadMoved, Slice
from metaq_broker.log.partitions.recovery import RecoveryReport
from metaq_broker.log.segments.index import IndexBuilder, IndexEntry, SegmentIndex, write_entries
from metaq_broker.log.segments.segment import (
    Segment,
    SegmentInfo,
    index_path,
    segment_info,
    segment_path,
    unnamed_path,
)
from metaq_broker.log.sync.sync import SyncJob, Unsynced

__all__ = ["LogSettings", "PartitionLog", "ReadAtEnd", "ReadMoved", "Slice", "SyncJob", "Verify"]

_LOGGER = logging.getLogger(__name__)


class PartitionLog:
    """Open it with ``open``. Not thread-safe; only ``SyncJob.run`` is for other threads.

    ``name``: TOPIC-INDEX, as its ``directory`` is named.
    """

    name: str
    topic: str
    index: int
    directory: Path
    recovery: RecoveryReport
    end_offset: int
    readable_end: int
    failure: str | None
    layout: Layout

    def __init__(
        self,
        files: Files,
        clock: Clock,
        directory: Path,
        settings: LogSettings,
        handles: HandleCache,
        loaded: Loaded,
        incarnation: Incarnation,
    ) -> None:
        self.name = directory.name
        self.topic, self.index = parse_folder_name(self.name)
        self.directory = directory
        self._files, self._clock = files, clock
        self._settings = settings
        self._handles = handles
        self._incarnation = incarnation
        self._adopt(loaded)

    @classmethod
    def open(
        cls,
        files: Files,
        clock: Clock,
        directory: Path,
        settings: LogSettings,
        *,
        verify: Verify = "tail",
        handles: HandleCache | None = None,
        known_ends: Sequence[KnownEnd] = (),
    ) -> PartitionLog:
        """Open or create the partition in ``directory``, whose name is TOPIC-INDEX; its parent exists. Recovers first.

        Raises:
            PartitionRefused: The files there are not one contiguous partition.
            OSError: The disk fails.
            ValueError: The folder's name is not TOPIC-INDEX.
        """
        parse_folder_name(directory.name)
        loaded = load(files, directory, settings, verify, known_ends=known_ends)
        incarnation, fault = (Incarnation.new(), None) if loaded.fresh else Incarnation.of_folder(files, directory)
        loaded.report.incarnation_fault = fault
        handles = HandleCache(files) if handles is None else handles  # an empty cache is false: ask for None
        return cls(files, clock, directory, settings, handles, loaded, incarnation)

    def _adopt(self, loaded: Loaded) -> None:
        self.layout = Layout(loaded.segments, loaded.damage, self._handles)
        self._builder: IndexBuilder = loaded.builder
        self.recovery = loaded.report
        self.failure = None
        interval_bytes, active = self._settings.index_interval_bytes, self.layout.active
        self._unsynced = Unsynced(
            self._files, self.directory, interval_bytes, active, self._incarnation, fresh=loaded.fresh
        )
        self._older_messages = sum(segment.messages for segment in loaded.segments[:-1])
        self.end_offset = self.readable_end = self.layout.active.end
        self.durable_ordinal = self._builder.ordinal

    def __repr__(self) -> str:
        state = f"{self.end_offset})" + (f" FAILED: {self.failure}" if self.failure else "")
        return f"<PartitionLog {self.name} [{self.start_offset}, {self.readable_end}..{state}>"

    @property
    def start_offset(self) -> int:
        return self.layout.start

    @property
    def segment_count(self) -> int:
        return len(self.layout.segments)

    @property
    def active(self) -> Segment:
        """The segment that is being written; read-only for callers."""
        return self.layout.active

    @property
    def message_count(self) -> int:
        """Messages that are kept and not quarantined, including appended ones."""
        kept = self._older_messages + self._builder.ordinal - self.layout.active.first_ordinal
        damage = self.layout.damage
        return kept - sum(entry.messages for entry in damage) if damage else kept

    @property
    def end_ordinal(self) -> int:
        return self._builder.ordinal

    @property
    def latest_ms(self) -> int:
        """Wall-clock milliseconds that no message's id exceeds; 0 if no id has a time."""
        return self._builder.time_ms

    @property
    def unflushed_messages(self) -> int:
        return self._builder.ordinal - self.durable_ordinal

    @property
    def sync_failed(self) -> bool:
        """Whether an fsync has failed since the log was opened: messages not durable then may never be acknowledged."""
        return self._unsynced.failed

    @property
    def quarantined(self) -> Sequence[OffsetRange]:
        """The ranges of damaged bytes, ascending."""
        return [entry.range for entry in self.layout.damage]

    @property
    def incarnation(self) -> str | None:
        """The partition's UUID, 32 hex digits; ``None`` while it is not durable, and so no message is readable yet.

        Also ``None`` if a full or failing disk did not store it; each sync tries again.
        """
        return self._incarnation.uuid if self._incarnation.durable else None

    # ---- appending

    def append(self, frames: Sequence[bytes]) -> int:
        """Append whole frames; return the offset of the first one.

        A new segment may begin between frames, as soon as the current one has reached its maximum.

        Raises:
            LogFailed: The log is, or has just become, read-only, or has no space. The error tells how many frames of
                this call are stored.
        """
        first, block = self.end_offset, FrameBlock.of(frames)
        while block.count:
            free_bytes = self._settings.segment_bytes_max - self.layout.active.size
            fitting = block.part(0, min(bisect_left(block.ends, free_bytes) + 1, block.count))
            try:
                self._write([fitting.data])
            except LogFailed as failure:
                failure.stored = len(frames) - block.count
                raise
            self._builder.add_block(fitting, self._clock.now_ms, ids_ascend=False)
            if self.layout.active.size >= self._settings.segment_bytes_max:
                self.begin_segment()
            block = block.part(fitting.count, block.count - fitting.count)
        return first

    def append_blocks(self, blocks: Sequence[FrameBlock], *, may_roll: bool = False) -> int:
        """Append blocks as one unit that no roll divides; return the offset of its first byte.

        Message ids ascend within a block. ``may_roll``: the one block may be divided between segments, as by
        ``append``.

        Raises:
            LogFailed: The log is, or has just become, read-only, or has no space. The unit is stored whole or not at
                all, unless it was divided: then the error tells how many of its messages are stored.
        """
        if may_roll and self.layout.active.size + len(blocks[0].data) >= self._settings.segment_bytes_max:
            return self.append(blocks[0].split())
        first = self.end_offset
        self._write([block.data for block in blocks])
        for block in blocks:
            self._builder.add_block(block, self._clock.now_ms)
        if self.layout.active.size >= self._settings.segment_bytes_max:
            self.begin_segment()
        return first

    def append_copy(self, block: FrameBlock) -> None:
        """Append frames of another broker's log to the active segment. Raises as ``append``."""
        self._write([block.data])
        self._builder.add_block(block, self._clock.now_ms, ids_ascend=block.ids_ascend)

    def append_damage(self, data: Buffer, messages: int) -> None:
        """Append bytes that are damaged in another broker's log, and contained ``messages``: quarantined (blocking).

        Raises:
            LogFailed: As ``append``.
        """
        start = self.end_offset
        self._write([data])
        self._builder.skip(len(data), messages)
        self.layout.add_damage(Damage(start, self.end_offset, messages, COPIED))
        try:
            write_quarantine(self._files, self.directory, self.layout.damage)
        except OSError as error:
            raise LogFailed(self.name, self._fail("quarantining damage of the leader", error)) from error

    def _write(self, parts: Sequence[Buffer]) -> None:
        if self.failure is not None:
            raise LogFailed(self.name, self.failure)
        size = sum(map(len, parts))
        active = self.layout.active
        assert active.handle is not None  # the active segment is always open
        try:
            self._files.pwrite_all(active.handle.fd, parts, active.size)
        except OSError as error:
            raise self._write_failed(active, active.handle, size, error) from error
        active.size += size
        self.end_offset += size

    def _write_failed(self, active: Segment, handle: FileHandle, byte_count: int, error: OSError) -> LogFailed:
        undone = False
        with contextlib.suppress(OSError):
            self._files.truncate(handle.fd, active.size)
            undone = True
        action = f"writing {byte_count} bytes at offset {active.end}"
        if undone and is_disk_full(error):
            return LogFull(self.name, f"{action} failed: {error.strerror}")
        return LogFailed(self.name, self._fail(action, error))

    def _fail(self, action: str, error: OSError) -> str:
        self.failure = f"{action} failed: {error.strerror or error}"
        fields = {"partition": self.name, "reason": self.failure}
        _LOGGER.error("partition is read-only", extra={"fields": fields})
        return self.failure

    def begin_segment(self) -> None:
        """Finish the active segment, begin the next; on a full disk the active one grows, after other errors appends
        fail.
        """
        active, start, builder = self.layout.active, self.end_offset, self._builder
        try:
            fd = self._files.open_append(unnamed_path(self.directory, start))
        except OSError as error:
            if not is_disk_full(error):
                self._fail(f"making the segment that starts at {start}", error)
            return
        builder.mark()
        active.messages = builder.ordinal - active.first_ordinal
        self._older_messages += active.messages
        self._builder = IndexBuilder.at_start(start, builder.ordinal, builder.time_ms, builder.interval_bytes)
        index = SegmentIndex(index_path(self.directory, start), 0, self._builder.entries)
        path, handle = segment_path(self.directory, start), FileHandle(self._files, fd)
        segment = Segment(start, 0, path, index, builder.ordinal, builder.time_ms, named=False, handle=handle)
        self.layout.add(segment)
        self._unsynced.add(segment)
        _LOGGER.info("segment begun", extra={"fields": {"partition": self.name, "start": start}})

    # ---- making it durable

    def pending_sync(self) -> SyncJob | None:
        """Capture everything that is not durable yet; ``None`` if there is nothing, a sync is under way, or one has
        failed.

        Pass the job to ``complete_sync`` after it has run.
        """
        if self.end_offset == self.readable_end and not self._unsynced.folders:
            return None
        return self._unsynced.capture(self.readable_end, self.end_offset, self._builder.ordinal)

    def durable_to(self) -> int | LogFailed:
        """Return the readable end, or the failure of a sync, after which the end moves no more."""
        if self._unsynced.failed:
            return LogFailed(self.name, self.failure or "its sync failed")
        return self.readable_end

    def complete_sync(self, job: SyncJob, error: OSError | None) -> int | LogFailed:
        """Record the end of a job: everything below ``job.end`` is durable, or the log is read-only now.

        Return what ``durable_to`` does.
        """
        if job is not self._unsynced.under_way:
            return self.durable_to()
        if error is not None:
            self._unsynced.fail()
            self._fail(f"making offsets {self.readable_end} to {job.end} durable", error)
            return self.durable_to()
        self._unsynced.settle(job, self._clock.since_boot())
        self.readable_end, self.durable_ordinal = job.end, job.ordinal
        return job.end

    def sync(self) -> None:
        """Make everything durable now (blocking).

        Raises:
            LogFailed: It could not be done; the log is read-only.
        """
        job = self.pending_sync()
        if job is not None:
            try:
                job.run()
            except OSError as error:
                self.complete_sync(job, error)
            else:
                self.complete_sync(job, None)
        if self.sync_failed and self.failure is not None:
            raise LogFailed(self.name, self.failure)

    def reopen(self, verify: Verify = "tail") -> RecoveryReport:
        """Recover on newly opened files, as a restart would; afterwards the log is writable again (blocking).

        A sync job that is still under way is ignored. After a failed fsync everything after ``readable_end`` is cut.

        Raises:
            PartitionRefused, OSError: It cannot be recovered; the log does not change.
        """
        return self.resume(self.load_again(verify))

    def load_again(self, verify: Verify = "tail") -> Loaded:
        """Do the slow part of ``reopen``, for ``resume``: in any thread, while the log is read-only.

        No append or sync is allowed meanwhile; reads and ``forget_segments`` are.

        Raises:
            PartitionRefused, OSError: It cannot be recovered; the log does not change.
        """
        durable_end = self.readable_end if self.sync_failed else None
        known = KnownEnd(self.readable_end, self.durable_ordinal, exact=True)
        loaded = load(self._files, self.directory, self._settings, verify, durable_end, [known])
        if not loaded.fresh:
            self._incarnation.settle(self._files, self.directory)
        return loaded

    def resume(self, loaded: Loaded) -> RecoveryReport:
        """Continue with the result of ``load_again``, without the segments that were forgotten meanwhile."""
        start = self.start_offset
        loaded.segments[:] = [segment for segment in loaded.segments if segment.start >= start]
        loaded.damage[:] = [entry for entry in loaded.damage if entry.start >= start]
        if loaded.fresh:  # the files were removed meanwhile: offsets begin at 0
            self._incarnation = Incarnation.new()
        self._adopt(loaded)
        return loaded.report

    def anew(self, loaded: Loaded) -> PartitionLog:
        """Return the log that begins where the files of this one, which is closed, were removed (``Loaded.fresh``)."""
        parts = self._files, self._clock, self.directory, self._settings, self._handles
        return PartitionLog(*parts, loaded, Incarnation.new())

    def close(self, clean: bool = True) -> bool:
        """Stop appending. With ``clean``, make everything durable and complete the index (blocking).

        Return whether the log may be trusted at the next start. Existing slices stay readable.
        """
        trusted = clean and self.failure is None and self._close_cleanly()
        self.failure = self.failure or "it is closed"
        for segment in self.layout.segments:
            segment.handle = None
            self._handles.drop(segment.path)  # the names may soon belong to other files
            self._handles.drop(segment.index.path)
        return trusted

    def _close_cleanly(self) -> bool:
        self._unsynced.disown()  # this sync replaces a job that is still under way
        active = self.layout.active
        try:
            self.sync()
            self._builder.mark()
            index, interval_bytes = active.index, self._builder.interval_bytes
            write_entries(self._files, index.path, active.start, interval_bytes, index.written, index.unwritten.records)
        except (LogFailed, OSError):
            return False
        return True

    def read(self, offset: int, bytes_max: int) -> Slice | ReadAtEnd | ReadMoved:
        """Return up to ``bytes_max`` (1 or more) durable, undamaged bytes of one segment from ``offset`` on.

        Slices need not begin or end at a frame boundary. ``ReadMoved``: below the start, or inside damage (to its end).

        Raises:
            OSError: The segment's file cannot be opened.
        """
        if offset >= self.readable_end:
            return ReadAtEnd(self.readable_end, offset)
        layout = self.layout
        segment = layout.active if offset >= layout.active.start else layout.find(offset)
        if offset < segment.start:
            return ReadMoved(segment.start)
        limit = min(segment.end, self.readable_end)
        if layout.damage:
            damage = layout.damage_at(offset)
            if damage is not None:
                return ReadMoved(damage.end)
            limit = layout.intact_end(offset, limit)
        length = min(bytes_max, limit - offset)
        return Slice(layout.handle(segment), offset - segment.start, length, offset)

    def scan(self, offset: int) -> Iterator[Frame]:
        """Yield the durable, intact frames from the frame boundary ``offset`` on (blocking).

        Raises:
            CorruptFrame: Newly found damage, or ``offset`` is not a frame boundary.
        """
        return reads.scan(self.read, offset, self.name)

    # ---- positions

    def segment_start(self, offset: int) -> int:
        """Return the start of the segment with ``offset``; else the log's start or readable end."""
        return self.readable_end if offset >= self.readable_end else self.layout.find(offset).start

    def boundary(self, offset: int) -> int:
        """Return the frame boundary at or below ``offset``, clamped to the kept, readable range."""
        return reads.boundary_at_or_below(self.layout, self._clamp(offset)).offset

    def ordinal(self, offset: int) -> int:
        """Return the number of messages before the frame boundary at or below ``offset``, since the partition began.

        Quarantined messages count, so that ordinals do not change. Clamped like ``boundary``. If all indexes are lost,
        ordinals continue above all earlier ones (see ``numbering``), and damage that was not quarantined before counts
        as one message.
        """
        return reads.boundary_at_or_below(self.layout, self._clamp(offset)).ordinal

    def offset_of_message(self, ordinal: int) -> int:
        """Return the offset of message ``ordinal``, or of the damage with it; clamped to [start, readable end]."""
        if ordinal >= self.durable_ordinal:
            return self.readable_end
        return reads.boundary_of_message(self.layout, ordinal).offset

    def first_at(self, time_ms: int) -> int:
        """Return the offset of the first message at or after wall-clock ``time_ms``; the readable end if there is none.

        Exact for messages whose ids have a time; others may be up to an index interval too early.
        """
        if time_ms > self._builder.time_ms:
            return self.readable_end
        return reads.first_at(self.layout, time_ms, self.readable_end)

    def _clamp(self, offset: int) -> int:
        return min(max(offset, self.start_offset), self.readable_end)

    # ---- retention

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""
        active = self.layout.active
        return [segment_info(self._files, segment, active=segment is active) for segment in self.layout.segments]

    @property
    def removable(self) -> int:
        """How many of the oldest segments may be removed: they are finished and durable, and the rest is named."""
        *finished, active = self.layout.segments
        settled = sum(1 for _ in takewhile(attrgetter("settled"), finished))
        return settled if active.named or settled < len(finished) else max(0, settled - 1)

    def first_entry(self, count: int) -> FirstEntryJob:
        """Return the job that makes durable how many messages are in and before the ``count`` oldest segments."""
        segment = self.layout.segments[count]
        entry = IndexEntry(segment.start, segment.first_ordinal, segment.first_ms, 0)
        return FirstEntryJob(self._files, segment.index.path, entry, self._settings.index_interval_bytes)

    def forget_segments(self, count: int) -> list[SegmentInfo]:
        """Take the ``count`` oldest segments out of service: ``start_offset`` moves, nothing on disk changes yet.

        Run ``first_entry`` before. Pass the result to a ``RemovalJob``; until it has run, a restart finds the segments
        again.

        Raises:
            ValueError: Fewer than ``count`` segments are ``removable``.
        """
        if count > self.removable:
            raise ValueError(f"{self.name}: cannot forget {count} segments, {self.removable} can be removed")
        infos = [segment_info(self._files, segment, active=False) for segment in self.layout.segments[:count]]
        for segment in self.layout.forget(count):
            self._older_messages -= segment.messages
        return infos
