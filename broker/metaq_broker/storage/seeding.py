"""Making a partition's folder that does not begin at offset 0: first segment and incarnation are another broker's.

What a crash leaves half made holds no byte, so whoever copies a partition removes it and begins again.

Source: docs/replication.md, "The copy".
"""

from __future__ import annotations

from pathlib import Path

from metaq_broker.storage.files import Files
from metaq_broker.storage.incarnation import write_incarnation
from metaq_broker.storage.index import TIME_UNKNOWN, IndexEntry, write_entries
from metaq_broker.storage.segment import index_path, segment_path


def seed_partition(
    files: Files, directory: Path, start: int, ordinal: int, incarnation: str | None, index_interval_bytes: int
) -> None:
    """Make a folder with one empty segment at byte offset ``start``, before which there are ``ordinal`` messages.

    Without an ``incarnation`` it gets one of its own when it is opened. Durable on return (blocking; any thread).

    Raises:
        OSError: The folder is there already, or the disk refuses.
    """
    files.makedir(directory)
    if incarnation is not None:
        write_incarnation(files, directory, incarnation)
    entry = IndexEntry(start, ordinal, TIME_UNKNOWN, 0)
    write_entries(files, index_path(directory, start), start, index_interval_bytes, 0, entry.encode())
    files.close(files.open_append(segment_path(directory, start)))
    files.fsync_dir(directory)
    files.fsync_dir(directory.parent)
