"""Makes appended bytes durable, away from the event loop: the unsynced state, and the job that syncs it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.files.sealed_files import write_failed_sync
from metaq_broker.log.partitions.incarnation import Incarnation, write_incarnation
from metaq_broker.log.segments import index as index_file
from metaq_broker.log.segments.index import RECORD_BYTES
from metaq_broker.log.segments.segment import Segment, unnamed_path

SMALL_BYTES: Final = 1 << 16
"""For fewer bytes than this, writing takes little time compared with any sync."""


class SegmentTarget(NamedTuple):
    """A segment and the part of it that a sync makes durable, with the index entries that are not in its file yet, as
    bytes.
    """

    segment: Segment
    handle: FileHandle
    size: int
    rename: bool
    entries: bytes
    entries_written: int


@dataclass(slots=True)
class SyncJob:
    """The bytes up to offset ``end`` (ordinal ``ordinal``): captured on the loop, made durable by ``run``.

    ``incarnation`` is the partition's UUID if it must be written, too. All fields are fixed except ``indexes_written``
    and ``incarnation_written``, which ``run`` sets.
    """

    files: Files
    directory: Path
    targets: Sequence[SegmentTarget]
    folders: Sequence[Path]
    durable_end: int
    end: int
    ordinal: int
    index_interval_bytes: int
    incarnation: str | None = None
    indexes_written: bool = False
    incarnation_written: bool = False

    @property
    def is_small(self) -> bool:
        """Whether there are few bytes to sync, of one file, and neither a name nor an incarnation to write."""
        is_plain = len(self.targets) == 1 and not (self.folders or self.incarnation or self.targets[0].rename)
        return is_plain and self.end - self.durable_end <= SMALL_BYTES

    def run(self) -> None:
        """Sync bytes, then names, then write the incarnation and the indexes (blocking; any thread).

        Raises:
            OSError: The bytes up to ``end`` must not be acknowledged, now or later. An index or an incarnation that
                fails is not an error.
        """
        try:
            for target in self.targets:
                self.files.fdatasync(target.handle.fd)
            for target in self.targets:
                if target.rename:
                    unnamed = unnamed_path(self.directory, target.segment.start)
                    if self.files.exists(unnamed):
                        self.files.rename(unnamed, target.segment.path)
            for folder in self.folders:
                self.files.fsync_dir(folder)
        except OSError:
            with contextlib.suppress(OSError):
                write_failed_sync(self.files, self.directory, self.durable_end)
            raise
        if self.incarnation is not None:
            with contextlib.suppress(OSError):
                write_incarnation(self.files, self.directory, self.incarnation)
                self.incarnation_written = True
        with contextlib.suppress(OSError):
            for target in self.targets:
                if target.entries:
                    index_file.write_entries(
                        self.files,
                        target.segment.index.path,
                        target.segment.start,
                        self.index_interval_bytes,
                        target.entries_written,
                        target.entries,
                    )
            self.indexes_written = True


class Unsynced:
    """``fresh``: the partition's folder was just created, so that its name is not durable."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        index_interval_bytes: int,
        active: Segment,
        incarnation: Incarnation,
        *,
        fresh: bool,
    ) -> None:
        self.failed = False
        self._incarnation = incarnation
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._segments = [active]
        self.folders = [directory.parent, directory] if fresh else []
        """Folders with new names in them, so that a sync is due even if no byte was written."""
        self.under_way: SyncJob | None = None

    def add(self, segment: Segment) -> None:
        """Add a new segment, which becomes the active one."""
        self._segments.append(segment)
        if self._directory not in self.folders:
            self.folders.append(self._directory)

    def capture(self, durable_end: int, end: int, ordinal: int) -> SyncJob | None:
        """Return a job for offsets ``durable_end`` to ``end``; ``None`` if there is nothing, or a job is running or has
        failed.
        """
        if self.under_way is not None or self.failed:
            return None
        targets = []
        for segment in self._segments:
            assert segment.handle is not None  # it is open, as every segment is until it is durable
            entries, written = bytes(segment.index.unwritten.records), segment.index.written
            targets.append(SegmentTarget(segment, segment.handle, segment.size, not segment.named, entries, written))
        self.under_way = SyncJob(
            self._files,
            self._directory,
            targets,
            tuple(self.folders),
            durable_end,
            end,
            ordinal,
            self._index_interval_bytes,
            None if self._incarnation.durable else self._incarnation.uuid,
        )
        return self.under_way

    def settle(self, job: SyncJob, now_s: float) -> None:
        """Record that the running job has succeeded, at ``now_s``; files of finished segments are closed."""
        self.under_way = None
        self._incarnation.durable |= job.incarnation_written
        for segment, _, size, _, entries, written in job.targets:
            segment.synced, segment.named, segment.written_s = size, True, now_s
            if job.indexes_written and entries:
                count = len(entries) // RECORD_BYTES
                segment.index.unwritten.drop(count)
                segment.index.written = written + count
        active = self._segments[-1]
        if len(self._segments) > 1:
            for segment in self._segments[:-1]:
                if segment.settled:
                    segment.handle = None
            self._segments = [each for each in self._segments if each.handle is not None or each is active]
        if active.named:
            self.folders = []

    def fail(self) -> None:
        """Record that the running job has failed."""
        self.under_way = None
        self.failed = True

    def disown(self) -> None:
        """Forget the running job, if there is one: its bytes will be captured again."""
        self.under_way = None
