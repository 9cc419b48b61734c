"""The files of a partition's folder before their contents are read, and the first files of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from metaq_broker.log.files.errors import PartitionRefused
from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.partitions.incarnation import write_incarnation
from metaq_broker.log.partitions.recovery import RecoveryReport
from metaq_broker.log.segments import index as index_file
from metaq_broker.log.segments.index import TIME_UNKNOWN, IndexEntry, write_entries
from metaq_broker.log.segments.segment import SegmentFile, find_segment_files, index_path, segment_path


@dataclass(slots=True)
class FoundSegment:
    """A segment file with its current size, and its time of change before any repair."""

    file: SegmentFile
    size: int
    changed_ms: int

    @property
    def start(self) -> int:
        return self.file.start

    @property
    def end(self) -> int:
        return self.file.start + self.size


class SegmentFiles:
    """The files of one partition. ``named`` segments are contiguous; ``unnamed`` ones may continue them or not."""

    def __init__(self, files: Files, directory: Path, report: RecoveryReport) -> None:
        self.directory = directory
        self.named: list[FoundSegment] = []
        self.unnamed: list[FoundSegment] = []
        self._files = files
        self._report = report

    @classmethod
    def read(cls, files: Files, directory: Path, report: RecoveryReport) -> SegmentFiles:
        """List the files. Later cuts and removals are added to ``report``.

        Raises:
            PartitionRefused: The named segments are not contiguous; nothing was changed.
        """
        result = cls(files, directory, report)
        for file in find_segment_files(directory, files.listdir(directory)):
            status = files.stat(file.path)
            found = FoundSegment(file, status.size, status.mtime_ms)
            (result.named if file.named else result.unnamed).append(found)
        result._check_contiguous()
        return result

    def _check_contiguous(self) -> None:
        for before, after in pairwise(self.named):
            if before.end != after.start or before.start == after.start:
                what = "there is a gap" if before.end < after.start else "they overlap"
                raise PartitionRefused(
                    self.directory,
                    f"{before.file.path.name} ends at offset {before.end}, but {after.file.path.name} starts at "
                    f"{after.start}: {what}; restore the missing file or move the files on one side away",
                )

    def remove_orphans(self) -> None:
        """Remove indexes without segments, which a crash in a deletion may leave.

        Call it after they were used to detect a lost end.
        """
        expected = {index_path(self.directory, found.start).name for found in (*self.named, *self.unnamed)}
        for name in self._files.listdir(self.directory):
            stem = name.removesuffix(index_file.SUFFIX)
            if stem != name and stem.isdigit() and name not in expected:
                self._files.unlink(self.directory / name)

    def cut_back(self, durable_end: int) -> None:
        """Remove everything after ``durable_end``: it was written around an fsync that failed."""
        for found in [*self.named, *self.unnamed]:
            if found.start > durable_end or (found.start == durable_end and not found.file.named):
                self.remove(found)
            elif found.end > durable_end:
                self.cut(found, durable_end)

    def remove(self, found: FoundSegment) -> None:
        """Remove a segment without acknowledged messages."""
        index = index_path(self.directory, found.start)
        if self._files.exists(index):  # first: without its segment it would indicate lost bytes
            self._files.unlink(index)
        self._files.unlink(found.file.path)
        self._report.removed.append(found.file.path.name)
        (self.named if found.file.named else self.unnamed).remove(found)

    def cut(self, found: FoundSegment, end: int) -> None:
        """Cut a segment at offset ``end``; durable on return."""
        self._report.bytes_cut += found.end - end
        self._report.cut_at = end
        handle = FileHandle(self._files, self._files.open_append(found.file.path))
        found.size = end - found.start
        self._files.truncate(handle.fd, found.size)
        self._files.fsync(handle.fd)


def seed_partition(
    files: Files, directory: Path, start: int, ordinal: int, incarnation: str | None, index_interval_bytes: int
) -> None:
    """Create a folder with one empty segment at byte offset ``start``, with ``ordinal`` messages before it.

    Position and incarnation come from another broker; without an ``incarnation`` the folder gets its own when it is
    opened. Durable on return (blocking; any thread). A crash may leave an incomplete folder without messages, which the
    copier removes before it begins again.

    Source: docs/replication.md, "The copy".

    Raises:
        OSError: The folder exists already, or the disk refuses.
    """
    files.makedir(directory)
    if incarnation is not None:
        write_incarnation(files, directory, incarnation)
    entry = IndexEntry(start, ordinal, TIME_UNKNOWN, 0)
    write_entries(files, index_path(directory, start), start, index_interval_bytes, 0, entry.encode(), durable=True)
    files.close(files.open_append(segment_path(directory, start)))
    files.fsync_dir(directory)
    files.fsync_dir(directory.parent)
