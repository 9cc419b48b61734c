"""The journal of a pair's follower: the leader's files, byte for byte, written without interpreting them.

A follower checks that records are whole and undamaged, and nothing else. At its opening it looks for the end of the
intact records: after it is a torn write, which is cut, because the leader sends it again, or damage. What the file
``extent``, or an intact record after the end, says was durable must be there; if it is not, the member has lost data
(``loss``). Then nothing is cut before it follows a leader: what is left may be the only copy.

A record says what was durable on all members in sync. So a member that was not in sync may count a torn write as a
loss. It has to follow anyway.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4

from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.incarnation import FILE_NAME as INCARNATION_NAME
from metaq_broker.log.partitions.incarnation import IncarnationDamaged, read_incarnation, write_incarnation
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.stream import JOURNAL, StreamBytes, StreamRefused
from metaq_broker.transactions.folder import Extent, ExtentDamaged
from metaq_broker.transactions.journal_bytes import (
    FILE_HEADER_BYTES,
    Broken,
    UnknownVersion,
    check_file_header,
    durable_claim,
    file_name,
    pack_file_header,
    read_record,
    start_of,
)

COVER_S: Final = 1.0
"""Seconds between two records of the durable end."""


def whole_records(data: bytes, offset: int, file_start: int) -> int:
    """Return the length of the whole, intact records at the front of ``data``, whose first byte has LSN ``offset``.

    At the start of a file, its header is the first of them.

    Raises:
        Broken: The first one is there in full, and damaged.
        UnknownVersion: It is the header of a file of another version.
    """
    at = 0
    if offset == file_start:
        if len(data) < FILE_HEADER_BYTES:
            return 0
        check_file_header(data, file_start)
        at = FILE_HEADER_BYTES
    with contextlib.suppress(Broken):
        while at < len(data):
            at += read_record(data, at, offset + at).length
    return at


@dataclass(slots=True)
class _File:
    start: int
    path: Path
    fd: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class CopySync:
    """One fsync of the copy: captured on the event loop, run in a worker thread."""

    copy: JournalCopy
    files: Files
    fds: tuple[int, ...]
    directory: Path | None
    end: int
    newest_start: int
    extent: Extent | None

    def run(self) -> None:
        """Make everything before ``end`` durable. Raises ``OSError``."""
        with self.copy.io:
            self._run()

    def _run(self) -> None:
        if self.copy.is_closed:
            raise OSError("the journal is closed")
        for fd in self.fds:
            self.files.fdatasync(fd)
        if self.directory is not None:
            self.files.fsync_dir(self.directory)
        if self.extent is not None:
            with contextlib.suppress(OSError):  # without it, only a check is weaker
                self.extent.cover(self.end)


class JournalCopy:
    """The files of the journal in ``directory``, which is locked; ``open`` reads them. Not thread-safe."""

    def __init__(self, files: Files, clock: Clock, directory: Path) -> None:
        self._disk, self._clock, self._directory = files, clock, directory
        self._extent = Extent(files, directory)
        self._files: list[_File] = []
        self._durable_end = 0
        self._named_start = -1
        self._covered_s = 0.0
        self._in_flight = False
        self.io: Final = Lock()
        """Held while files are synced or closed."""
        self.is_closed = False
        self.incarnation: str | None = None
        self.end = 0
        """After the last intact record; the files may go on."""
        self.failure: str | None = None
        self.loss: str | None = None
        """What was durable and is gone, one sentence for operators."""

    def open(self) -> None:
        """Read the files, finish a cut that was interrupted, and make everything durable (blocking).

        Raises:
            IntentionDamaged: An interrupted cut cannot be finished.
            OSError: A file cannot be read or written.
        """
        lost_found.finish_cuts(self._disk, self._directory.parent, JOURNAL, JournalTail(self._disk, self._directory))
        try:
            self.incarnation = read_incarnation(self._disk, self._directory)
        except IncarnationDamaged as damaged:
            self.loss = f"the incarnation of the transaction journal cannot be read: {damaged}"
        try:
            self._extent.load()
        except ExtentDamaged as damaged:
            self.loss = f"file {self._extent.path} cannot be read: {damaged}"
        self._list()
        self._find_end()
        self._find_claims()
        if self._extent.known and self.end < self._extent.end:
            self.loss = f"the transaction journal ends at LSN {self.end}, and was durable up to {self._extent.end}"
        if self._files and self._extent.known and self._files[0].start > self._extent.first:
            self.loss = f"the transaction journal begins at LSN {self._files[0].start}, not at {self._extent.first}"
        if self.loss is None:
            self._trim()
        self._make_durable()
        if self.incarnation is None and self._files and self.loss is None:
            self.begin()

    def _list(self) -> None:
        for start in _starts(self._disk, self._directory):
            path = self._directory / file_name(start)
            fd = self._disk.open_append(path)
            self._files.append(_File(start, path, fd, self._disk.size(fd)))

    def _find_end(self) -> None:
        self.end = self._extent.end if self._extent.known and not self._files else 0
        for number, file in enumerate(self._files):
            if number and file.start != self.end:
                return
            data = self._disk.pread(file.fd, file.size, 0)
            try:
                self.end = file.start + whole_records(data, file.start, file.start)
            except (Broken, UnknownVersion):
                self.end = file.start
                return
            if self.end < file.end:
                return

    def _find_claims(self) -> None:
        for file in self._files:
            if file.end > self.end:
                data = self._disk.pread(file.fd, file.size, 0)
                claim = durable_claim(data, file.start, self.end)
                if claim > self.end:
                    self.loss = f"the transaction journal is damaged at LSN {self.end}, and was durable up to {claim}"

    def _trim(self) -> None:
        """Cut a torn write, newest file first."""
        while self._files and self._files[-1].start >= self.end:
            file = self._files.pop()
            self._disk.close(file.fd)
            self._disk.unlink(file.path)
        if self._files and self._files[-1].end > self.end:
            file = self._files[-1]
            file.size = self.end - file.start
            self._disk.truncate(file.fd, file.size)

    def _make_durable(self) -> None:
        # As in Journal: pages of an earlier process may be in memory only, and marked as written.
        for file in self._files:
            at = max(0, self._extent.end - file.start)
            if at < file.size:
                self._disk.pwrite(file.fd, self._disk.pread(file.fd, file.size - at, at), at)
            self._disk.fdatasync(file.fd)
        self._disk.fsync_dir(self._directory)
        self._durable_end = self.end
        self._named_start = self._files[-1].start if self._files else -1

    # ---- what is there

    @property
    def start(self) -> int:
        return self._files[0].start if self._files else self.end

    @property
    def durable_end(self) -> int:
        return self._durable_end

    @property
    def has_records(self) -> bool:
        """Whether there is more than headers of files."""
        return any(file.size > FILE_HEADER_BYTES for file in self._files)

    def bytes_at(self, lsn: int, count: int) -> tuple[int, bytes]:
        """Return the start of the file with ``lsn``, and up to ``count`` intact bytes. Raises ``OSError``."""
        file = next(each for each in reversed(self._files) if each.start <= lsn)
        return file.start, self._disk.pread(file.fd, min(count, file.end - lsn, self.end - lsn), lsn - file.start)

    # ---- a follower

    def begin(self, incarnation: str | None = None, start: int | None = None) -> None:
        """Give the journal an incarnation; with ``start``, let an empty one begin there; durable (blocking).

        Raises:
            OSError: The disk refuses.
        """
        if start is not None:
            self._remove_files()
            self._extent.cut(start, start)
            self.end = self._durable_end = start
        self.incarnation = incarnation or uuid4().hex
        write_incarnation(self._disk, self._directory, self.incarnation)

    def append(self, run: StreamBytes) -> None:
        """Append whole records; see ``PairStream.append_copy``. Raises ``StreamRefused``."""
        if self.failure is not None:
            raise StreamRefused(JOURNAL, self.failure)
        if run.offset != self.end:
            raise StreamRefused(JOURNAL, f"it ends at {self.end}, and the run begins at {run.offset}")
        self._check(run)
        begins = run.file_start == run.offset
        if not begins and (not self._files or self._files[-1].start != run.file_start):
            raise StreamRefused(JOURNAL, f"LSN {run.offset} is in the file that begins at {run.file_start}, not here")
        try:
            file = self._begin_file(run.file_start) if begins else self._files[-1]
            self._disk.pwrite(file.fd, run.data, file.size)
        except OSError as error:
            self._undo(run.file_start if begins else None)
            raise StreamRefused(JOURNAL, f"LSN {run.offset} cannot be written: {error}") from error
        file.size += len(run.data)
        self.end = file.end

    def _check(self, run: StreamBytes) -> None:
        try:
            whole = whole_records(bytes(run.data), run.offset, run.file_start)
        except (Broken, UnknownVersion) as fault:
            raise StreamRefused(JOURNAL, f"the leader sent a damaged record: {fault}") from fault
        if whole != len(run.data):
            raise StreamRefused(JOURNAL, f"the record at LSN {run.offset + whole} is damaged, or cut")

    def _begin_file(self, start: int) -> _File:
        path = self._directory / file_name(start)
        fd = self._disk.open_append(path)
        self._files.append(_File(start, path, fd, 0))
        self._disk.truncate(fd, 0)
        return self._files[-1]

    def _undo(self, begun: int | None) -> None:
        """Take back a write that failed."""
        if begun is not None and self._files and self._files[-1].start == begun:
            self._disk.close(self._files.pop().fd)  # its bytes are overwritten, or cut at the next opening
        elif self._files:
            try:
                self._disk.truncate(self._files[-1].fd, self._files[-1].size)
            except OSError as error:
                self.failure = f"a failed write of the transaction journal cannot be undone: {error}"

    # ---- durability (``SyncQueue``)

    def pending_sync(self) -> CopySync | None:
        """Return the fsync to run now; ``None`` if nothing is unsynced, one is under way, or one has failed."""
        if self._in_flight or self.failure is not None or self._durable_end == self.end:
            return None
        self._in_flight = True
        fds = tuple(file.fd for file in self._files if file.end > self._durable_end)
        newest = self._files[-1].start
        directory = self._directory if newest != self._named_start else None
        now_s = self._clock.monotonic()
        extent = self._extent if now_s - self._covered_s >= COVER_S else None
        self._covered_s = now_s if extent is not None else self._covered_s
        return CopySync(self, self._disk, fds, directory, self.end, newest, extent)

    def complete_sync(self, job: CopySync, error: OSError | None) -> int | StreamRefused:
        """Record the result of ``job``; return what ``durable_to`` does."""
        self._in_flight = False
        if error is not None:
            self.failure = f"the transaction journal cannot be synced: {error}"
        else:
            self._durable_end = max(self._durable_end, job.end)
            self._named_start = job.newest_start  # another file may have begun meanwhile
        return self.durable_to()

    def durable_to(self) -> int | StreamRefused:
        """Return the LSN before which everything is durable, or why nothing more becomes durable."""
        return self._durable_end if self.failure is None else StreamRefused(JOURNAL, self.failure)

    # ---- removal and end

    def drop_before(self, lsn: int) -> None:
        """Remove files that end at or before ``lsn``, except the newest (blocking). Raises ``OSError``."""
        while len(self._files) > 1 and (oldest := self._files[0]).end <= min(lsn, self._durable_end):
            self._extent.begin_at(oldest.end)
            self._disk.unlink(oldest.path)
            self._disk.close(oldest.fd)
            del self._files[0]

    def _remove_files(self) -> None:
        while self._files:
            file = self._files.pop()
            self._disk.close(file.fd)
            self._disk.unlink(file.path)
        self._named_start = -1
        self._disk.fsync_dir(self._directory)

    def make_first_file(self) -> None:
        """Begin a file at the end of a journal that has none, durably, so that it can be opened (blocking).

        Raises:
            OSError: The disk refuses.
        """
        if not self._files and self._extent.known:
            file = self._begin_file(self.end)
            self._disk.pwrite(file.fd, pack_file_header(self.end), 0)
            self._disk.fdatasync(file.fd)
            self._disk.fsync_dir(self._directory)
            file.size = FILE_HEADER_BYTES
            self.end = self._durable_end = file.end

    def has_rest(self) -> bool:
        """Return whether the files go on after the last intact record."""
        return bool(self._files) and self._files[-1].end > self.end

    def close(self) -> None:
        """Close the files; record the durable end (blocking)."""
        if self.failure is None and self._files and self.loss is None:
            with contextlib.suppress(OSError):
                self._extent.cover(self._durable_end)
        self._extent.close()
        with self.io:
            self.is_closed = True
            for file in self._files:
                with contextlib.suppress(OSError):
                    self._disk.close(file.fd)
            self._files.clear()


def _starts(files: Files, directory: Path) -> list[int]:
    return sorted(start for name in files.listdir(directory) if (start := start_of(name)) is not None)


class JournalTail:
    """The end of a closed journal (``streams.lost_found.TailFiles``)."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._disk, self._directory = files, directory

    def _sizes(self) -> list[tuple[int, Path, int]]:
        paths = [(start, self._directory / file_name(start)) for start in _starts(self._disk, self._directory)]
        return [(start, path, self._disk.stat(path).size) for start, path in paths]

    @property
    def end(self) -> int:
        return max((start + size for start, _, size in self._sizes()), default=0)

    def read(self, offset: int, bytes_max: int) -> bytes:
        for start, path, size in self._sizes():
            if start <= offset < start + size:
                fd = self._disk.open_read(path)
                try:
                    return self._disk.pread(fd, min(bytes_max, start + size - offset), offset - start)
                finally:
                    self._disk.close(fd)
        raise OSError(f"LSN {offset} is in no file of {self._directory}")

    def forget_end(self, offset: int) -> None:
        extent = Extent(self._disk, self._directory)
        with contextlib.suppress(ExtentDamaged):
            extent.load()
        starts = _starts(self._disk, self._directory)
        first = min([offset, *starts[:1]])
        extent.cut(first, min(offset, extent.end) if extent.known else offset)

    def cut(self, offset: int) -> None:
        """Remove files from ``offset`` on, newest first, and shorten the last one."""
        for start, path, size in reversed(self._sizes()):
            if start >= offset:
                self._disk.unlink(path)
                self._disk.fsync_dir(self._directory)
            elif start + size > offset:
                fd = self._disk.open_append(path)
                try:
                    self._disk.truncate(fd, offset - start)
                    self._disk.fsync(fd)
                finally:
                    self._disk.close(fd)


def put_aside(files: Files, directory: Path, incarnation: str, time_ms: int) -> None:
    """Move the files of a closed journal to ``lost+found`` beside its folder, durably (blocking).

    A crash may leave a part of them, newest first; then it is repeated.

    Raises:
        OSError: The disk refuses.
    """
    folder = directory.parent / lost_found.FOLDER_NAME / JOURNAL / f"{incarnation}-{time_ms}"
    files.make_folders(folder)
    names = [file_name(start) for start in reversed(_starts(files, directory))]
    for name in (*names, Extent(files, directory).path.name, INCARNATION_NAME):
        if files.exists(directory / name):
            files.rename(directory / name, folder / name)
            files.fsync_dir(folder)
            files.fsync_dir(directory)
