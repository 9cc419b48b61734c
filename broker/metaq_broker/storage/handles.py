"""Open files that close themselves when nobody uses them any more, and a bounded number of them kept ready.

A ``FileHandle`` owns one descriptor and closes it when the last reference to it goes. A slice handed to a reader holds
its handle, so the bytes stay readable as long as the reader keeps the slice: rolling, eviction and retention only drop
their own reference. Nothing has to be released by hand, so nothing can be forgotten.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from pathlib import Path

from metaq_broker.storage.files import Files

OPEN_HANDLES_MAX = 128
"""Read handles of older segments and of indexes that one cache keeps open."""


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
        """Return ``count`` bytes from ``position``; fewer only where the file ends."""
        return self._files.pread(self.fd, count, position)

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file."""
        return self._files.identity(self.fd)

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
        """Return a handle for reading ``path``, opened now if it is not kept.

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
        """Forget ``path``: its name may soon mean another file, or none."""
        self._handles.pop(path, None)

    def __len__(self) -> int:
        return len(self._handles)
