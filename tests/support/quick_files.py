"""What tests of stored logs share: a disk that waits for nothing, and the marks of a block."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.storage.files import Files
from metaq_broker.storage.marks import Marks

from metaq.formats.frames import HEADER_BYTES
from metaq.model import Buffer


class QuickFiles(Files):
    """The real disk without waiting for it, for tests in which no power is lost."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


def marks(block: Buffer) -> Marks:
    """Those of every frame of a block."""
    found, at = Marks(), 0
    while at < len(block):
        found.add(at, len(found))
        at += HEADER_BYTES + int.from_bytes(block[at : at + 4])
    return found
