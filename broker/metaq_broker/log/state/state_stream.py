"""A state file as a replicated stream.

The stream is the table's files, one after the other: each is a *generation*, and begins with all entries. A leader
writes a new one beside the old one, and gives it the file's name when the other members have it; then the old one is
gone, and the stream begins at the new one. A follower does the same: it gives a generation its name when it has all
entries. So a broker has one whole generation at any time, and what is left of an unfinished one is removed at a start.

On a follower the bytes are not interpreted, except that records must be whole. At an election ``hand_over`` closes the
file, and a ``StateTable`` opens it: its first commit is a new generation.

Source: docs/log-format.md, "State file".
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from metaq.formats.checksum import crc32
from metaq_broker.log.files.errors import StateDamaged
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal
from metaq_broker.log.state.state_records import (
    Generation,
    StateHeader,
    decode_state,
    encode_state,
    read_header,
    whole_changes,
)
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.facts import StreamOrigin
from metaq_broker.log.streams.lost_found import Intention
from metaq_broker.log.streams.stream import STATE, TAIL_BYTES, Leader, StreamBytes, StreamDamaged, StreamRefused

END_SUFFIX: Final = ".end"
_TITLE: Final = "metaq-state-end 1"
HEADER_BYTES_MAX: Final = 64

NOTE_S: Final = 1.0
"""Seconds between two records of the durable end."""


class _CopiedFile:
    """One generation of a follower: ``size`` bytes, of which ``durable`` are on the disk."""

    def __init__(self, fd: int, start: int, header: StateHeader, size: int) -> None:
        self.fd, self.start, self.header = fd, start, header
        self.size, self.durable = size, 0

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def has_all_entries(self) -> bool:
        return self.size >= self.header.named_size


class StateStream:
    """The stream of the state file ``path``. Made by ``open``."""

    name: Final = STATE

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self._path = files, path
        self._file: _CopiedFile | None = None
        self._fresh: _CopiedFile | None = None
        self._incarnation: str | None = None
        self._begins_at = 0
        self._waiters: list[tuple[int, Callable[[StreamRefused | None], None]]] = []
        self._syncing = False
        self._noted_s = 0.0
        self._io = Lock()
        self._is_closed = False
        self._table: StateTable | None = None
        self._leader: Leader | None = None
        self._held: tuple[int, Callable[[str | None], None]] | None = None
        self._confirmed = 0
        self.failure: str | None = None
        self.loss: str | None = None
        """What was durable and is gone, one sentence for operators."""

    @classmethod
    def open(cls, files: Files, path: Path) -> StateStream:
        """Read the file, finish a cut that was interrupted, and remove an unfinished generation (blocking).

        Raises:
            IntentionDamaged: An interrupted cut cannot be finished.
            OSError: The disk fails.
        """
        stream = cls(files, path)
        stream._open()
        return stream

    def _open(self) -> None:
        lost_found.finish_cuts(self._files, self._path.parent, STATE, StateTail(self._files, self._path))
        if self._files.exists(self._scratch):
            self._files.unlink(self._scratch)
        noted = _read_end(self._files, self._path)
        if self._files.exists(self._path):
            self._read()
        elif noted is not None:
            self._incarnation, self._begins_at = noted.incarnation, noted.start
        if noted is not None and self._incarnation == noted.incarnation and self.end < noted.end:
            self.loss = f"the state of RocketMQ's clients ends at byte {self.end}, and was durable up to {noted.end}"

    def _read(self) -> None:
        content = self._files.read_bytes(self._path)
        try:
            header = read_header(self._path, content)
        except StateDamaged as damaged:
            self.loss = str(damaged)
            return
        if header.generation is None:
            return  # of a broker that was in no pair: its first election makes it a stream
        whole = header.size + whole_changes(header.file_number, header.size, content[header.size :])
        if whole < header.named_size:
            self.loss = f"the state of RocketMQ's clients in {self._path} has lost entries that were durable"
        fd = self._files.open_append(self._path)
        self._incarnation = header.generation.incarnation
        self._file = _CopiedFile(fd, header.generation.start, header, whole)
        if whole < len(content) and self.loss is None:
            self._files.truncate(fd, whole)  # torn: the leader sends it again
        self._files.fsync(fd)
        self._files.fsync_dir(self._path.parent)
        self._file.durable = whole

    @property
    def _scratch(self) -> Path:
        return self._path.with_name(self._path.name + ".tmp")

    @property
    def is_blank(self) -> bool:
        return not self._files.exists(self._path)

    # ---- as ``PairStream``

    @property
    def origin(self) -> StreamOrigin | None:
        return None if self._incarnation is None else StreamOrigin(STATE, self._incarnation, self._start)

    @property
    def _start(self) -> int:
        if self._table is not None:
            return self._table.start
        oldest = self._file or self._fresh
        return self._begins_at if oldest is None else oldest.start

    @property
    def end(self) -> int:
        if self._table is not None:
            return self._table.end
        newest = self._fresh or self._file
        return self._begins_at if newest is None else newest.end

    @property
    def durable_end(self) -> int:
        if self._table is not None:
            return self._table.end
        if self._fresh is not None and self._fresh.durable == self._fresh.size:
            return self._fresh.end
        return self._begins_at if self._file is None else self._file.start + self._file.durable

    @property
    def confirmed_end(self) -> int:
        return self.durable_end if self._table is None else self._confirmed

    def read(self, offset: int, limit: int, bytes_max: int) -> StreamBytes:
        wanted = min(bytes_max, limit - offset)
        while True:  # until a record is complete
            start, data = self._bytes_at(offset, wanted)
            whole = self._whole(start, offset, data)
            if whole:
                return StreamBytes(offset, start, data[:whole])
            if len(data) < wanted or wanted >= limit - offset:
                raise StreamDamaged(STATE, offset, f"there is no intact record at byte {offset}")
            wanted = min(wanted * 4, limit - offset)

    def _whole(self, start: int, offset: int, data: bytes) -> int:
        """Return the length of the intact records, and the header, at the front of ``data``."""
        try:
            header_bytes, _ = self._bytes_of_file(start, HEADER_BYTES_MAX)
            header = read_header(self._path, header_bytes)
        except StateDamaged as damaged:
            raise StreamDamaged(STATE, offset, str(damaged)) from damaged
        skip = header.size if offset == start else 0
        if len(data) < skip:
            return 0
        return skip + whole_changes(header.file_number, max(offset - start, header.size), data[skip:])

    def _bytes_of_file(self, start: int, count: int) -> tuple[bytes, int]:
        found, data = self._bytes_at(start, count)
        return data, found

    def _bytes_at(self, offset: int, count: int) -> tuple[int, bytes]:
        try:
            if self._table is not None:
                file, data = self._table.bytes_at(offset, count)
                return file.start, data
            for copied in (self._fresh, self._file):
                if copied is not None and copied.start <= offset < copied.end:
                    count = min(count, copied.end - offset)
                    return copied.start, self._files.pread(copied.fd, count, offset - copied.start)
        except OSError as error:
            raise StreamRefused(STATE, f"byte {offset} cannot be read: {error}") from error
        raise StreamRefused(STATE, f"byte {offset} is outside of the stream, which ends at {self.end}")

    def tail(self, end: int) -> int:
        offset, crc = max(self._start, end - TAIL_BYTES), 0
        while offset < end:
            _, data = self._bytes_at(offset, end - offset)
            crc, offset = crc32(data, crc), offset + len(data)
        return crc

    # ---- a follower

    def append_copy(self, run: StreamBytes) -> None:
        if self.failure is not None:
            raise StreamRefused(STATE, self.failure)
        if run.offset != self.end:
            raise StreamRefused(STATE, f"it ends at {self.end}, and the run begins at {run.offset}")
        try:
            if run.file_start == run.offset:
                self._begin_generation(run)
            else:
                self._append(run)
        except OSError as error:
            raise StreamRefused(STATE, f"byte {run.offset} cannot be written: {error}") from error

    def _begin_generation(self, run: StreamBytes) -> None:
        try:
            header = read_header(self._path, bytes(run.data))
        except StateDamaged as damaged:
            raise StreamRefused(STATE, f"the leader sent a damaged header: {damaged}") from damaged
        self._check_records(header, bytes(run.data[header.size :]), header.size, run)
        fd = self._files.open_append(self._scratch)
        self._files.truncate(fd, 0)
        self._files.pwrite(fd, run.data, 0)
        self._fresh = _CopiedFile(fd, run.file_start, header, len(run.data))

    def _append(self, run: StreamBytes) -> None:
        file = self._fresh or self._file
        if file is None or file.start != run.file_start:
            raise StreamRefused(STATE, f"byte {run.offset} is in the file that begins at {run.file_start}, not here")
        self._check_records(file.header, bytes(run.data), run.offset - file.start, run)
        try:
            self._files.pwrite(file.fd, run.data, file.size)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.truncate(file.fd, file.size)
            raise
        file.size += len(run.data)

    def _check_records(self, header: StateHeader, data: bytes, position: int, run: StreamBytes) -> None:
        whole = whole_changes(header.file_number, position, data)
        if whole != len(data):
            raise StreamRefused(STATE, f"a record of the run at byte {run.offset} is damaged, or cut")

    def when_durable(self, callback: Callable[[StreamRefused | None], None]) -> None:
        if self.failure is not None:
            callback(StreamRefused(STATE, self.failure))
        elif self.durable_end >= self.end:
            callback(None)
        else:
            self._waiters.append((self.end, callback))
            self._sync()

    def _sync(self) -> None:
        if self._syncing:
            return
        self._syncing = True
        file, fresh = self._file, self._fresh
        sizes = [(each, each.size) for each in (file, fresh) if each is not None]
        names, notes = fresh is not None and fresh.has_all_entries, self._is_note_due()
        end = sizes[-1][0].start + sizes[-1][1]

        def run() -> None:
            with self._io:
                if self._is_closed:
                    raise OSError("the state is closed")
                for each, _ in sizes:
                    self._files.fdatasync(each.fd)
                if names:
                    self._files.rename(self._scratch, self._path)
                    self._files.fsync_dir(self._path.parent)
            if notes and (names or fresh is None):
                self._note_end(end)

        future = asyncio.get_running_loop().run_in_executor(None, run)
        future.add_done_callback(lambda ended: self._synced(ended.exception(), sizes, names=names))

    def _synced(self, error: BaseException | None, sizes: list[tuple[_CopiedFile, int]], *, names: bool) -> None:
        self._syncing = False
        if error is not None:
            self.failure = f"the state of RocketMQ's clients cannot be synced: {error}"
        else:
            for each, size in sizes:
                each.durable = size
            if names and self._fresh is not None:
                old, self._file, self._fresh = self._file, self._fresh, None
                if old is not None:
                    self._files.close(old.fd)
        reached = self.durable_end
        waiters, self._waiters = self._waiters, []
        for end, callback in waiters:
            if self.failure is not None:
                callback(StreamRefused(STATE, self.failure))
            elif end <= reached:
                callback(None)
            else:
                self._waiters.append((end, callback))
        if self._waiters:
            self._sync()

    async def settled(self) -> None:
        """Return when no sync is running."""
        while self._syncing:
            await asyncio.sleep(0.001)

    async def drop_before(self, start: int) -> None:
        """Nothing: an old generation goes with the next one's name."""

    async def create(self, origin: StreamOrigin, time_ms: int) -> None:
        """Begin an empty copy; a file that is there is moved to ``lost+found``."""
        await self.set_aside(time_ms)
        self._incarnation, self._begins_at = origin.incarnation, origin.start
        self._note_end(origin.start)

    async def set_aside(self, time_ms: int) -> None:
        """Move the file to ``lost+found``."""
        await self.settled()
        self._close_files()
        if self._files.exists(self._scratch):
            self._files.unlink(self._scratch)
        incarnation = self._incarnation or "0" * 32
        if self._files.exists(self._path):
            folder = self._path.parent / lost_found.FOLDER_NAME / STATE / f"{incarnation}-{time_ms}"
            self._files.make_folders(folder)
            self._files.rename(self._path, folder / self._path.name)
            self._files.fsync_dir(folder)
        self._forget()

    def _forget(self) -> None:
        if self._files.exists(_end_path(self._path)):
            self._files.unlink(_end_path(self._path))
        self._files.fsync_dir(self._path.parent)
        self._incarnation, self._begins_at, self.loss = None, 0, None

    async def cut(self, intention: Intention) -> None:
        """Cut the tail, and keep it in ``lost+found``. A generation without all its entries is put aside whole."""
        await self.settled()
        file = self._file
        if file is None or intention.offset < file.start + file.header.named_size:
            await self.set_aside(intention.time_ms)
            return
        self._close_files()
        tail = StateTail(self._files, self._path)
        await asyncio.to_thread(lost_found.cut_tail, self._files, self._path.parent, STATE, tail, intention)
        self.loss = None
        self._incarnation, self._begins_at = None, 0
        self._open()

    async def repair(self, intention: Intention) -> None:
        """Cut what is after the intact records, if something was lost: the leader sends it again.

        A generation that is not complete yet goes on where it ends.
        """
        if self.loss is not None:
            await self.cut(intention)

    def _close_files(self) -> None:
        for file in (self._file, self._fresh):
            if file is not None:
                self._files.close(file.fd)
        self._file = self._fresh = None

    def _note_end(self, end: int) -> None:
        """Record the durable end (blocking; any thread); without it, only a check is weaker."""
        with self._io, contextlib.suppress(OSError):
            if self._incarnation is not None and not self._is_closed:
                _write_end(self._files, self._path, _NotedEnd(self._incarnation, self._begins_at, end))

    def _is_note_due(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        is_due = now_s - self._noted_s >= NOTE_S
        self._noted_s = now_s if is_due else self._noted_s
        return is_due

    def close(self) -> None:
        """Close the files of a follower (blocking). A leader's table closes its own."""
        if self._file is not None and self.loss is None:
            self._note_end(self.durable_end)
        with self._io:
            self._is_closed = True
            self._close_files()

    # ---- a leader

    @property
    def incarnation(self) -> str:
        """For ``StateTable``: the stream of its files."""
        assert self._incarnation is not None  # made before the epoch began
        return self._incarnation

    @property
    def start(self) -> int:
        """For ``StateTable``: where its first file begins."""
        return self._begins_at

    def prepare(self) -> None:
        """Give a state without incarnation one, durably (blocking). A file of a broker without a pair is converted.

        Raises:
            StreamRefused: That file is damaged.
            OSError: The disk refuses.
        """
        if self._incarnation is not None:
            return
        incarnation = uuid4().hex
        if self._files.exists(self._path):
            try:
                values = decode_state(self._path, self._files.read_bytes(self._path)).values
            except StateDamaged as damaged:
                raise StreamRefused(STATE, str(damaged)) from damaged
            content = encode_state(secrets.randbits(64), values, Generation(incarnation, 0))
            self._files.write_atomic(self._path, content)
            self._read()
        self._incarnation = incarnation
        _write_end(self._files, self._path, _NotedEnd(incarnation, 0, self.end))

    def hand_over(self) -> None:
        """Close the file, so that a ``StateTable`` can open it: its first generation begins at the end."""
        self._begins_at = self._file.end if self._file is not None else self._begins_at
        self._close_files()
        if self._files.exists(self._scratch):
            self._files.unlink(self._scratch)

    def attach(self, table: StateTable) -> None:
        """Follow the table that has opened the file."""
        self._table = table
        self._confirmed = table.end
        if self._leader is not None and table.end > self._begins_at:
            self._leader.written(STATE, table.end)
            self._leader.synced(STATE, table.end)

    def lead(self, leader: Leader) -> None:
        self._leader = leader

    def hold(self, end: int, then: Callable[[str | None], None]) -> None:
        """For ``StateTable``: call ``then`` when everything before ``end`` is confirmed."""
        assert self._leader is not None  # only a leader has a table
        if self.failure is not None:
            then(self.failure)
            return
        self._held = end, then
        self._leader.written(STATE, end)
        self._leader.synced(STATE, end)

    def confirm(self, end: int) -> None:
        held = self._held
        if held is not None and held[0] <= end:
            self._held, self._confirmed = None, held[0]
            held[1](None)
            if self._is_note_due():
                asyncio.get_running_loop().run_in_executor(None, self._note_end, held[0])

    def fence(self, reason: str) -> None:
        self.failure = reason
        self._held = None
        if self._table is not None:
            self._table.fence(reason)


def _end_path(path: Path) -> Path:
    return path.with_name(path.name + END_SUFFIX)


class _NotedEnd(NamedTuple):
    """The stream was durable up to ``end``; its copy began at ``start``."""

    incarnation: str
    start: int
    end: int


def _read_end(files: Files, path: Path) -> _NotedEnd | None:
    try:
        if files.exists(_end_path(path)):
            [line] = unseal(_TITLE, files.read_bytes(_end_path(path)))
            incarnation, start, end = line.split(" ")
            return _NotedEnd(incarnation, int(start), int(end))
    except ValueError:  # without it, only a check is weaker
        pass
    return None


def _write_end(files: Files, path: Path, noted: _NotedEnd) -> None:
    files.write_atomic(_end_path(path), seal(_TITLE, [f"{noted.incarnation} {noted.start} {noted.end}"]))


class StateTail:
    """The end of a closed state file (``streams.lost_found.TailFiles``)."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self._path = files, path

    def _header(self) -> tuple[StateHeader, int] | None:
        if not self._files.exists(self._path):
            return None
        content = self._files.read_bytes(self._path)
        header = read_header(self._path, content)
        return None if header.generation is None else (header, len(content))

    @property
    def _start(self) -> int:
        found = self._header()
        return 0 if found is None or found[0].generation is None else found[0].generation.start

    @property
    def end(self) -> int:
        found = self._header()
        return 0 if found is None else self._start + found[1]

    def read(self, offset: int, bytes_max: int) -> bytes:
        content = self._files.read_bytes(self._path)
        at = offset - self._start
        return content[at : at + bytes_max]

    def forget_end(self, offset: int) -> None:
        noted = _read_end(self._files, self._path)
        if noted is not None and noted.end > offset:
            _write_end(self._files, self._path, noted._replace(end=offset))

    def cut(self, offset: int) -> None:
        size = offset - self._start
        fd = self._files.open_append(self._path)
        try:
            if 0 < size < self._files.size(fd):
                self._files.truncate(fd, size)
                self._files.fsync(fd)
        finally:
            self._files.close(fd)
