"""One partition: frames appended at one end, made durable, read by byte offset, deleted by segments at the other end.

Three offsets matter, ``start_offset <= readable_end <= end_offset``: where the kept bytes begin, up to where they are
durable and served, and where the next append goes. Everything runs on one thread (the event loop) and never waits for
the disk, except opening, reopening and closing; ``pending_sync`` captures what is to be synced, a worker thread runs
it, and ``complete_sync`` back on the loop moves ``readable_end``. What is below it may be acknowledged.

A write that finds no space is refused and changes nothing. Any other failed write makes the log read-only; what was
appended before is still synced and served. After a failed fsync nothing behind the durable end is believed any more.
``reopen``, or a restart, recovers from both.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from metaq.model import Buffer, OffsetRange
from metaq.wire.text.frames import HEADER_BYTES, Frame, walk
from metaq_broker.clock import Clock
from metaq_broker.files import Files
from metaq_broker.log import lookup
from metaq_broker.log.errors import LogFailed, LogFull, is_disk_full
from metaq_broker.log.handles import FileHandle, HandleCache
from metaq_broker.log.index import IndexBuilder, SegmentIndex, write_entries
from metaq_broker.log.layout import Layout
from metaq_broker.log.loading import Loaded, load
from metaq_broker.log.names import parse_folder_name
from metaq_broker.log.reads import AtEnd, Moved, Slice
from metaq_broker.log.removal import remove_segment_files
from metaq_broker.log.report import RecoveryReport
from metaq_broker.log.segment import Segment, SegmentInfo, index_path, segment_path, unnamed_path
from metaq_broker.log.settings import LogSettings, Verify
from metaq_broker.log.sync import SegmentTarget, SyncJob

__all__ = ["AtEnd", "LogSettings", "Moved", "PartitionLog", "Slice", "SyncJob", "Verify", "remove_segment_files"]

_SCAN_BYTES = 1 << 20
_LOGGER = logging.getLogger(__name__)


class PartitionLog:
    """See the module. Make one with ``open``. Not thread-safe; ``SyncJob.run`` is the only part for other threads."""

    topic: str
    index: int
    directory: Path
    recovery: RecoveryReport
    end_offset: int
    readable_end: int
    failure: str | None

    def __init__(
        self, files: Files, clock: Clock, directory: Path, settings: LogSettings, handles: HandleCache, loaded: Loaded
    ) -> None:
        self.topic, self.index = parse_folder_name(directory.name)
        self.directory = directory
        self._files, self._clock = files, clock
        self._settings = settings
        self._handles = handles
        self._generation = 0
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
    ) -> PartitionLog:
        """Open or make the partition in ``directory``, whose name is TOPIC-INDEX; its parent exists. Recovers first.

        Raises:
            PartitionRefused: The files there are not one contiguous partition.
            OSError: The disk fails.
            ValueError: The folder's name is not TOPIC-INDEX.
        """
        parse_folder_name(directory.name)
        loaded = load(files, directory, settings, verify)
        # An empty cache is false: ask for None.
        return cls(files, clock, directory, settings, HandleCache(files) if handles is None else handles, loaded)

    def _adopt(self, loaded: Loaded) -> None:
        self._layout = Layout(loaded.segments, loaded.damage, self._handles)
        self._builder: IndexBuilder = loaded.builder
        self.recovery = loaded.report
        self.failure = None
        self._sync_failed = False
        self._unsynced = [self._layout.active]
        self._unsynced_folders = [self.directory.parent, self.directory] if loaded.fresh else []
        self._sync_under_way = False
        self._older_messages = sum(segment.messages for segment in loaded.segments[:-1])
        self.end_offset = self.readable_end = self._layout.active.end
        self._durable_ordinal = self._builder.ordinal

    def __repr__(self) -> str:
        state = f" FAILED: {self.failure}" if self.failure else ""
        offsets = f"[{self.start_offset}, {self.readable_end}..{self.end_offset})"
        return f"<PartitionLog {self.directory.name} {offsets}{state}>"

    # ---- what it holds

    @property
    def start_offset(self) -> int:
        """Offset of the oldest byte that is kept."""
        return self._layout.start

    @property
    def segment_count(self) -> int:
        """Segments that are kept, the one being written included."""
        return len(self._layout.segments)

    @property
    def message_count(self) -> int:
        """Messages that are kept and not quarantined, appended ones included."""
        held = self._older_messages + self._builder.ordinal - self._layout.active.first_ordinal
        return held - sum(entry.messages for entry in self._layout.damage)

    @property
    def unflushed_messages(self) -> int:
        """Messages appended but not yet durable."""
        return self._builder.ordinal - self._durable_ordinal

    @property
    def sync_failed(self) -> bool:
        """Whether an fsync failed since the log was opened: what was not durable then may never be acknowledged."""
        return self._sync_failed

    @property
    def quarantined(self) -> Sequence[OffsetRange]:
        """The ranges of damaged bytes, ascending."""
        return [entry.range for entry in self._layout.damage]

    # ---- appending

    def append(self, frames: Sequence[bytes]) -> int:
        """Append whole frames; return the offset of the first one, the others follow from their lengths.

        Rolls between frames, as soon as a segment has reached its maximum.

        Raises:
            LogFailed: The log is, or has just become, read-only. Frames of this call may be stored, each whole or not
            at all.
        """
        first = self.end_offset
        self._check_writable()
        if not frames:
            return first
        data = b"".join(frames)
        if self._layout.active.size + len(data) < self._settings.segment_bytes_max:
            self._write(data)
            self._builder.add_frames(data, frames, self._clock.now_ms)
        else:
            self._append_over_rolls(frames)
        return first

    def append_block(self, block: bytes, count: int, marks: Sequence[tuple[int, int]]) -> int:
        """Append ``count`` whole frames as one unit that no roll divides; return the offset of its first byte.

        ``marks`` are (offset, ordinal) of frames in the block, ascending, the first (0, 0); the index uses some of
        them. Message ids ascend within a block.

        Raises:
            LogFailed: The log is, or has just become, read-only. The block is stored whole or not at all.
        """
        first = self.end_offset
        self._check_writable()
        self._write(block)
        self._builder.add_block(block, count, marks, self._clock.now_ms)
        self._roll_if_full()
        return first

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise LogFailed(self.directory.name, self.failure)

    def _append_over_rolls(self, frames: Sequence[bytes]) -> None:
        while frames:
            ends = list(accumulate(map(len, frames)))
            room = self._settings.segment_bytes_max - self._layout.active.size
            count = bisect_left(ends, room) + 1
            part = frames[:count]
            data = b"".join(part)
            self._write(data)
            self._builder.add_frames(data, part, self._clock.now_ms)
            self._roll_if_full()
            frames = frames[count:]
            if frames:
                self._check_writable()

    def _write(self, data: Buffer) -> None:
        active = self._layout.active
        assert active.handle is not None  # the active segment is always open
        try:
            self._files.pwrite(active.handle.fd, data, active.size)
        except OSError as error:
            raise self._write_failed(active, active.handle, len(data), error) from error
        active.size += len(data)
        self.end_offset += len(data)

    def _write_failed(self, active: Segment, handle: FileHandle, byte_count: int, error: OSError) -> LogFailed:
        undone = False
        with contextlib.suppress(OSError):
            self._files.truncate(handle.fd, active.size)
            undone = True
        action = f"writing {byte_count} bytes at offset {active.end}"
        if undone and is_disk_full(error):
            return LogFull(self.directory.name, f"{action} failed: {error.strerror}")
        return LogFailed(self.directory.name, self._fail(action, error))

    def _fail(self, action: str, error: OSError) -> str:
        self.failure = f"{action} failed: {error.strerror or error}"
        fields = {"partition": self.directory.name, "reason": self.failure}
        _LOGGER.error("partition is read-only", extra={"fields": fields})
        return self.failure

    def _roll_if_full(self) -> None:
        """Finish the active segment and start the next one if it is due. If that fails, the next append is refused.

        On a full disk the active segment grows on instead, and every append tries again.
        """
        active = self._layout.active
        if active.size < self._settings.segment_bytes_max:
            return
        start, builder = self.end_offset, self._builder
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
        self._layout.add(segment)
        self._unsynced.append(segment)
        if self.directory not in self._unsynced_folders:
            self._unsynced_folders.append(self.directory)
        _LOGGER.info("segment begun", extra={"fields": {"partition": self.directory.name, "start": start}})

    # ---- making it durable

    def pending_sync(self) -> SyncJob | None:
        """Capture everything that is not durable yet; ``None`` if nothing is, one is under way, or an fsync has failed.

        Hand the job back to ``complete_sync`` when it has run.
        """
        if self._sync_under_way or self._sync_failed:
            return None
        if self.end_offset == self.readable_end and not self._unsynced_folders:
            return None
        self._sync_under_way = True
        return SyncJob(
            self._files,
            self.directory,
            [SegmentTarget.of(segment) for segment in self._unsynced],
            tuple(self._unsynced_folders),
            self.readable_end,
            self.end_offset,
            self._builder.ordinal,
            self._settings.index_interval_bytes,
            self._generation,
        )

    def complete_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Take note of how a job ended: everything below ``job.end`` is durable, or the log is read-only now."""
        if job.generation != self._generation:
            return
        self._sync_under_way = False
        if error is not None:
            self._sync_failed = True
            self._fail(f"making offsets {self.readable_end} to {job.end} durable", error)
            return
        for target in job.targets:
            target.settle(job.indexes_written)
        active = self._layout.active
        for segment in self._unsynced:
            if segment is not active and segment.settled:
                segment.handle = None
        self._unsynced = [segment for segment in self._unsynced if segment.handle is not None]
        if self._layout.active.named:
            self._unsynced_folders = []
        self.readable_end = job.end
        self._durable_ordinal = job.ordinal

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
        if self._sync_failed and self.failure is not None:
            raise LogFailed(self.directory.name, self.failure)

    def reopen(self, verify: Verify = "tail") -> RecoveryReport:
        """Recover on newly opened files, as a restart would; afterwards the log is writable again (blocking).

        A sync job that is still under way counts for nothing. After a failed fsync everything behind ``readable_end``
        is cut.

        Raises:
            PartitionRefused, OSError: It cannot be recovered; the log stays as it is.
        """
        return self.resume(self.load_again(verify))

    def load_again(self, verify: Verify = "tail") -> Loaded:
        """Do the part of ``reopen`` that takes time, for ``resume``: in any thread, while the log is read-only.

        Nothing may be appended or synced meanwhile; reading and forgetting segments is fine.

        Raises:
            PartitionRefused, OSError: It cannot be recovered; the log stays as it is.
        """
        durable_end = self.readable_end if self._sync_failed else None
        return load(self._files, self.directory, self._settings, verify, durable_end)

    def resume(self, loaded: Loaded) -> RecoveryReport:
        """Go on with what ``load_again`` returned; segments that were forgotten meanwhile stay so."""
        start = self.start_offset
        loaded.segments[:] = [segment for segment in loaded.segments if segment.start >= start]
        loaded.damage[:] = [entry for entry in loaded.damage if entry.start >= start]
        self._generation += 1
        self._adopt(loaded)
        return loaded.report

    def close(self, clean: bool = True) -> bool:
        """Stop appending. With ``clean``, make everything durable and complete the index (blocking).

        Returns whether the log may be trusted at the next start. Slices that were handed out stay readable.
        """
        trusted = clean and self.failure is None and self._close_cleanly()
        self.failure = self.failure or "it is closed"
        for segment in self._layout.segments:
            segment.handle = None
            self._handles.drop(segment.path)  # the names may mean other files soon
            self._handles.drop(segment.index.path)
        return trusted

    def _close_cleanly(self) -> bool:
        self._generation += 1  # the sync here overtakes a job that is still under way
        self._sync_under_way = False
        active = self._layout.active
        try:
            self.sync()
            self._builder.mark()
            index, interval_bytes = active.index, self._builder.interval_bytes
            write_entries(self._files, index.path, active.start, interval_bytes, index.written, index.unwritten)
        except (LogFailed, OSError):
            return False
        return True

    # ---- reading

    def read(self, offset: int, bytes_max: int) -> Slice | AtEnd | Moved:
        """Return what is at ``offset``: up to ``bytes_max`` (1 or more) durable, undamaged bytes of one segment.

        Slices need not begin or end on a frame boundary. ``Moved``: below the start, or inside damage (then: its end).

        Raises:
            OSError: The segment's file cannot be opened.
        """
        if offset >= self.readable_end:
            return AtEnd(self.readable_end, offset)
        layout = self._layout
        segment = layout.active if offset >= layout.active.start else layout.find(offset)
        if offset < segment.start:
            return Moved(segment.start)
        limit = min(segment.end, self.readable_end)
        if layout.damage:
            damage = layout.damage_at(offset)
            if damage is not None:
                return Moved(damage.end)
            limit = layout.intact_end(offset, limit)
        return Slice(layout.handle(segment), offset - segment.start, min(bytes_max, limit - offset), offset)

    def scan(self, offset: int) -> Iterator[Frame]:
        """Yield the durable, intact frames from the frame boundary ``offset`` on (blocking).

        Raises:
            CorruptFrame: Damage that nobody knew of yet, or ``offset`` is no frame boundary.
        """
        bytes_max = _SCAN_BYTES
        while not isinstance(found := self.read(offset, bytes_max), AtEnd):
            if isinstance(found, Moved):
                offset = found.offset
                continue
            run = found.read()
            before = offset
            for frame in walk(run, offset, where=self.directory.name):
                yield frame
                offset = frame.end
            # Not one whole frame: it is larger than the slice.
            bytes_max = _SCAN_BYTES if offset > before else HEADER_BYTES + int.from_bytes(run[:4])

    # ---- positions

    def segment_start(self, offset: int) -> int:
        """Return the start of the segment that holds ``offset``; below the log its start, behind it the readable end.

        Source: docs/protocol.md, MetaQ's ``offset`` command.
        """
        return self.readable_end if offset >= self.readable_end else self._layout.find(offset).start

    def boundary(self, offset: int) -> int:
        """Return the frame boundary at or below ``offset``, clamped to what is kept and readable."""
        return lookup.place_at_or_below(self._layout, self._clamp(offset)).offset

    def ordinal(self, offset: int) -> int:
        """Return the number of messages before the frame boundary at or below ``offset``, since the partition began.

        Quarantined messages count, so that ordinals stay what they were. Clamped like ``boundary``.
        """
        return lookup.place_at_or_below(self._layout, self._clamp(offset)).ordinal

    def first_at(self, time_ms: int) -> int:
        """Return the offset of the first message at or after wall-clock ``time_ms``; the readable end if there is none.

        Exact for messages whose ids tell their time; others may be up to an index interval too early.
        """
        if time_ms > self._builder.time_ms:
            return self.readable_end
        return lookup.first_at(self._layout, time_ms, self.readable_end)

    def _clamp(self, offset: int) -> int:
        return min(max(offset, self.start_offset), self.readable_end)

    # ---- retention

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""
        return [self._info(segment) for segment in self._layout.segments]

    def _info(self, segment: Segment) -> SegmentInfo:
        path = segment.path if segment.named else unnamed_path(self.directory, segment.start)
        try:
            mtime_ms = self._files.stat(path).mtime_ms
        except FileNotFoundError:  # removed by hand: as old as can be, so that retention takes note
            mtime_ms = 0
        read_only = segment is not self._layout.active and segment.settled
        return SegmentInfo(segment.start, segment.size, path, segment.index.path, mtime_ms, read_only)

    def forget_segments(self, count: int) -> list[SegmentInfo]:
        """Take the ``count`` oldest segments out of service: ``start_offset`` moves, nothing on disk changes yet.

        Hand what is returned to a ``RemovalJob``; until it is done a restart would find them again.

        Raises:
            ValueError: Fewer than ``count`` segments are finished and durable; the one being written never goes.
        """
        finished = self._layout.segments[:-1]
        if count > len(finished) or not all(segment.settled for segment in finished[:count]):
            raise ValueError(f"{self.directory.name}: cannot forget {count} segments, {len(finished)} are finished")
        infos = [self._info(segment) for segment in finished[:count]]
        for segment in self._layout.forget(count):
            self._older_messages -= segment.messages
        return infos

    def drop_segments(self, segments: Sequence[SegmentInfo]) -> None:
        """Delete segments, which must be the oldest ones (blocking).

        Raises:
            ValueError: They are not the oldest, or one is still in use for writing.
            OSError: A file cannot be removed; all of them are out of service nevertheless.
        """
        oldest = [segment.start for segment in self._layout.segments[: len(segments)]]
        if [segment.start for segment in segments] != oldest:
            raise ValueError(f"{self.directory.name}: only the oldest segments can be dropped, in their order")
        remove_segment_files(self._files, self.forget_segments(len(segments)))

    def delete_segments_before(self, offset: int) -> None:
        """Delete the segments that lie wholly below ``offset`` (blocking); the one being written stays.

        Raises:
            OSError: A file cannot be removed; all of them are out of service nevertheless.
        """
        candidates = [segment for segment in self._layout.segments[:-1] if segment.end <= offset and segment.settled]
        remove_segment_files(self._files, self.forget_segments(len(candidates)))
