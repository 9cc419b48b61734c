"""The broker's access to the disk: all system calls on its files and folders are made here.

Tests pass an object with the same methods that fails, tears or loses writes (``metaq_broker.testing``). Errors are
``OSError``; the caller interprets them. Nothing is cached: a method is one operation.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metaq.model import Buffer

_NEW_FILE_MODE = 0o644
_PARTS_MAX = 1024  # of one call, on Linux: IOV_MAX


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes and time of the last change of one file."""

    size: int
    mtime_ns: int

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes that an unprivileged process may still write on a file system, the size of that file system, and how much
    of it only a privileged process may write.
    """

    free_bytes: int
    total_bytes: int
    reserved_bytes: int = 0

    @property
    def used_part(self) -> float:
        """The used part of what an unprivileged process may use, as ``df`` shows it: from 0 to 1."""
        usable = self.total_bytes - self.reserved_bytes
        return 1 - self.free_bytes / usable if usable > 0 else 0.0


class Files:
    """The real file system. Descriptors are plain ints, closed by the caller; none is inherited by child processes."""

    # ---- one open file

    def open_append(self, path: Path) -> int:
        """Open for reading and writing, creating an empty file if there is none. Its name is not yet durable."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _NEW_FILE_MODE)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        """Return ``count`` bytes from ``position``; fewer only at the end of the file."""
        data = os.pread(fd, count, position)
        while len(data) < count:
            more = os.pread(fd, count - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pread_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` from ``position`` on; return the number of bytes, fewer only at the end of the file."""
        done = 0
        while done < len(buffer):
            read = os.preadv(fd, [buffer[done:]], position + done)
            if not read:
                break
            done += read
        return done

    def pwrite(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of ``data`` at ``position``; after an error any part of it may have been written."""
        written = os.pwrite(fd, data, position)
        if written == len(data):
            return
        rest = memoryview(data)[written:]
        while rest:
            position += written
            written = os.pwrite(fd, rest, position)
            rest = rest[written:]

    def pwrite_all(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        """Write all of ``parts`` in order at ``position``, in one call unless the system writes less; after an
        error any part may have been written.
        """
        written = os.pwritev(fd, parts, position) if len(parts) <= _PARTS_MAX else 0
        if written < sum(map(len, parts)):
            self.pwrite(fd, b"".join(parts)[written:], position + written)

    def append(self, fd: int, data: Buffer) -> int:
        """Write all of ``data`` after the last byte of the file; return the position of its first byte."""
        position = self.size(fd)
        self.pwrite(fd, data, position)
        return position

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to ``size`` bytes (or extend it with zeros)."""
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def identity(self, fd: int) -> tuple[int, int]:
        """Return device and inode of an open file: no other file of this machine has both."""
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def identity_of(self, path: Path) -> tuple[int, int]:
        """Return device and inode of the file or folder ``path``."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def fsync(self, fd: int) -> None:
        """Make the file's bytes and all its attributes durable."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync leaves the bytes in the drive's cache
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and its size durable. Its name is not covered: see ``fsync_dir``."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            self.fsync(fd)

    # ---- names and folders

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable: files created, renamed and removed in it."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def makedir(self, path: Path) -> None:
        """Create one folder whose parent exists."""
        os.mkdir(path)

    def make_folders(self, path: Path) -> None:
        """Create a folder, and those above it, if it is not there; names that it makes are durable on return."""
        if self.is_dir(path):
            return
        self.make_folders(path.parent)
        self.makedir(path)
        self.fsync_dir(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name in one step, replacing what had that name."""
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a name. The bytes stay while the file is open."""
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: Path) -> bool:
        return os.path.isdir(path)

    def is_file(self, path: Path) -> bool:
        return os.path.isfile(path)

    def stat(self, path: Path) -> FileStat:
        status = os.stat(path)
        return FileStat(status.st_size, status.st_mtime_ns)

    def read_bytes(self, path: Path) -> bytes:
        """Return a whole file; meant for small ones."""
        fd = self.open_read(path)
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def write_atomic(self, path: Path, data: Buffer) -> None:
        """Replace a file so that a crash leaves either the old or the new content; durable on return."""
        scratch = path.with_name(path.name + ".tmp")
        fd = self.open_append(scratch)
        try:
            self.truncate(fd, 0)
            self.pwrite(fd, data, 0)
            self.fsync(fd)
        finally:
            self.close(fd)
        self.rename(scratch, path)
        self.fsync_dir(path.parent)

    def free_bytes(self, path: Path) -> int:
        """Return the free bytes, for an unprivileged process, of the file system of ``path``."""
        return self.disk_space(path).free_bytes

    def disk_space(self, path: Path) -> DiskSpace:
        status = os.statvfs(path)
        reserved = status.f_bfree - status.f_bavail
        return DiskSpace(*(blocks * status.f_frsize for blocks in (status.f_bavail, status.f_blocks, reserved)))

    # ---- exclusion between processes

    def lock_exclusive(self, path: Path) -> int:
        """Lock a file (created when absent) for this process and write the process id into it.

        The lock lasts until the returned descriptor is closed, however the process ends.

        Raises:
            BlockingIOError: Another descriptor, here or in another process, holds the lock.
        """
        fd = self.open_append(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            with contextlib.suppress(OSError):
                self.close(fd)
            raise
        return fd

    def is_locked(self, path: Path) -> bool:
        """Return whether a process has the lock of a ``lock_exclusive`` file, without locking it."""
        if not self.exists(path):
            return False
        fd = self.open_read(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            self.close(fd)
        return False


OPEN_HANDLES_MAX = 128
"""Limit on read handles of older segments and of indexes in one cache."""


class FileHandle:
    """One open descriptor, ``fd``, closed with the last reference to this object."""

    __slots__ = ("__weakref__", "_files", "fd")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self.fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._files.close(self.fd)

    def pread(self, count: int, position: int) -> bytes:
        """Return ``count`` bytes from ``position``; fewer only at the end of the file."""
        return self._files.pread(self.fd, count, position)

    def __repr__(self) -> str:
        return f"<FileHandle fd={self.fd}>"


class HandleCache:
    """The most recently used read handles, at most ``limit``. Not thread-safe."""

    def __init__(self, files: Files, limit: int = OPEN_HANDLES_MAX) -> None:
        if limit < 1:
            raise ValueError(f"handle limit {limit}: expected 1 or more")
        self._files = files
        self._limit = limit
        self._handles: OrderedDict[Path, FileHandle] = OrderedDict()

    def get(self, path: Path) -> FileHandle:
        """Return a handle for reading ``path``, opened if it is not cached.

        Raises:
            OSError: The file cannot be opened.
        """
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        handle = FileHandle(self._files, self._files.open_read(path))
        self._handles[path] = handle
        if len(self._handles) > self._limit:
            self._handles.popitem(last=False)
        return handle

    def drop(self, path: Path) -> None:
        """Forget ``path``: its name may soon belong to another file, or none."""
        self._handles.pop(path, None)

    def __len__(self) -> int:
        return len(self._handles)
