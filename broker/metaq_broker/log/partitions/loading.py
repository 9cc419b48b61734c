"""Opens a partition's folder: reads its files, and completes steps that a crash interrupted.

Order of the steps that change the disk, each harmless if a crash repeats it or omits what follows: cut everything
after the durable end after a failed fsync; remove segments that never got their name and do not continue the log; cut
the torn tail, or, where the end is lost, quarantine what is missing, write a new incarnation if need be, and extend the
segment; make bytes, then names durable; write indexes; write the quarantine file; remove the failed-sync mark and
orphaned indexes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from metaq_broker.log.files.durable_ends import KnownEnd
from metaq_broker.log.files.files import FileHandle, Files, HandleCache
from metaq_broker.log.files.sealed_files import read_failed_sync, remove_failed_sync
from metaq_broker.log.partitions.damage import Damage, read_quarantine, write_quarantine
from metaq_broker.log.partitions.incarnation import Incarnation, remove_incarnation, write_incarnation
from metaq_broker.log.partitions.layout import Layout
from metaq_broker.log.partitions.losses import REASON, LostEnd, find_lost_end
from metaq_broker.log.partitions.numbering import above_all, messages_before
from metaq_broker.log.partitions.recovery import Evidence, Examined, RecoveryReport, examine
from metaq_broker.log.segments import index as index_file
from metaq_broker.log.segments.index import (
    RECORD_BYTES,
    TIME_UNKNOWN,
    Entries,
    IndexBuilder,
    IndexEntry,
    SegmentIndex,
    decode_entry,
)
from metaq_broker.log.segments.segment import Segment, index_path, segment_path
from metaq_broker.log.segments.segment_files import FoundSegment, SegmentFiles
from metaq_broker.log.segments.segment_view import SegmentView

Verify = Literal["tail", "full", "trust"]
"""What is checked when a partition is opened.

``tail``: the last segment, frame by frame; older ones by their sizes and indexes. ``full``: every segment. ``trust``:
nothing but the indexes, for partitions that were closed cleanly; falls back to ``tail`` where an index is not complete.
"""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes of one partition's files.

    ``segment_bytes_max``: a segment of this size is finished (it may exceed the size by one message or one unit).
    ``index_interval_bytes``: log bytes between two index entries.
    """

    segment_bytes_max: int = 1 << 30
    index_interval_bytes: int = 4096

    def __post_init__(self) -> None:
        for name in ("segment_bytes_max", "index_interval_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")


_PEEK_BYTES = 1 << 12


@dataclass(slots=True)
class Loaded:
    """A partition as found: its segments (the last one open for writing), and the index builder of the last one.

    ``fresh``: the folder or its first segment was just created, so that the names are not durable yet.
    """

    segments: list[Segment]
    builder: IndexBuilder
    damage: list[Damage]
    report: RecoveryReport
    fresh: bool


def load(
    files: Files,
    directory: Path,
    settings: LogSettings,
    verify: Verify,
    durable_end: int | None = None,
    known_ends: Sequence[KnownEnd] = (),
) -> Loaded:
    """Open the partition in ``directory``, created if necessary. Everything found and kept is durable on return.

    ``durable_end``: cut everything beyond it, because an fsync failed later; a mark on disk says the same.
    ``known_ends``: ends that the partition is known to have reached; a shorter one continues at the largest.

    Raises:
        PartitionRefused: The segments are not contiguous. Nothing was changed.
        OSError: A file cannot be read or repaired.
    """
    if not files.is_dir(directory):
        files.makedir(directory)
    report = RecoveryReport()
    found = SegmentFiles.read(files, directory, report)
    ends = [end for end in (durable_end, read_failed_sync(files, directory)) if end is not None]
    if ends:
        found.cut_back(min(ends))
        verify = "tail" if verify == "trust" else verify
    known = read_quarantine(files, directory)
    report.lost = lost = find_lost_end(files, directory, known_ends)
    if lost is not None:
        report.missing_bytes = lost.end - lost.start
        verify = "tail" if verify == "trust" else verify
    loading = _LogLoader(files, found, settings, "full" if known is None else verify, known or [], report)
    loading.known_ends = list(known_ends)
    loaded = loading.load() if found.named else loading.start_fresh()
    if loaded.damage != known:
        write_quarantine(files, directory, loaded.damage)
    remove_failed_sync(files, directory)
    found.remove_orphans()
    return loaded


