"""A disk for tests: it fails, tears or stops at a chosen call, and loses unsynced data in a simulated power cut.

``FaultyFiles`` works on real files below one folder, so that ``pread`` and ``sendfile`` work as usual, and keeps a
model of what is durable::

    files = FaultyFiles(tmp_path)
    files.fault = Fault(at=7, error=errno.ENOSPC, kept=0.5)     # the 7th changing call fails, half of its bytes written
    files.fault = Fault(at=7, error=None)                       # power cut at the 7th call: raises PowerCut, then
                                                                # every call fails
    after = files.crash(Random(1))                              # a new FaultyFiles on what a restart may find

A changing call is one that creates, writes, truncates, syncs, renames or removes. The model assumes only what POSIX
promises: bytes are durable after fsync or fdatasync of their file, names after fsync of their folder, each without the
other. Of the bytes written since, a crash keeps a prefix, or any 512-byte sectors (the rest reads as zeros or as
before); of the changes of names in one folder, a prefix. After a failed sync the bytes stay visible, but no later sync
makes them durable; they must be written again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from metaq.model import Buffer
from metaq_broker.log.files.files import Files

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The simulated machine has stopped. Not an ``Exception``: only the test may handle it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at changing call number ``at`` (from 1), counting only the calls in ``calls`` if given.

    ``error`` is an errno; ``None`` is a power cut. ``kept`` is the fraction of a write's bytes that are written before
    it fails. ``lasting`` faults stay: every later call (of ``calls``) fails too.
    """

    at: int
    error: int | None
    kept: float = 0.0
    lasting: bool = False
    calls: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class _Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.size - len(content))))
        del content[self.size :]


@dataclass(slots=True, eq=False)
class _File:
    durable: bytes = b""
    pending: list[_Write | _Truncate] = field(default_factory=list)

    def sync(self) -> None:
        content = bytearray(self.durable)
        for change in self.pending:
            change.apply(content)
        self.durable = bytes(content)
        self.pending.clear()

    def after_crash(self, random: Random) -> bytes:
        fate = random.choice(("nothing", "everything", "front", "front", "sectors"))
        if fate == "nothing":
            return self.durable
        content = bytearray(self.durable)
        if fate == "sectors" and all(isinstance(change, _Write) for change in self.pending):
            return self._with_lost_sectors(random)
        kept = len(self.pending) if fate == "everything" else random.randint(0, len(self.pending))
        for change in self.pending[:kept]:
            change.apply(content)
        if kept < len(self.pending):
            torn = self.pending[kept]
            if isinstance(torn, _Write) and torn.data:
                _Write(torn.position, torn.data[: random.randrange(len(torn.data))]).apply(content)
        return bytes(content)

    def _with_lost_sectors(self, random: Random) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            change.apply(content)
        before = self.durable.ljust(len(content), b"\0")
        for at in range(0, len(content), SECTOR_BYTES):
            if random.random() < 0.5:
                content[at : at + SECTOR_BYTES] = before[at : at + SECTOR_BYTES]
        return bytes(content)


_Entries = dict[str, "_File | _Folder"]


@dataclass(frozen=True, slots=True)
class _Named:
    """A change of names in one folder: ``name`` is now ``entry`` (``None``: removed), and ``old`` (if given) is
    removed.
    """

    name: str
    entry: _File | _Folder | None
    old: str | None = None

    def apply(self, entries: _Entries) -> None:
        if self.old is not None:
            entries.pop(self.old, None)
        if self.entry is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.entry


@dataclass(slots=True, eq=False)
class _Folder:
    live: _Entries = field(default_factory=dict)
    durable: _Entries = field(default_factory=dict)
    pending: list[_Named] = field(default_factory=list)

    def change(self, named: _Named) -> None:
        named.apply(self.live)
        self.pending.append(named)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending.clear()

    def after_crash(self, random: Random) -> _Entries:
        fate = random.choice(("nothing", "everything", "front", "front"))
        kept = {"nothing": 0, "everything": len(self.pending)}.get(fate, random.randint(0, len(self.pending)))
        entries = dict(self.durable)
        for named in self.pending[:kept]:
            named.apply(entries)
        return entries


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """``entry`` was moved to another folder; it was ``name`` in ``folder``."""

    entry: _File | _Folder
    folder: _Folder
    name: str


