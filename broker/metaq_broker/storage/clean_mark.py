"""The mark of a clean shutdown: which partitions were complete, and how they ended. See ``log_store`` for its life.

A partition is trusted at the next start only if its last segment still has the recorded end and time of change, because
a broker that knows nothing of the mark may have used the folder meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from metaq_broker.storage.files import Files
from metaq_broker.storage.sealed_text import seal, unseal

FILE_NAME = "clean-shutdown"
_TITLE = "metaq-clean-shutdown 1"


class CleanEnd(NamedTuple):
    """Where a partition ended, and when its last segment was last changed (nanoseconds since 1970)."""

    end: int
    mtime_ns: int


def read_clean_mark(files: Files, data_path: Path) -> dict[str, CleanEnd]:
    """Return the end of each partition folder that was closed cleanly; empty without a mark or if it is damaged."""
    path = data_path / FILE_NAME
    if not files.exists(path):
        return {}
    try:
        return dict(_parse(line) for line in unseal(_TITLE, files.read_bytes(path)))
    except ValueError:
        return {}


def _parse(line: str) -> tuple[str, CleanEnd]:
    end, mtime_ns, folder = line.split(" ", 2)
    return folder, CleanEnd(int(end), int(mtime_ns))


def write_clean_mark(files: Files, data_path: Path, ends: Mapping[str, CleanEnd]) -> None:
    """Leave the mark; durable on return."""
    lines = (f"{end.end} {end.mtime_ns} {folder}" for folder, end in sorted(ends.items()) if "\n" not in folder)
    files.write_atomic(data_path / FILE_NAME, seal(_TITLE, lines))


def remove_clean_mark(files: Files, data_path: Path) -> None:
    """Remove the mark if there is one; durable on return."""
    path = data_path / FILE_NAME
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(data_path)