class _IndexEnds(NamedTuple):
    """The number of entries of an index that covers its whole segment, its first and its last entry."""

    entries: int
    first: IndexEntry
    last: IndexEntry


class _Judged(NamedTuple):
    """An examined segment. ``old``: the entries of its index file if that is intact, else empty."""

    found: FoundSegment
    handle: FileHandle
    verdict: Examined
    old: list[IndexEntry]


class _LogLoader:
    def __init__(
        self,
        files: Files,
        found: SegmentFiles,
        settings: LogSettings,
        verify: Verify,
        known: list[Damage],
        report: RecoveryReport,
    ) -> None:
        self._files = files
        self._found = found
        self._directory = found.directory
        self._interval_bytes = settings.index_interval_bytes
        self._verify = verify
        self._known = known
        self._report = report
        self.known_ends: list[KnownEnd] = []
        self._damage: list[Damage] = []
        self._segments: list[Segment] = []
        self._ordinal, self._time_ms = 0, TIME_UNKNOWN
        self._base_known = False
        self._unbased: list[tuple[_Judged, Segment]] = []

    def load(self) -> Loaded:
        *older, last = self._found.named
        self._base_known = self._found.named[0].start == 0
        for found in older:
            self._take_older(found)
        builder = None
        if self._verify == "trust" and not self._found.unnamed:
            builder = self._trust_last(last)
        if builder is None:
            builder = self._recover_tail(last)
        return Loaded(self._segments, builder, self._damage, self._report, fresh=False)

    def start_fresh(self) -> Loaded:
        for found in list(self._found.unnamed):
            self._found.remove(found)
        remove_incarnation(self._files, self._directory)  # offsets begin again
        path = segment_path(self._directory, 0)
        handle = FileHandle(self._files, self._files.open_append(path))
        builder = IndexBuilder.at_start(0, 0, TIME_UNKNOWN, self._interval_bytes)
        index = SegmentIndex(index_path(self._directory, 0), 0, builder.entries)
        segment = Segment(0, 0, path, index, 0, TIME_UNKNOWN, handle=handle)
        return Loaded([segment], builder, [], self._report, fresh=True)

    # ---- older segments: finished, and durable before the next one got its name

    def _take_older(self, found: FoundSegment) -> None:
        ends = None if self._verify == "full" else self._complete_index(found)
        if ends is not None:
            self._take_by_index(found, ends)
            return
        handle = FileHandle(self._files, self._files.open_read(found.file.path))
        judged = self._judge(found, handle, durable_end=found.end)
        segment = self._add_judged(judged)
        if self._base_known:
            segment.index = self._write_index(judged)
        else:
            self._unbased.append((judged, segment))

    def _take_by_index(self, found: FoundSegment, ends: _IndexEnds) -> Segment:
        self._learn_base(ends.first.ordinal)
        self._damage.extend(self._known_in(found))
        index = SegmentIndex(index_path(self._directory, found.start), ends.entries, Entries())
        return self._add(found, index, ends.first, ends.last.ordinal, ends.last.time_ms)

    def _complete_index(self, found: FoundSegment) -> _IndexEnds | None:
        """Return the ends of a segment's index if it is intact and covers the whole segment."""
        path, record = index_path(self._directory, found.start), RECORD_BYTES
        if not self._files.is_file(path):
            return None
        handle = FileHandle(self._files, self._files.open_read(path))
        count = self._files.size(handle.fd) // record - 1
        if count < 1 or not index_file.header_belongs(handle.pread(record, 0), found.start):
            return None
        first, before, last = (
            decode_entry(handle.pread(record, record * (1 + number))) for number in (0, max(0, count - 2), count - 1)
        )
        if first is None or before is None or last is None:
            return None
        covers = first.offset == found.start and last.offset == found.end
        return _IndexEnds(count, first, last) if covers and self._starts_frame(found, before.offset) else None

    def _starts_frame(self, found: FoundSegment, offset: int) -> bool:
        """Check one entry against the segment, to detect an index of other bytes."""
        if offset == found.end or any(damage.start == offset for damage in self._known):
            return True
        handle = FileHandle(self._files, self._files.open_read(found.file.path))
        return SegmentView(handle, found.start, found.size, _PEEK_BYTES).valid_at(offset)

    # ---- number of messages before the partition's start

    def _learn_base(self, ordinal: int) -> None:
        """Use a segment's index to learn how many messages are before it.

        For the oldest segment only its index shows this, if older ones were deleted. A number that is learnt from a
        newer segment corrects the older ones that were counted from zero.
        """
        missing = ordinal - self._ordinal
        if not self._base_known and missing > 0:
            self._ordinal = ordinal
            for judged, segment in self._unbased:
                judged.verdict.builder.shift(missing)
                segment.first_ordinal += missing
        self._base_known = True
        self._write_unbased()

    def _write_unbased(self) -> None:
        for judged, segment in self._unbased:
            segment.index = self._write_index(judged)
        self._unbased.clear()

    def _find_base(self, tail: Sequence[tuple[_Judged, Segment]]) -> None:
        """Determine how many messages are before the oldest segment if no index says it."""
        end, lost = self._segments[-1].end, self._report.lost
        if lost is not None:
            self.known_ends.append(KnownEnd(lost.end, lost.ordinal, lost.exact))
        layout = Layout(self._segments, self._damage, HandleCache(self._files))
        before = messages_before(layout, end, self.known_ends)
        if before is None:
            before = self._report.renumbered = above_all(end)
        for judged, segment in (*self._unbased, *tail):
            judged.verdict.builder.shift(before)
            segment.first_ordinal += before
        self._base_known = True

    # ---- examining bytes

    def _judge(self, found: FoundSegment, handle: FileHandle, durable_end: int | None) -> _Judged:
        """Examine a segment. Without ``durable_end``, use the last entry of its index, or other known ends."""
        old, whole = index_file.read_entries(self._files, index_path(self._directory, found.start), found.start)
        if old and old[0].offset == found.start:
            self._learn_base(old[0].ordinal)
            self._time_ms = max(self._time_ms, old[0].time_ms)
        if durable_end is None:
            durable_end = old[-1].offset if old else found.start
            durable_end = max([durable_end, *(each.end for each in self.known_ends)])
        builder = IndexBuilder.at_start(found.start, self._ordinal, self._time_ms, self._interval_bytes)
        evidence = Evidence(old, self._known_in(found), durable_end, found.changed_ms)
        verdict = examine(SegmentView(handle, found.start, found.size), builder, evidence)
        builder.mark()
        self._damage.extend(verdict.damage)
        self._report.damage.extend(damage for damage in verdict.damage if damage not in self._known)
        self._report.suspect.extend(verdict.suspect)
        return _Judged(found, handle, verdict, old if whole else [])

    def _known_in(self, found: FoundSegment) -> list[Damage]:
        return [damage for damage in self._known if found.start <= damage.start < damage.end <= found.end]

    def _write_index(self, judged: _Judged) -> SegmentIndex:
        start, entries, old = judged.found.start, judged.verdict.builder.entries, Entries(judged.old)
        path = index_path(self._directory, start)
        if entries == old:
            return SegmentIndex(path, len(entries), Entries())
        if not old or not entries.begin_with(old):
            self._report.indexes_rebuilt.append(start)
        with contextlib.suppress(OSError):
            durable = start == self._found.named[0].start > 0  # only this entry says how many messages are before it
            index_file.write_entries(
                self._files, path, start, self._interval_bytes, 0, entries.records, durable=durable
            )
            return SegmentIndex(path, len(entries), Entries())
        return SegmentIndex(path, 0, entries)

    def _add_judged(self, judged: _Judged) -> Segment:
        """Add an examined segment; its index is written later."""
        builder = judged.verdict.builder
        index = SegmentIndex(index_path(self._directory, judged.found.start), 0, builder.entries)
        return self._add(judged.found, index, builder.entries[0], builder.ordinal, builder.time_ms)

    def _add(self, found: FoundSegment, index: SegmentIndex, first: IndexEntry, ordinal: int, time_ms: int) -> Segment:
        path = found.file.path if found.file.named else segment_path(self._directory, found.start)
        first_ms = max(first.time_ms, self._time_ms)
        segment = Segment(found.start, found.size, path, index, first.ordinal, first_ms)
        segment.messages = ordinal - first.ordinal
        segment.synced = found.size
        self._segments.append(segment)
        self._ordinal, self._time_ms = ordinal, max(self._time_ms, time_ms)
        return segment

    # ---- the end of the partition

    def _trust_last(self, found: FoundSegment) -> IndexBuilder | None:
        """Use the last segment of a cleanly closed partition by its index alone."""
        ends = self._complete_index(found)
        if ends is None:
            return None
        segment = self._take_by_index(found, ends)
        segment.handle = FileHandle(self._files, self._files.open_append(found.file.path))
        last = ends.last
        return IndexBuilder(segment.index.unwritten, last.offset, last.ordinal, last.time_ms, self._interval_bytes)

    def _recover_tail(self, last: FoundSegment) -> IndexBuilder:
        """Examine the last segment and unnamed ones after it; cut; make everything durable."""
        judged = [self._judge_tail(last)]
        lost = self._report.lost
        for found in list(self._found.unnamed):
            before = judged[-1]
            if lost is None and found.start == before.found.end == before.verdict.end and before.found.size:
                judged.append(self._judge_tail(found))
            else:
                self._found.remove(found)
        for found, handle, verdict, _ in judged:
            if verdict.end < found.end:
                self._found.cut(found, verdict.end)
            elif verdict.end > found.end:
                self._extend(found, handle, verdict.end, new_incarnation=lost is not None and not lost.exact)
            self._files.fdatasync(handle.fd)
            if not found.file.named:
                self._files.rename(found.file.path, segment_path(self._directory, found.start))
        self._files.fsync_dir(self._directory)
        self._files.fsync_dir(self._directory.parent)
        tail = list(zip(judged, self._segments[-len(judged) :], strict=True))
        for item, segment in tail:
            segment.size = segment.synced = item.found.size
            segment.handle = item.handle
        if not self._base_known:
            self._find_base(tail)
        self._write_unbased()
        for item, segment in tail:
            segment.index = self._write_index(item)
        for _, segment in tail[:-1]:
            segment.handle = None
        active, builder = self._segments[-1], judged[-1].verdict.builder
        builder.entries = active.index.unwritten
        return builder

    def _judge_tail(self, found: FoundSegment) -> _Judged:
        handle = FileHandle(self._files, self._files.open_append(found.file.path))
        lost = self._report.lost
        judged = self._judge(found, handle, durable_end=None if lost is None else lost.end)
        if lost is not None:
            self._add_missing(judged.verdict, lost)
        self._add_judged(judged)
        return judged

    # ---- a lost end

    def _add_missing(self, verdict: Examined, lost: LostEnd) -> None:
        """Count the lost end as damage; as one message if the number is unknown."""
        builder, messages = verdict.builder, 1
        if lost.ordinal is not None and self._base_known:
            messages = max(1, lost.ordinal - builder.ordinal)
        damage = Damage(builder.offset, lost.end, messages, REASON)
        builder.skip(lost.end - builder.offset, messages)
        verdict.damage.append(damage)
        verdict.end = lost.end
        self._damage.append(damage)
        if damage not in self._known:
            self._report.damage.append(damage)

    def _extend(self, found: FoundSegment, handle: FileHandle, end: int, *, new_incarnation: bool) -> None:
        """Extend a segment, or the log, to its former length with a hole that takes no space.

        The range is quarantined first, which also records it if a crash follows. A new incarnation is for readers that
        may know offsets after ``end``.
        """
        write_quarantine(self._files, self._directory, self._damage)
        if new_incarnation:
            write_incarnation(self._files, self._directory, Incarnation.new().uuid)
        found.size = end - found.start
        self._files.truncate(handle.fd, found.size)
