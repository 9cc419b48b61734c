"""Opening a partition's folder: which files make it up, what they hold, and finishing what a crash left half done.

Order of the steps that change the disk, each harmless if a crash repeats or omits what follows it: cut what a failed
fsync left behind the durable end; remove segments that never got their name and continue nothing; write the quarantine
file; cut the torn tail; make bytes, then names durable; write indexes; remove the failed-sync mark.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from metaq_broker.files import Files
from metaq_broker.log import index as index_file
from metaq_broker.log.damage import Damage, read_quarantine, write_quarantine
from metaq_broker.log.errors import PartitionRefused
from metaq_broker.log.failed_sync import read_failed_sync, remove_failed_sync
from metaq_broker.log.handles import FileHandle
from metaq_broker.log.index import TIME_UNKNOWN, IndexBuilder, IndexEntry, SegmentIndex
from metaq_broker.log.recovery import Evidence, Examined, examine
from metaq_broker.log.report import RecoveryReport
from metaq_broker.log.segment import Segment, SegmentFile, find_segment_files, index_path, segment_path
from metaq_broker.log.segment_view import SegmentView
from metaq_broker.log.settings import LogSettings, Verify

_PEEK_BYTES = 1 << 12


@dataclass(slots=True)
class Loaded:
    """A partition as found: its segments (the last one open for writing), with the index builder of the last one.

    ``fresh`` tells that the folder or its first segment was just made, so that the names are not durable yet.
    """

    segments: list[Segment]
    builder: IndexBuilder
    damage: list[Damage]
    report: RecoveryReport
    fresh: bool


def load(
    files: Files, directory: Path, settings: LogSettings, verify: Verify, durable_end: int | None = None
) -> Loaded:
    """Open the partition in ``directory``, which is made when absent. All that is found and kept is durable on return.

    ``durable_end``: cut everything behind it, because an fsync failed after it; a mark on disk says the same.

    Raises:
        PartitionRefused: The segments do not follow each other. Nothing was changed.
        OSError: A file cannot be read or repaired.
    """
    return _Loading(files, directory, settings, verify).load(durable_end)


@dataclass(slots=True)
class _Found:
    """A segment file with its size now and its time of change before anything was repaired."""

    file: SegmentFile
    size: int
    mtime_ms: int

    @property
    def end(self) -> int:
        return self.file.start + self.size


class _Loading:
    def __init__(self, files: Files, directory: Path, settings: LogSettings, verify: Verify) -> None:
        self._files = files
        self._directory = directory
        self._interval = settings.index_interval_bytes
        self._verify = verify
        self._report = RecoveryReport()
        self._known: list[Damage] = []
        self._damage: list[Damage] = []
        self._segments: list[Segment] = []
        self._ordinal, self._time_ms = 0, TIME_UNKNOWN
        self._base_known = False
        self._unbased: list[tuple[_Found, Examined, Segment]] = []

    def load(self, durable_end: int | None) -> Loaded:
        if not self._files.is_dir(self._directory):
            self._files.makedir(self._directory)
        found = self._find()
        mark = read_failed_sync(self._files, self._directory)
        ends = [end for end in (durable_end, mark) if end is not None]
        if ends:
            self._verify = "tail" if self._verify == "trust" else self._verify
            found = self._cut_back(found, min(ends))
        self._check_contiguous([entry for entry in found if entry.file.named])
        self._remove_orphans(found)
        self._read_quarantine()
        if not any(entry.file.named for entry in found):
            return self._start_fresh(found)
        builder = self._load_segments(found)
        remove_failed_sync(self._files, self._directory)
        return Loaded(self._segments, builder, self._damage, self._report, fresh=False)

    # ---- which files

    def _find(self) -> list[_Found]:
        found = []
        for file in find_segment_files(self._directory, self._files.listdir(self._directory)):
            status = self._files.stat(file.path)
            found.append(_Found(file, status.size, status.mtime_ms))
        return found

    def _check_contiguous(self, named: list[_Found]) -> None:
        for before, after in pairwise(named):
            if before.end != after.file.start or before.file.start == after.file.start:
                what = "there is a gap" if before.end < after.file.start else "they overlap"
                raise PartitionRefused(
                    self._directory,
                    f"{before.file.path.name} ends at offset {before.end}, but {after.file.path.name} starts at "
                    f"{after.file.start}: {what}; restore the missing file or move the files on one side away",
                )

    def _cut_back(self, found: list[_Found], durable_end: int) -> list[_Found]:
        """Undo everything behind ``durable_end``: it was written around an fsync that failed."""
        kept = []
        for entry in found:
            if entry.file.start > durable_end or (entry.file.start == durable_end and not entry.file.named):
                self._remove(entry)
                continue
            if entry.end > durable_end:
                self._cut(entry, durable_end)
            kept.append(entry)
        return kept

    def _remove(self, entry: _Found) -> None:
        self._files.unlink(entry.file.path)
        self._report.removed.append(entry.file.path.name)

    def _cut(self, entry: _Found, end: int) -> None:
        self._report.bytes_cut += entry.end - end
        self._report.cut_at = end
        handle = FileHandle(self._files, self._files.open_append(entry.file.path))
        entry.size = end - entry.file.start
        self._files.truncate(handle.fd, entry.size)
        self._files.fsync(handle.fd)

    def _remove_orphans(self, found: list[_Found]) -> None:
        """Remove indexes whose segments are gone: what a crash between the two unlinks of a deletion leaves."""
        expected = {index_path(self._directory, entry.file.start).name for entry in found}
        for name in self._files.listdir(self._directory):
            stem = name.removesuffix(index_file.SUFFIX)
            if stem != name and stem.isdigit() and name not in expected:
                self._files.unlink(self._directory / name)

    def _read_quarantine(self) -> None:
        known = read_quarantine(self._files, self._directory)
        if known is None:
            self._verify = "full"
        else:
            self._known = known

    def _start_fresh(self, leftovers: list[_Found]) -> Loaded:
        for entry in leftovers:
            self._remove(entry)
        path = segment_path(self._directory, 0)
        handle = FileHandle(self._files, self._files.open_append(path))
        builder = IndexBuilder.at_start(0, 0, TIME_UNKNOWN, self._interval)
        index = SegmentIndex(index_path(self._directory, 0), 0, builder.entries)
        self._segments = [Segment(0, 0, path, index, 0, TIME_UNKNOWN, handle=handle)]
        return Loaded(self._segments, builder, [], self._report, fresh=True)

    # ---- what they hold

    def _load_segments(self, found: list[_Found]) -> IndexBuilder:
        named = [entry for entry in found if entry.file.named]
        unnamed = [entry for entry in found if not entry.file.named]
        self._base_known = named[0].file.start == 0
        for entry in named[:-1]:
            self._load_older(entry)
        last = named[-1]
        if self._verify == "trust" and not unnamed and (builder := self._trust(last)) is not None:
            self._damage.extend(self._known_in(last))
            return builder
        return self._load_tail(last, unnamed)

    def _load_older(self, entry: _Found) -> None:
        """Take over a segment that was finished and durable before the one after it got its name."""
        path = index_path(self._directory, entry.file.start)
        ends = None if self._verify == "full" else self._complete_index(path, entry)
        if ends is not None:
            count, first, last = ends
            self._learn_base(first.ordinal)
            self._add(entry, SegmentIndex(path, count, []), first, last.ordinal, last.time_ms)
            self._damage.extend(self._known_in(entry))
            return
        handle = FileHandle(self._files, self._files.open_read(entry.file.path))
        old, verdict = self._examine(handle, entry, durable_end=entry.end)
        self._write_quarantine()
        index = SegmentIndex(path, 0, verdict.builder.entries)
        segment = self._add(entry, index, verdict.builder.entries[0], verdict.builder.ordinal, verdict.builder.time_ms)
        if self._base_known:
            segment.index = self._write_index(entry, verdict, old)
        else:
            self._unbased.append((entry, verdict, segment))

    def _learn_base(self, ordinal: int) -> None:
        """Take note that a segment's index says how many messages come before it.

        Without its index nothing tells this of the oldest segment, if older ones were deleted. What is learnt from a
        newer one is made up for in those that were counted from zero.
        """
        missing = ordinal - self._ordinal
        if not self._base_known and missing > 0:
            self._ordinal = ordinal
            for _, verdict, segment in self._unbased:
                verdict.builder.shift(missing)
                segment.first_ordinal += missing
        self._base_known = True
        self._write_unbased()

    def _write_unbased(self) -> None:
        for entry, verdict, segment in self._unbased:
            segment.index = self._write_index(entry, verdict, [])
        self._unbased.clear()

    def _complete_index(self, path: Path, entry: _Found) -> tuple[int, IndexEntry, IndexEntry] | None:
        """Return number of entries, first and last one of an index that covers its whole segment; else ``None``."""
        if not self._files.is_file(path):
            return None
        handle = FileHandle(self._files, self._files.open_read(path))
        count = self._files.size(handle.fd) // index_file.RECORD_BYTES - 1
        if count < 1 or not index_file.header_belongs(handle.pread(index_file.RECORD_BYTES, 0), entry.file.start):
            return None
        first, last, before = (
            index_file.decode_entry(handle.pread(index_file.RECORD_BYTES, index_file.RECORD_BYTES * (1 + number)))
            for number in (0, count - 1, max(0, count - 2))
        )
        if first is None or last is None or before is None:
            return None
        if first.offset != entry.file.start or last.offset != entry.end or not self._starts_frame(entry, before.offset):
            return None
        return count, first, last

    def _starts_frame(self, entry: _Found, offset: int) -> bool:
        """Check one entry against the segment: an index of other bytes would be found out here."""
        if offset == entry.end or any(damage.start == offset for damage in self._known):
            return True
        handle = FileHandle(self._files, self._files.open_read(entry.file.path))
        return SegmentView(handle, entry.file.start, entry.size, _PEEK_BYTES).valid_at(offset)

    def _examine(self, handle: FileHandle, entry: _Found, durable_end: int | None) -> tuple[list[IndexEntry], Examined]:
        """Examine a segment; return its old index entries, if they are to be kept as they are, and the verdict."""
        path = index_path(self._directory, entry.file.start)
        old, whole = index_file.read_entries(self._files, path, entry.file.start)
        if old and old[0].offset == entry.file.start:
            self._learn_base(old[0].ordinal)
            self._time_ms = max(self._time_ms, old[0].time_ms)
        if durable_end is None:
            durable_end = old[-1].offset if old else entry.file.start
            self._report.missing_bytes = max(0, durable_end - entry.end)
        builder = IndexBuilder.at_start(entry.file.start, self._ordinal, self._time_ms, self._interval)
        view = SegmentView(handle, entry.file.start, entry.size)
        verdict = examine(view, builder, Evidence(old, self._known_in(entry), durable_end, entry.mtime_ms))
        verdict.builder.mark()
        self._note(verdict)
        return (old if whole else []), verdict

    def _known_in(self, entry: _Found) -> list[Damage]:
        return [damage for damage in self._known if entry.file.start <= damage.start < entry.end]

    def _note(self, verdict: Examined) -> None:
        self._damage.extend(verdict.damage)
        self._report.damage.extend(damage for damage in verdict.damage if damage not in self._known)
        self._report.suspect.extend(verdict.suspect)

    def _write_quarantine(self) -> None:
        first = self._segments[0].start if self._segments else 0
        listed = {damage.start: damage for damage in (*self._known, *self._damage) if damage.start >= first}
        merged = [listed[start] for start in sorted(listed)]
        if merged != self._known:
            write_quarantine(self._files, self._directory, merged)
            self._known = merged

    def _write_index(self, entry: _Found, verdict: Examined, old: list[IndexEntry]) -> SegmentIndex:
        path, entries = index_path(self._directory, entry.file.start), verdict.builder.entries
        if entries == old:
            return SegmentIndex(path, len(entries), [])
        if not old or entries[: len(old)] != old:
            self._report.indexes_rebuilt.append(entry.file.start)
        with contextlib.suppress(OSError):
            index_file.write_entries(self._files, path, entry.file.start, self._interval, 0, entries)
            return SegmentIndex(path, len(entries), [])
        return SegmentIndex(path, 0, list(entries))

    def _add(self, entry: _Found, index: SegmentIndex, first: IndexEntry, ordinal: int, time_ms: int) -> Segment:
        path = entry.file.path if entry.file.named else segment_path(self._directory, entry.file.start)
        first_ms = max(first.time_ms, self._time_ms)
        segment = Segment(entry.file.start, entry.size, path, index, first.ordinal, first_ms)
        segment.messages = ordinal - first.ordinal
        segment.synced = entry.size
        self._segments.append(segment)
        self._ordinal, self._time_ms = ordinal, max(self._time_ms, time_ms)
        return segment

    # ---- the end of the partition

    def _trust(self, entry: _Found) -> IndexBuilder | None:
        """Take over the last segment of a partition that was closed cleanly, by its index alone."""
        path = index_path(self._directory, entry.file.start)
        ends = self._complete_index(path, entry)
        if ends is None:
            return None
        count, first, last = ends
        self._learn_base(first.ordinal)
        index = SegmentIndex(path, count, [])
        segment = self._add(entry, index, first, last.ordinal, last.time_ms)
        segment.handle = FileHandle(self._files, self._files.open_append(entry.file.path))
        return IndexBuilder(index.unwritten, last.offset, last.ordinal, last.time_ms, self._interval)

    def _load_tail(self, last: _Found, unnamed: list[_Found]) -> IndexBuilder:
        """Examine the last segment and those behind it that never got their names; cut; make everything durable."""
        examined = [self._examine_last(last)]
        for entry in unnamed:
            if entry.file.start == last.end and last.size and examined[-1][2].end == last.end:
                last = entry
                examined.append(self._examine_last(entry))
            else:
                self._remove(entry)
        self._write_quarantine()
        for entry, handle, verdict, _ in examined:
            if verdict.end < entry.end:
                self._cut(entry, verdict.end)
            self._files.fdatasync(handle.fd)
            if not entry.file.named:
                self._files.rename(entry.file.path, segment_path(self._directory, entry.file.start))
        self._files.fsync_dir(self._directory)
        self._files.fsync_dir(self._directory.parent)
        self._write_unbased()
        for (entry, handle, verdict, old), segment in zip(examined, self._segments[-len(examined) :], strict=True):
            segment.size = segment.synced = entry.size
            segment.index = self._write_index(entry, verdict, old)
            segment.handle = handle
        for segment in self._segments[:-1]:
            segment.handle = None
        builder = examined[-1][2].builder
        builder.entries = self._segments[-1].index.unwritten
        return builder

    def _examine_last(self, entry: _Found) -> tuple[_Found, FileHandle, Examined, list[IndexEntry]]:
        handle = FileHandle(self._files, self._files.open_append(entry.file.path))
        old, verdict = self._examine(handle, entry, durable_end=None)
        builder = verdict.builder
        placeholder = SegmentIndex(index_path(self._directory, entry.file.start), 0, [])
        self._add(entry, placeholder, builder.entries[0], builder.ordinal, builder.time_ms)
        return entry, handle, verdict, old
