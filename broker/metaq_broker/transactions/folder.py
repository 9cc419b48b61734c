"""The folder of the transaction journal, locked against a second broker.

The file ``extent`` beside the journal files records where the journal begins and up to where it is certainly durable.

Without it, a journal whose newest file was deleted would look like a shorter journal. It is written when a file is
begun, before a file is removed, at each start and at a clean stop; only the first put in a new file waits for it. A
journal of an older version has none and gets one at its first start.

::

    metaq-journal-extent 1
    FIRST END                 LSNs, decimal: the oldest file begins at or before FIRST; every byte before END is durable
    crc32 XXXXXXXX
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final

from metaq_broker.log.files.errors import StoreLocked
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

LOCK_NAME: Final = "lock"


def claim_folder(files: Files, directory: Path) -> int:
    """Create ``directory`` if necessary and lock it; return the descriptor that holds the lock.

    Raises:
        StoreLocked: Another broker uses the folder.
        OSError: It cannot be created.
    """
    files.make_folders(directory)
    try:
        return files.lock_exclusive(directory / LOCK_NAME)
    except BlockingIOError:
        owner = b""
        with contextlib.suppress(OSError):
            owner = files.read_bytes(directory / LOCK_NAME).strip()
        raise StoreLocked(directory, owner.decode(errors="replace") or "unknown") from None


FILE_NAME: Final = "extent"
_TITLE: Final = "metaq-journal-extent 1"


class ExtentDamaged(Exception):
    """The extent file cannot be read; the text says why."""


class Extent:
    """The recorded extent of one journal. ``cover`` runs in a worker thread, ``begin_at`` on the event loop."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._disk, self.path = files, directory / FILE_NAME
        self._lock = threading.Lock()
        self._is_closed = False
        self.known = False
        """Whether an extent is recorded."""
        self.first = self.end = 0

    def load(self) -> None:
        """Read the recorded extent.

        Raises:
            ExtentDamaged: The file has other contents than this program writes.
            OSError: The file cannot be read.
        """
        if not self._disk.exists(self.path):
            return
        try:
            (line,) = unseal(_TITLE, self._disk.read_bytes(self.path))
            self.first, self.end = map(int, line.split(" "))
        except ValueError as error:
            raise ExtentDamaged(str(error)) from None
        self.known = True

    def cover(self, end: int) -> None:
        """Record that every byte before ``end`` is durable.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            if not self._is_closed and (end > self.end or not self.known):
                self._write(self.first, max(end, self.end))

    def close(self) -> None:
        """Record nothing more: the folder may be opened again."""
        with self._lock:
            self._is_closed = True

    def begin_at(self, first: int) -> None:
        """Record that the journal begins at ``first``; then older files may be removed.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            if first != self.first or not self.known:
                self._write(first, self.end)

    def cut(self, first: int, end: int) -> None:
        """Record that the journal begins at ``first`` and ends at ``end``: the rest is removed on purpose.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            if (first, end) != (self.first, self.end) or not self.known:
                self._write(first, end)

    def _write(self, first: int, end: int) -> None:
        self._disk.write_atomic(self.path, seal(_TITLE, [f"{first} {end}"]))
        self.first, self.end, self.known = first, end, True
