"""One segment of a partition: its file names, its range, its open file.

A segment is made as ``START.meta.new`` and gets its name ``START.meta`` only when everything before it is durable, so
there is never a gap before a ``.meta`` file, whatever a crash loses. A ``.meta.new`` at a start has no acknowledged
message; it is kept if it continues the segment before it and removed otherwise. (The very first segment gets its name
at once.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.segments import index
from metaq_broker.log.segments.index import SegmentIndex

SUFFIX = ".meta"
UNNAMED_SUFFIX = ".meta.new"
_FILE_NAME = re.compile(r"(\d+)\.meta(\.new)?")


class SegmentFile(NamedTuple):
    """A segment file in a folder: ``named`` is false for ``.meta.new``. The number may have any number of digits."""

    start: int
    named: bool
    path: Path


def find_segment_files(directory: Path, names: list[str]) -> list[SegmentFile]:
    """Return the segment files among ``names``, by start; a named one before an unnamed one of the same start."""
    matches = ((name, _FILE_NAME.fullmatch(name)) for name in names)
    found = [SegmentFile(int(match[1]), match[2] is None, directory / name) for name, match in matches if match]
    return sorted(found, key=lambda file: (file.start, not file.named))


def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}{SUFFIX}"


def unnamed_path(directory: Path, start: int) -> Path:
    """Return the path of a segment before it gets its name."""
    return directory / f"{start:020d}{UNNAMED_SUFFIX}"


def index_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}{index.SUFFIX}"


@dataclass(slots=True, eq=False)
class Segment:
    """``size`` bytes from offset ``start``, of which ``synced`` are durable; ``path`` is its final name.

    ``first_ordinal`` and ``messages`` count messages (damaged ones too); no message before it is later than
    ``first_ms``. ``handle`` is its open file: always there while it is being written or not durable, else opened when
    needed. ``named``: whether the file has its final name. ``written_s``: when it was last synced, in seconds of the
    monotonic clock; ``None`` if not since the log was opened.
    """

    start: int
    size: int
    path: Path
    index: SegmentIndex
    first_ordinal: int
    first_ms: int
    messages: int = 0
    synced: int = 0
    named: bool = True
    handle: FileHandle | None = None
    written_s: float | None = None

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def current_path(self) -> Path:
        return self.path if self.named else unnamed_path(self.path.parent, self.start)

    @property
    def settled(self) -> bool:
        """Whether the file has its name and all its bytes are durable."""
        return self.named and self.synced == self.size


class SegmentInfo(NamedTuple):
    """A segment as retention and listings need it.

    ``read_only``: finished and durable, so that it never changes again. ``written_s``: see ``Segment``.
    """

    start: int
    size: int
    path: Path
    index_path: Path
    mtime_ms: int
    read_only: bool
    written_s: float | None = None


def segment_info(files: Files, segment: Segment, *, active: bool) -> SegmentInfo:
    """Return the current ``SegmentInfo``; ``active``: the segment is being written."""
    path = segment.current_path
    try:
        mtime_ms = files.stat(path).mtime_ms
    except FileNotFoundError:  # removed by hand: as old as possible, so that retention notices
        mtime_ms = 0
    read_only = segment.settled and not active
    start, size, index = segment.start, segment.size, segment.index.path
    return SegmentInfo(start, size, path, index, mtime_ms, read_only, segment.written_s)


def delete_segment(files: Files, segment: SegmentInfo) -> None:
    """Delete the files of a segment durably, if they exist (blocking; any thread)."""
    for path in (segment.path, segment.index_path):
        if files.exists(path):
            files.unlink(path)
    files.fsync_dir(segment.path.parent)
