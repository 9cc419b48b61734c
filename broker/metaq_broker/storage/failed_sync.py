"""The mark that a partition's fsync failed, and where its durable bytes ended then.

After a failed fsync the kernel may count the lost pages as written: the bytes still read back from memory, and a later
fsync succeeds without them ever reaching the disk. So what was appended since must not be believed, not even by the
next process. File ``failed-sync`` in the partition's folder: the durable end as a decimal number and a line end. It is
written as well as the failing disk allows, obeyed at the next opening (everything behind the durable end is cut) and
then removed.
"""

from __future__ import annotations

from pathlib import Path

from metaq_broker.storage.files import Files

FILE_NAME = "failed-sync"


def read_failed_sync(files: Files, directory: Path) -> int | None:
    """Return the durable end in the mark, ``None`` without a mark or if it cannot be read."""
    path = directory / FILE_NAME
    if not files.exists(path):
        return None
    text = files.read_bytes(path)
    return int(text) if text.strip().isdigit() and text.endswith(b"\n") else None


def write_failed_sync(files: Files, directory: Path, durable_end: int) -> None:
    """Leave the mark."""
    files.write_atomic(directory / FILE_NAME, f"{durable_end}\n".encode())


def remove_failed_sync(files: Files, directory: Path) -> None:
    """Remove the mark if there is one; durable on return."""
    path = directory / FILE_NAME
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(directory)
