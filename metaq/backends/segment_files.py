"""Opening a broker's segment file by the place that the broker gave, safely."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from metaq.protocols.file_location import FileLocation

_SEGMENT_NAME: Final = re.compile(r"\d{20}\.meta(\.new)?", re.ASCII)
"""Of segment files; with the suffix, before it has its final name."""

READ_CHUNK_BYTES: Final = 512 << 10
"""Read from a file at a time, unless a message is longer: it is still in the core's cache when it is decoded."""


def open_segment(place: FileLocation, folder: str) -> int | None:
    """The file that the broker means, open for reading; ``None`` if there is none here, or another one.

    Whoever listens at the broker's address is not to choose what this process opens: only a regular file that has the
    name of a segment, lies in the folder of the partition that was asked for and has no second name is opened.
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
