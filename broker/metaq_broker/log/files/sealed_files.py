"""Small files with a checksum that are read completely or not at all, and the two marks of how a broker ended.

::

    TITLE
    LINE                             any number
    crc32 XXXXXXXX                   of everything before, 8 hex digits

The mark of a clean shutdown, ``clean-shutdown`` in the data folder, says which partitions were complete and how they
ended. A partition is trusted at the next start only if its last segment still has the recorded end and time of change,
because a broker that does not know the mark may have used the folder meanwhile.

The mark of a failed fsync, ``failed-sync`` in the partition's folder, is the durable end as a decimal number and a line
end. After a failed fsync the kernel may count the lost pages as written: the bytes still read back from memory, and a
later fsync succeeds without them ever reaching the disk. So the next opening cuts everything after the durable end,
then removes the mark.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from metaq_broker.log.files.files import Files

_SUM_WORD = b"crc32 "


def seal(title: str, lines: Iterable[str]) -> bytes:
    """Return the contents of such a file. Lines have no line ends."""
    text = "".join(f"{line}\n" for line in (title, *lines)).encode(errors="surrogateescape")
    return text + _SUM_WORD + f"{zlib.crc32(text):08x}\n".encode()


def unseal(title: str, content: bytes) -> list[str]:
    """Return the lines of such a file.

    Raises:
        ValueError: It is damaged, or has another title.
    """
    text, word, checksum = content.rpartition(_SUM_WORD)
    if not word or checksum != f"{zlib.crc32(text):08x}\n".encode():
        raise ValueError("its checksum does not match")
    found, *lines = text.decode(errors="surrogateescape").removesuffix("\n").split("\n")
    if found != title:
        raise ValueError(f"it begins with {found[:40]!r}, expected {title!r}")
    return lines


_CLEAN_FILE = "clean-shutdown"
_CLEAN_TITLE = "metaq-clean-shutdown 1"


class CleanEnd(NamedTuple):
    """Where a partition ended, and when its last segment was last changed (nanoseconds since 1970)."""

    end: int
    mtime_ns: int


def read_clean_mark(files: Files, data_path: Path) -> dict[str, CleanEnd]:
    """Return the end of each partition folder that was closed cleanly; empty without a mark or if it is damaged."""
    path = data_path / _CLEAN_FILE
    if not files.exists(path):
        return {}
    try:
        return dict(_clean_end(line) for line in unseal(_CLEAN_TITLE, files.read_bytes(path)))
    except ValueError:
        return {}


def _clean_end(line: str) -> tuple[str, CleanEnd]:
    end, mtime_ns, folder = line.split(" ", 2)
    return folder, CleanEnd(int(end), int(mtime_ns))


def write_clean_mark(files: Files, data_path: Path, ends: Mapping[str, CleanEnd]) -> None:
    """Write the mark; durable on return."""
    lines = (f"{end.end} {end.mtime_ns} {folder}" for folder, end in sorted(ends.items()) if "\n" not in folder)
    files.write_atomic(data_path / _CLEAN_FILE, seal(_CLEAN_TITLE, lines))


def remove_clean_mark(files: Files, data_path: Path) -> None:
    """Remove the mark if there is one; durable on return."""
    path = data_path / _CLEAN_FILE
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(data_path)


_FAILED_FILE = "failed-sync"


def read_failed_sync(files: Files, directory: Path) -> int | None:
    """Return the durable end in the mark; ``None`` without a mark or if it cannot be read."""
    path = directory / _FAILED_FILE
    if not files.exists(path):
        return None
    text = files.read_bytes(path)
    return int(text) if text.strip().isdigit() and text.endswith(b"\n") else None


def write_failed_sync(files: Files, directory: Path, durable_end: int) -> None:
    files.write_atomic(directory / _FAILED_FILE, f"{durable_end}\n".encode())


def remove_failed_sync(files: Files, directory: Path) -> None:
    """Remove the mark if there is one; durable on return."""
    path = directory / _FAILED_FILE
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(directory)
