"""Opens a broker's segment file safely, by the place that the broker reported."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from metaq.protocols.file_location import FileLocation

_SEGMENT_NAME: Final = re.compile(r"\d{20}\.meta(\.new)?", re.ASCII)
"""Names of segment files; with the suffix before a file has its final name."""

READ_CHUNK_BYTES: Final = 512 << 10
"""Bytes read from a file at a time, unless a message is longer: they are still in the core's cache when decoded."""


def open_segment(place: FileLocation, folder: str) -> int | None:
    """Open the file that the broker reported, for reading; ``None`` if it does not exist here, or is another one.

    A process that listens at the broker's address must not choose which files are opened: only a regular file is
    accepted that has the name of a segment, lies in the folder of the requested partition and has no second name.
    """
    parent, _, name = place.path.rpartition("/")
    if not _SEGMENT_NAME.fullmatch(name) or parent.rpartition("/")[2] != folder:
        return None
    try:
        fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    status = os.fstat(fd)
    named = (status.st_dev, status.st_ino) == (place.device, place.inode)
    if named and stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return fd
    os.close(fd)
    return None
