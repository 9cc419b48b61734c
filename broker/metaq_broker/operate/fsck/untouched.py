"""A disk that is read unchanged: every change is recorded instead of made.

Check and repair of a partition run the same code, the broker's own opening of a partition. On this disk it reports its
changes, on the real one it makes them. So a check never disagrees with a repair, or with the next start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from metaq.model import Buffer
from metaq_broker.log.files.files import Files


class UntouchedChange(NamedTuple):
    """A change that was not made: ``what`` would have happened to the file or folder ``path``."""

    what: str
    path: Path


class UntouchedDisk(Files):
    """``on_read`` gets the number of bytes of every read; ``changes`` is in order."""

    def __init__(self, on_read: Callable[[int], None] = lambda count: None) -> None:
        self.changes: list[UntouchedChange] = []
        self._on_read = on_read
        self._paths: dict[int, Path] = {}

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = super().pread(fd, count, position)
        self._on_read(len(data))
        return data

    # ---- recorded only

    def open_append(self, path: Path) -> int:
        """Open for reading; a missing file reads as empty."""
        there = self.exists(path)
        if not there:
            self.changes.append(UntouchedChange("make", path))
        fd = self.open_read(path if there else Path(os.devnull))
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        self.changes.append(UntouchedChange("write", self._paths[fd]))

    def pwrite_all(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        self.pwrite(fd, b"", position)

    def truncate(self, fd: int, size: int) -> None:
        """Record a change of the size."""
        if size != self.size(fd):
            self.changes.append(UntouchedChange("cut", self._paths[fd]))

    def fsync(self, fd: int) -> None: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync_dir(self, path: Path) -> None: ...

    def makedir(self, path: Path) -> None:
        self.changes.append(UntouchedChange("make", path))

    def rename(self, old: Path, new: Path) -> None:
        self.changes.append(UntouchedChange("rename", old))

    def unlink(self, path: Path) -> None:
        self.changes.append(UntouchedChange("remove", path))

    def rmdir(self, path: Path) -> None:
        self.changes.append(UntouchedChange("remove", path))

    def write_atomic(self, path: Path, data: Buffer) -> None:
        self.changes.append(UntouchedChange("write", path))
