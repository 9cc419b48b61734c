"""Removes segments: deletes them, renames them to ``START.meta.arc``, or packs them into ``START.meta.zip``.

Oldest first, and each step is durable before the next, so a crash never leaves a gap: a restart finds a complete
partition that begins at one of the segments. A zip has one entry, the segment under its own name. It is written as
``START.meta.zip.tmp``, synced, and then renamed: a ``START.meta.zip`` is always complete.

Source: docs/log-format.md.
"""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from pathlib import Path
from typing import Any, Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from metaq.model import Buffer
from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.retention.policy import Removal
from metaq_broker.log.segments.segment import SegmentInfo, delete_segment

ARCHIVE_SUFFIX: Final = ".arc"


def archive_path(segment: Path) -> Path:
    """Return the name of an archived segment."""
    return segment.with_name(segment.name + ARCHIVE_SUFFIX)


@dataclass(slots=True)
class RemovalJob:
    """Removes ``segments`` by ``removal``; ``gone`` counts the removed ones.

    ``ARCHIVE_PACKED`` segments are packed before they are taken out of service (``pack``), and only deleted here.
    """

    files: Files
    removal: Removal
    segments: Sequence[SegmentInfo]
    gone: int = 0

    def run(self) -> None:
        """Remove them durably (blocking; any thread). After an error it may be run again and continues.

        Raises:
            FileExistsError: Another file has the name of an archive.
            OSError: A file cannot be removed; it and the newer ones still exist.
        """
        while self.gone < len(self.segments):
            self._remove(self.segments[self.gone])
            self.gone += 1

    def _remove(self, segment: SegmentInfo) -> None:
        if self.removal is Removal.ARCHIVE and self.files.exists(segment.path):  # else it is renamed already
            self._archive(segment.path)
        delete_segment(self.files, segment)

    def _archive(self, path: Path) -> None:
        target = archive_path(path)
        if self.files.exists(target):
            raise FileExistsError(errno.EEXIST, "another file has the archive's name; move it away", str(target))
        self.files.rename(path, target)


ZIP_SUFFIX: Final = ".zip"
UNFINISHED_SUFFIX: Final = ".meta.zip.tmp"
CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read, packed and written at a time; packing can be stopped in between."""

_PERMISSIONS: Final = 0o644 << 16


class PackingStopped(Exception):
    """The broker stops: there is no zip, and the segment is unchanged."""


def zip_path(segment: Path) -> Path:
    """Return the name of a segment's zip."""
    return segment.with_name(segment.name + ZIP_SUFFIX)


def pack(files: Files, segment: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Pack a finished segment into its zip; durable on return (blocking; any thread). The segment stays.

    A zip that already contains the segment is kept: the broker has crashed before it removed the segment.

    Raises:
        FileExistsError: A file with the zip's name has other contents.
        PackingStopped: ``stopped`` returned true between two chunks.
        OSError: The segment cannot be read, or the zip not written.
    """
    target = zip_path(segment)
    unfinished = target.with_name(target.name + ".tmp")
    source = FileHandle(files, files.open_read(segment))
    if files.exists(target):
        _check_holds(files, target, segment.name, _chunks(files, source, stopped))
        return
    try:
        _write_zip(files, unfinished, _entry(files, segment), _chunks(files, source, stopped))
    except (OSError, PackingStopped):
        with contextlib.suppress(OSError):
            files.unlink(unfinished)
        raise
    files.rename(unfinished, target)
    files.fsync_dir(target.parent)


def remove_unfinished(files: Files, directory: Path) -> list[str]:
    """Remove zips that a crash left unfinished in a partition's folder; return their names (blocking; any thread).

    Raises:
        OSError: The folder cannot be read, or a file not removed.
    """
    names = [name for name in files.listdir(directory) if name.endswith(UNFINISHED_SUFFIX)]
    for name in names:
        files.unlink(directory / name)
    return names


def _chunks(files: Files, source: FileHandle, stopped: Callable[[], bool]) -> Iterator[bytes]:
    position = 0
    while chunk := files.pread(source.fd, CHUNK_BYTES, position):
        if stopped():
            raise PackingStopped
        yield chunk
        position += len(chunk)


def _entry(files: Files, segment: Path) -> ZipInfo:
    status = files.stat(segment)
    changed = datetime.fromtimestamp(status.mtime_ms // 1000)
    entry = ZipInfo(segment.name, changed.timetuple()[:6])
    entry.compress_type, entry.external_attr, entry.file_size = ZIP_DEFLATED, _PERMISSIONS, status.size
    return entry


def _write_zip(files: Files, path: Path, entry: ZipInfo, chunks: Iterator[bytes]) -> None:
    target = FileHandle(files, files.open_append(path))
    files.truncate(target.fd, 0)
    sink = _Sink(files, target.fd)
    with ZipFile(sink, "w") as archive, archive.open(entry, "w") as packed:
        for chunk in chunks:
            packed.write(chunk)
    sink.close()  # a ZipFile does not close a file that it was given
    files.fsync(target.fd)


def _check_holds(files: Files, path: Path, name: str, chunks: Iterator[bytes]) -> None:
    handle = FileHandle(files, files.open_read(path))
    try:
        with ZipFile(_Seekable(files, handle.fd)) as archive:
            found = [(entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist()]
    except BadZipFile:
        found = []
    size = checksum = 0
    for chunk in chunks:
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    if found != [(name, size, checksum)]:
        raise FileExistsError(errno.EEXIST, "another file has the archive's name; move it away", str(path))


class _Sink:
    """A file for ``ZipFile`` to write: collects small pieces, so that few large writes reach the disk."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files, self._fd = files, fd
        self._gathered = bytearray()
        self._position = 0

    def write(self, data: Buffer, /) -> int:
        self._gathered += data
        if len(self._gathered) >= CHUNK_BYTES:
            self._write_out()
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is synced once, when it is complete."""

    def close(self) -> None:
        """Write the rest."""
        self._write_out()

    def _write_out(self) -> None:
        if self._gathered:
            self._files.pwrite(self._fd, self._gathered, self._position)
            self._position += len(self._gathered)
            self._gathered = bytearray()


class _Seekable(RawIOBase):
    """A file for ``ZipFile`` to read."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files, self._fd = files, fd
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._files.size(self._fd)}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._files.pread(self._fd, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
