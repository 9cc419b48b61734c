"""The journal: the records of all transactions, on disk, in the order in which they were written.

Records are appended to the newest file and become durable when that is fsynced. Files are removed from the old end
only, so the record that ends a transaction is never removed before the records that began it. Opening reads every file
once:

* A broken record that nothing after it claims to have been durable is the torn end of a crash: the journal is cut
  there and the cut is logged. Nothing that was answered is lost, since answers wait for the fsync.
* Any other broken record is damage. The broker refuses to start and names file and offset: there may be commits after
  it, and starting without them would lose acknowledged messages. Nothing is changed on disk.

* A missing file is damage as well, even the newest: ``extent`` says where the journal begins and how far it certainly
  goes.

Damage to the very last record looks like a torn end; no log can tell the two apart.

After a failed fsync nothing more is written (the kernel may have dropped the bytes it could not write, and the next
fsync would report success): ``failure`` stays set, and a restart reads what is on disk. After a failed write, the file
is truncated, and only that step is refused.

All methods run on the event loop, except ``JournalSync.run`` and ``JournalRead.run``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from metaq.model import Buffer
from metaq_broker.log.files.files import Files
from metaq_broker.transactions.folder import Extent, ExtentDamaged
from metaq_broker.transactions.journal_bytes import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Broken,
    UnknownVersion,
    durable_claim,
    file_name,
    pack_file_header,
    pack_record,
    read_record,
    records_of,
    start_of,
)
from metaq_broker.transactions.read_buffers import ReadBuffers
from metaq_broker.transactions.records import Messages, Record, RecordDamaged, decode, encode

_log = logging.getLogger(__name__)


class JournalFailed(Exception):
    """A record could not be written. ``Journal.failure`` says whether the journal refuses all writes until a restart.
    """


class JournalDamaged(Exception):
    """Bytes that had been durable have changed: ``reason``, at ``offset`` of the file ``path``."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(path, offset, reason)

    def __str__(self) -> str:
        advice = (
            "restore the file; or move the folder away, which gives up all prepared and unfinished transactions, and "
            "lets exactly-once queries whose last batch was decided here fail, or write that batch twice, when they "
            "repeat it"
        )
        return f"transaction journal {self.path} is damaged at offset {self.offset}: {self.reason}; {advice}"


class Location(NamedTuple):
    """The position of a record: its LSN, and its length in bytes with the header."""

    lsn: int
    length: int

    @property
    def end(self) -> int:
        return self.lsn + self.length


@dataclass(slots=True)
class _File:
    start: int
    path: Path
    fd: int
    size: int
    readers: int = 0
    gone: bool = False

    @property
    def end(self) -> int:
        return self.start + self.size

    def read(self, disk: Files, location: Location, buffers: ReadBuffers) -> Record:
        at, buffer = location.lsn - self.start, buffers.take(location.length)
        data = buffer[: disk.pread_into(self.fd, buffer, at)]
        try:
            raw = read_record(data, 0, location.lsn)
            return decode(raw.kind, raw.payload)
        except Broken as fault:
            raise JournalDamaged(self.path, at, fault.reason) from None
        except RecordDamaged as fault:
            raise JournalDamaged(self.path, at, str(fault)) from None


@dataclass(frozen=True, slots=True)
class JournalSync:
    """One fsync of the journal; made on the event loop, run in a worker thread."""

    files: Files
    fds: tuple[int, ...]
    directory: Path | None
    target_lsn: int
    newest_start: int
    extent: Extent

    def run(self) -> None:
        """Make everything before ``target_lsn`` durable.

        Raises:
            OSError: It is unknown which bytes are durable.
        """
        for fd in self.fds:
            self.files.fdatasync(fd)
        if self.directory is not None:
            self.files.fsync_dir(self.directory)
            with contextlib.suppress(OSError):  # without it, only a check is weaker
                self.extent.cover(self.newest_start + FILE_HEADER_BYTES)


@dataclass(slots=True)
class JournalRead:
    """Records to be read: captured on the loop, read by ``run`` in any thread. Their files stay open until
    ``end_read``.
    """

    disk: Files
    partition_keys: tuple[tuple[_File, Location], ...]
    buffers: ReadBuffers
    records: list[Record] = field(default_factory=list)

    def run(self) -> None:
        """Read ``records``, and find where the frames of messages end while their bytes are in the processor's cache
        (blocking; any thread).

        Raises:
            JournalDamaged: The bytes have changed since they were written.
            OSError: A file cannot be read.
        """
        for file, location in self.partition_keys:
            record = file.read(self.disk, location, self.buffers)
            if isinstance(record, Messages):
                for unit in record.units:
                    unit.frames.find_ends()
            self.records.append(record)


