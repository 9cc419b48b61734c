"""The end of a closed partition's folder: cut for a leader that does not have it (``streams.lost_found``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.files.sealed_files import read_failed_sync, remove_failed_sync
from metaq_broker.log.partitions.damage import Damage, read_quarantine, write_quarantine
from metaq_broker.log.segments.index import RECORD_BYTES, read_entries
from metaq_broker.log.segments.segment import SegmentFile, find_segment_files, index_path


class PartitionTail:
    """Implements ``TailFiles`` for ``directory``; ``forget`` drops what is recorded about it outside of the folder."""

    def __init__(self, files: Files, directory: Path, forget: Callable[[], None]) -> None:
        self._files, self._directory, self._forget = files, directory, forget

    def _segments(self) -> list[tuple[SegmentFile, int]]:
        found = find_segment_files(self._directory, self._files.listdir(self._directory))
        return [(each, each.start + self._files.stat(each.path).size) for each in found]

    @property
    def end(self) -> int:
        return max((end for _, end in self._segments()), default=0)

    def read(self, offset: int, bytes_max: int) -> bytes:
        for segment, end in self._segments():
            if segment.start <= offset < end:
                handle = FileHandle(self._files, self._files.open_read(segment.path))
                return handle.pread(min(bytes_max, end - offset), offset - segment.start)
        raise OSError(f"offset {offset} is in no segment of {self._directory}")

    def forget_end(self, offset: int) -> None:
        self._forget()

    def cut(self, offset: int) -> None:
        """Remove what begins at or after ``offset``, newest first, except a first segment; shorten the last one."""
        segments = self._segments()
        while len(segments) > 1 and segments[-1][0].start >= offset:
            self._remove(segments.pop()[0])
        for segment, _ in segments[-1:]:
            self._shorten(segment.path, max(0, offset - segment.start))
            self._shorten_index(segment.start, offset)
        self._clip_damage(offset)
        failed_sync = read_failed_sync(self._files, self._directory)
        if failed_sync is not None and failed_sync > offset:  # else it still says what was not durable
            remove_failed_sync(self._files, self._directory)

    def _remove(self, segment: SegmentFile) -> None:
        index = index_path(self._directory, segment.start)
        if self._files.exists(index):  # first: without its segment it would indicate lost bytes
            self._files.unlink(index)
            self._files.fsync_dir(self._directory)
        self._files.unlink(segment.path)
        self._files.fsync_dir(self._directory)

    def _shorten(self, path: Path, size: int) -> None:
        handle = FileHandle(self._files, self._files.open_append(path))
        if self._files.size(handle.fd) > size:
            self._files.truncate(handle.fd, size)
            self._files.fsync(handle.fd)

    def _shorten_index(self, start: int, offset: int) -> None:
        """Keep the entries up to ``offset``: of the oldest segment only they say how many messages came before."""
        path = index_path(self._directory, start)
        if self._files.is_file(path):
            entries, _ = read_entries(self._files, path, start)
            inside = sum(1 for entry in entries if entry.offset <= offset)
            self._shorten(path, RECORD_BYTES * (1 + inside))

    def _clip_damage(self, offset: int) -> None:
        known = read_quarantine(self._files, self._directory)
        clipped = [
            Damage(each.start, min(each.end, offset), each.messages, each.reason)
            for each in known or ()
            if each.start < offset
        ]
        if known is not None and clipped != known:
            write_quarantine(self._files, self._directory, clipped)

    def drop_empty(self) -> None:
        """Remove segments without a byte from the end, except the first: a leader may not have begun one there.

        A follower begins a segment with its first byte.
        """
        segments = self._segments()
        while len(segments) > 1 and segments[-1][0].start == segments[-1][1]:
            self._remove(segments.pop()[0])