class FaultyFiles(Files):
    """The contents of ``root`` at the start count as durable; ``calls`` lists the changing calls."""

    def __init__(self, root: Path, fault: Fault | None = None, tree: _Folder | None = None) -> None:
        self.root, self._root = root, os.fspath(root)
        self.fault = fault
        self.calls: list[str] = []
        self._counted = 0
        self._dead = False
        self._tree = tree or _read_tree(root)
        self._open: dict[int, _File | None] = {}
        self._moves: list[_Move] = []

    # ---- faults

    def _due(self, call: str) -> Fault | None:
        if self._dead:
            raise PowerCut(call)
        self.calls.append(call)
        fault = self.fault
        if fault is None or (fault.calls is not None and call not in fault.calls):
            return None
        self._counted += 1
        return fault if self._counted == fault.at or (fault.lasting and self._counted > fault.at) else None

    def _break(self, call: str, fault: Fault) -> None:
        if fault.error is None:
            self._dead = True
            raise PowerCut(f"{call}, changing call {len(self.calls)}")
        raise OSError(fault.error, os.strerror(fault.error), f"{call}, changing call {len(self.calls)}")

    def _pass(self, call: str) -> None:
        fault = self._due(call)
        if fault is not None:
            self._break(call, fault)

    # ---- one open file

    def open_append(self, path: Path) -> int:
        """A changing call only if the file is created."""
        folder, name = self._entry(path)
        if name not in folder.live:
            self._pass("create")
            folder.change(_Named(name, _File()))
        return self._track(super().open_append(path), path)

    def open_read(self, path: Path) -> int:
        if self._dead:
            raise PowerCut("open_read")
        return self._track(super().open_read(path), path)

    def _track(self, fd: int, path: Path) -> int:
        folder, name = self._entry(path)
        entry = folder.live[name]
        self._open[fd] = entry if isinstance(entry, _File) else None
        return fd

    def close(self, fd: int) -> None:
        """Ignores descriptors that a crash has closed already."""
        if self._open.pop(fd, self) is not self:
            super().close(fd)

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """A fault leaves a prefix of the bytes."""
        fault = self._due("pwrite")
        written = bytes(data) if fault is None else bytes(data)[: int(len(data) * fault.kept)]
        if written:
            super().pwrite(fd, written, position)
            self._file(fd).pending.append(_Write(position, written))
        if fault is not None:
            self._break("pwrite", fault)

    def pwrite_all(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        """One changing call, named ``pwrite``."""
        self.pwrite(fd, b"".join(parts), position)

    def truncate(self, fd: int, size: int) -> None:
        self._pass("truncate")
        super().truncate(fd, size)
        self._file(fd).pending.append(_Truncate(size))

    def fsync(self, fd: int) -> None:
        """Make the bytes durable in the model, without waiting for the real disk."""
        self._sync(fd, "fsync")

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync")

    def _sync(self, fd: int, call: str) -> None:
        fault = self._due(call)
        if fault is None:
            self._file(fd).sync()
            return
        if fault.error is not None:
            self._file(fd).pending.clear()  # visible, but clean: no later sync writes them
        self._break(call, fault)

    def _file(self, fd: int) -> _File:
        entry = self._open[fd]
        assert entry is not None, f"descriptor {fd} is a folder's"
        return entry

    # ---- names and folders

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable in the model."""
        self._pass("fsync_dir")
        self._folder(os.fspath(path)).sync()

    def makedir(self, path: Path) -> None:
        self._pass("makedir")
        super().makedir(path)
        folder, name = self._entry(path)
        folder.change(_Named(name, _Folder()))

    def rename(self, old: Path, new: Path) -> None:
        """Between two folders, a crash before both are synced leaves the entry in one of them, never in none."""
        (folder, old_name), (new_folder, new_name) = self._entry(old), self._entry(new)
        self._pass("rename")
        super().rename(old, new)
        entry = folder.live[old_name]
        if folder is new_folder:
            folder.change(_Named(new_name, entry, old=old_name))
        else:
            self._moves.append(_Move(entry, folder, old_name))
            new_folder.change(_Named(new_name, entry))
            folder.change(_Named(old_name, None))

    def unlink(self, path: Path) -> None:
        self._pass("unlink")
        super().unlink(path)
        folder, name = self._entry(path)
        folder.change(_Named(name, None))

    def rmdir(self, path: Path) -> None:
        self._pass("rmdir")
        super().rmdir(path)
        folder, name = self._entry(path)
        folder.change(_Named(name, None))

    def _entry(self, path: Path) -> tuple[_Folder, str]:
        """Return the folder of a file or folder, and its name there."""
        folder, _, name = os.fspath(path).rpartition(os.sep)
        return self._folder(folder), name

    def _folder(self, path: str) -> _Folder:
        """Return the folder. Crash tests call this millions of times, and ``Path`` would be ten times slower."""
        assert path.startswith(self._root), f"{path} is not below {self._root}"
        folder = self._tree
        for part in path[len(self._root) :].split(os.sep):
            if part:
                entry = folder.live[part]
                assert isinstance(entry, _Folder), f"{path} is no folder"
                folder = entry
        return folder

    # ---- the end

    def restart(self) -> FaultyFiles:
        """End the process only: descriptors and locks are lost, and written bytes stay, still not durable."""
        self._close_all()
        return FaultyFiles(self.root, tree=self._tree)

    def crash(self, random: Random) -> FaultyFiles:
        """Cut the power: the folder becomes what a restart may find; ``random`` chooses among the possibilities."""
        self._close_all()
        for child in self.root.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        _materialise(self.root, self._tree, _after_crash(self._tree, self._moves, random), random)
        return FaultyFiles(self.root)

    def __del__(self) -> None:
        """Close the descriptors, as the end of a process does.

        Each is closed only once: handles that are collected together with this object close theirs afterwards, and by
        then another thread may have the same descriptor number.
        """
        for fd in list(getattr(self, "_open", ())):
            self.close(fd)

    def _close_all(self) -> None:
        self._dead = True
        for fd in list(self._open):
            self.close(fd)


def _read_tree(path: Path) -> _Folder:
    folder = _Folder()
    for child in path.iterdir():
        folder.live[child.name] = _read_tree(child) if child.is_dir() else _File(child.read_bytes())
    folder.sync()
    return folder


_Plan = dict[int, _Entries]
"""What a crash leaves in each folder, by the folder's identity."""


def _after_crash(tree: _Folder, moves: Sequence[_Move], random: Random) -> _Plan:
    plan: _Plan = {}

    def decide(folder: _Folder) -> None:
        if id(folder) not in plan:
            plan[id(folder)] = folder.after_crash(random)
            for _, entry in sorted(plan[id(folder)].items()):
                if isinstance(entry, _Folder):
                    decide(entry)

    decide(tree)
    for move in moves:
        holders = [entries for entries in plan.values() if move.entry in entries.values()]
        if not holders and id(move.folder) in plan:
            plan[id(move.folder)][move.name] = move.entry
            if isinstance(move.entry, _Folder):
                decide(move.entry)
        elif len(holders) > 1 and plan[id(move.folder)].get(move.name) is move.entry:
            del plan[id(move.folder)][move.name]
    return plan


def _materialise(path: Path, folder: _Folder, plan: _Plan, random: Random) -> None:
    for name, entry in sorted(plan[id(folder)].items()):
        if isinstance(entry, _Folder):
            (path / name).mkdir()
            _materialise(path / name, entry, plan, random)
        else:
            (path / name).write_bytes(entry.after_crash(random))