Visit = Callable[[Location, Record], None]
"""Called with every record of the journal in order while it is opened."""


class Journal:
    """An open journal. ``file_bytes`` is the size at which a new file is begun."""

    def __init__(self, files: Files, directory: Path, file_bytes: int) -> None:
        """Create a journal that cannot be written until ``load`` has read it. Touches no file."""
        self._disk = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._read_buffers = ReadBuffers()
        self._extent = Extent(files, directory)
        self._files: list[_File] = []
        self._named_start = -1
        self.end_lsn = self.durable_lsn = 0
        """LSN of the next record, and the LSN before which everything is durable."""
        self._in_flight = False
        self._reads = 0
        self._closed = False
        self.failure: str | None = "the broker is starting"
        self.appended: Callable[[int], None] | None = None
        """Called with the new end after every append."""

    def load(self, visit: Visit) -> None:
        """Read the journal in its folder (which must exist), record by record, and leave it ready for more.

        Everything that was read is durable afterwards.

        Raises:
            JournalDamaged: A record is broken or a file is missing, as above; or a file has an unknown version.
            OSError: A file cannot be read or written.
        """
        try:
            self._load(visit)
            self._make_durable()
        except BaseException:
            self.close()
            raise
        self.failure = None

    # ---- what is there

    @property
    def byte_count(self) -> int:
        """Size of all files together."""
        return sum(file.size for file in self._files)

    @property
    def file_count(self) -> int:
        return len(self._files)

    @property
    def oldest_end(self) -> int:
        return self._files[0].end

    @property
    def newest_start(self) -> int:
        """LSN of the first byte of the file that is being written."""
        return self._files[-1].start

    def read(self, location: Location) -> Record:
        """Return the record at ``location``.

        Raises:
            JournalDamaged: The bytes have changed since they were written.
            OSError: The file cannot be read.
        """
        return self._file_of(location.lsn).read(self._disk, location, self._read_buffers)

    def _file_of(self, lsn: int) -> _File:
        for file in reversed(self._files):
            if file.start <= lsn:
                return file
        raise AssertionError(f"LSN {lsn} is before the oldest file")

    def begin_read(self, locations: Sequence[Location]) -> JournalRead:
        """Capture what is to be read, on the loop or in a worker thread. Pass the result to ``end_read``, even if it
        was not read.
        """
        partition_keys = tuple((self._file_of(location.lsn), location) for location in locations)
        for file, _ in partition_keys:
            file.readers += 1
        self._reads += 1
        return JournalRead(self._disk, partition_keys, self._read_buffers)

    def end_read(self, job: JournalRead) -> None:
        self._reads -= 1
        for file, _ in job.partition_keys:
            file.readers -= 1
            if file.gone and not file.readers:
                self._disk.close(file.fd)
        self._close_if_idle()

    # ---- writing

    def append(self, records: Sequence[Record]) -> list[Location]:
        """Write the records one after the other, all in one file; they are not durable yet.

        Raises:
            JournalFailed: Nothing was added.
        """
        if self.failure is not None:
            raise JournalFailed(self.failure)
        file = self._file_with_space()
        parts: list[Buffer] = []
        locations: list[Location] = []
        lsn = self.end_lsn
        for record in records:
            kind, payload = encode(record)
            parts += (pack_record(lsn, self.durable_lsn, kind, payload), *payload)
            length = RECORD_HEADER_BYTES + sum(map(len, payload))
            locations.append(Location(lsn, length))
            lsn += length
        try:
            self._disk.pwrite_all(file.fd, parts, file.size)
        except OSError as error:
            self._cut_back(file, error)
            raise JournalFailed(f"cannot write {file.path}: {error.strerror or error}") from error
        file.size += lsn - self.end_lsn
        self.end_lsn = lsn
        if self.appended is not None:
            self.appended(lsn)
        return locations

    def _cut_back(self, file: _File, cause: OSError) -> None:
        try:
            self._disk.truncate(file.fd, file.size)
        except OSError as error:
            self._fail(f"cannot write {file.path}: {cause}, nor undo the attempt: {error}")

    def _file_with_space(self) -> _File:
        current = self._files[-1]
        if current.size < self._file_bytes or current.size == FILE_HEADER_BYTES:
            return current
        try:
            return self._begin_file(self.end_lsn)
        except OSError as error:
            raise JournalFailed(f"cannot begin a new file in {self._directory}: {error.strerror or error}") from error

    def _begin_file(self, start: int) -> _File:
        path = self._directory / file_name(start)
        fd = self._disk.open_append(path)
        try:
            self._disk.truncate(fd, 0)  # an earlier attempt that failed may have left bytes
            self._disk.pwrite(fd, pack_file_header(start), 0)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.close(fd)
            raise
        self._files.append(_File(start, path, fd, FILE_HEADER_BYTES))
        self.end_lsn = start + FILE_HEADER_BYTES
        return self._files[-1]

    # ---- durability

    def pending_sync(self) -> JournalSync | None:
        """Return the fsync to run now; ``None`` if nothing is unsynced, an fsync is under way, or the journal failed.
        """
        if self._in_flight or self.failure is not None or self.durable_lsn == self.end_lsn:
            return None
        self._in_flight = True
        return self._sync_of_all()

    def _sync_of_all(self) -> JournalSync:
        fds = tuple(file.fd for file in self._files if file.end > self.durable_lsn)
        newest = self._files[-1].start
        directory = self._directory if newest != self._named_start else None
        return JournalSync(self._disk, fds, directory, self.end_lsn, newest, self._extent)

    def complete_sync(self, job: JournalSync, error: OSError | None) -> int | JournalFailed:
        """Record the result of ``job``; return the LSN before which everything is durable, or the failure after which
        nothing more becomes durable.
        """
        self._in_flight = False
        self._note(job, error)
        if self._closed:
            self._close_if_idle()
        return self.durable_lsn if self.failure is None else JournalFailed(self.failure)

    def _note(self, job: JournalSync, error: OSError | None) -> None:
        if error is not None:
            self._fail(f"cannot fsync in {self._directory}: {error}")
        else:
            self.durable_lsn = max(self.durable_lsn, job.target_lsn)
            self._named_start = max(self._named_start, job.newest_start)

    def abandon_sync(self) -> None:
        """Forget the sync that is under way: nothing that it covers is acknowledged, and nothing follows."""
        self._in_flight = False
        self._close_if_idle()

    def bytes_at(self, lsn: int, count: int) -> tuple[int, bytes]:
        """Return the LSN of the first byte of the file with ``lsn``, and up to ``count`` bytes from there (blocking).

        Raises:
            OSError: They cannot be read.
        """
        file = self._file_of(lsn)
        return file.start, self._disk.pread(file.fd, min(count, file.end - lsn), lsn - file.start)

    @property
    def start_lsn(self) -> int:
        """LSN of the oldest byte."""
        return self._files[0].start

    def sync_now(self) -> None:
        """Make everything durable, blocking; for the start and the stop only.

        Raises:
            JournalFailed: The journal cannot be written until a restart.
        """
        job = self._sync_of_all()
        try:
            job.run()
        except OSError as error:
            self._note(job, error)
            raise JournalFailed(self.failure) from error
        self._note(job, None)

    def _fail(self, reason: str) -> None:
        self.failure = f"{reason}; transactions are refused until the broker is restarted"
        _log.critical("transaction journal: %s", self.failure)

    # ---- removal and end

    def drop_before(self, lsn: int) -> None:
        """Remove the files that end at or before ``lsn``, except the one being written. They must be durable.

        Raises:
            OSError: A file could not be removed. The call may be repeated.
        """
        while len(self._files) > 1 and (oldest := self._files[0]).end <= lsn:
            if oldest.end > self.durable_lsn:
                raise AssertionError(f"{oldest.path} is still being written")
            self._extent.begin_at(oldest.end)
            self._disk.unlink(oldest.path)
            oldest.gone = True
            if not oldest.readers:
                self._disk.close(oldest.fd)
            del self._files[0]

    def cover(self, lsn: int) -> None:
        """Record that everything before ``lsn`` is durable (blocking; any thread). Without it, a check is weaker."""
        with contextlib.suppress(OSError):
            self._extent.cover(lsn)

    def note_end(self) -> None:
        """Record the end of the journal if all of it is durable; for a stop, and after a failure.

        Raises:
            OSError: The record cannot be written.
        """
        if self.durable_lsn == self.end_lsn:
            self._extent.cover(self.end_lsn)

    def close(self) -> None:
        """Close the files. Unsynced bytes are left to the operating system; see ``sync_now``."""
        self._closed = True
        self._extent.close()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._closed or self._in_flight or self._reads:
            return
        for file in self._files:
            with contextlib.suppress(OSError):
                self._disk.close(file.fd)
        self._files.clear()

    # ---- opening

    def _load(self, visit: Visit) -> None:
        starts = sorted(start for name in self._disk.listdir(self._directory) if (start := start_of(name)) is not None)
        self._load_extent(starts)
        for start in starts:
            path = self._directory / file_name(start)
            fd = self._disk.open_append(path)
            self._files.append(_File(start, path, fd, self._disk.size(fd)))
        for index, file in enumerate(self._files):
            try:
                if index and file.start != self._files[index - 1].end:
                    raise Broken(self._files[index - 1].end, f"the next file is {file.path.name}, bytes are missing")
                self._visit_file(file, visit)
            except Broken as fault:
                self._cut(index, fault)
                break
        if not self._files:
            self._begin_file(0)
        newest = self._files[-1]
        self.end_lsn = newest.end
        if self.end_lsn < self._extent.end:
            raise JournalDamaged(newest.path, newest.size, f"the journal went on to LSN {self._extent.end}")

    def _load_extent(self, starts: Sequence[int]) -> None:
        extent = self._extent
        try:
            extent.load()
        except ExtentDamaged as damaged:
            raise JournalDamaged(extent.path, 0, str(damaged)) from None
        if extent.known and (not starts or starts[0] > extent.first):
            raise JournalDamaged(self._directory / file_name(extent.first), 0, "the file is missing")

    def _visit_file(self, file: _File, visit: Visit) -> None:
        try:
            for raw in records_of(self._disk.pread(file.fd, file.size, 0), file.start):
                self.durable_lsn = max(self.durable_lsn, raw.durable_lsn)
                visit(Location(raw.lsn, raw.length), decode(raw.kind, raw.payload))
        except UnknownVersion as other:
            raise JournalDamaged(file.path, 0, f"version {other.version} of the journal is unknown here") from None
        except RecordDamaged as fault:
            raise JournalDamaged(file.path, raw.lsn - file.start, str(fault)) from None

    def _cut(self, index: int, fault: Broken) -> None:
        if fault.lsn < self._extent.end:
            raise self._damage(fault)
        # ``fault.lsn`` may be the end of the file before ``index``: then that file is not changed.
        suspects = self._files[max(0, index - 1) :]
        for file in suspects:
            data = self._disk.pread(file.fd, file.size, 0)
            if durable_claim(data, file.start, fault.lsn) > fault.lsn:
                raise self._damage(fault)
        lost = self._files[-1].end - fault.lsn
        if lost:  # a crash may leave an empty file that was just begun
            _log.warning("transaction journal: cut %d torn bytes at LSN %d: %s", lost, fault.lsn, fault.reason)
        while self._files and self._files[-1].start >= fault.lsn:
            self._remove_newest()
        if self._files:
            self._files[-1].size = fault.lsn - self._files[-1].start
            self._disk.truncate(self._files[-1].fd, self._files[-1].size)
        else:
            self._begin_file(fault.lsn)

    def _damage(self, fault: Broken) -> JournalDamaged:
        file = self._file_of(fault.lsn)
        return JournalDamaged(file.path, fault.lsn - file.start, fault.reason)

    def _remove_newest(self) -> None:
        # Newest first: a crash in between leaves a journal that ends earlier, never one with a gap.
        newest = self._files.pop()
        self._disk.close(newest.fd)
        self._disk.unlink(newest.path)

    def _make_durable(self) -> None:
        # A killed process may have left bytes in memory only. After a failed fsync the kernel marks such pages clean,
        # so another fsync would not write them. Therefore everything that is not recorded as durable is written again,
        # then synced.
        for file in self._files:
            if file.end > self.durable_lsn:
                at = max(0, self.durable_lsn - file.start)
                self._disk.pwrite(file.fd, self._disk.pread(file.fd, file.size - at, at), at)
            self._disk.fdatasync(file.fd)
        self._disk.fsync_dir(self._directory)
        self.durable_lsn, self._named_start = self.end_lsn, self._files[-1].start
        try:
            self._extent.begin_at(self._files[0].start)
            self._extent.cover(self.end_lsn)
        except OSError as error:  # a full disk: the recorded extent stays correct, and reads continue
            _log.warning("transaction journal: its extent is not recorded: %s", error)
