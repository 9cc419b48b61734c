"""The answer to ``offset ... file``: the place of a partition's bytes on the disk, as one line of text.

``POSITION LENGTH DEVICE INODE BOOT PATH``, separated by single spaces; the path may hold any character:

==========  ===================================================================
POSITION    of the requested byte, in the file
LENGTH      how many bytes from there on may be read: durable, undamaged ones
DEVICE      of the file (``st_dev``)
INODE       of the file (``st_ino``)
BOOT        ``metaq.net.machine.boot_id`` of the broker's machine
PATH        absolute, as the broker sees it
==========  ===================================================================

A path alone is not enough: a reader in another container, or behind a forwarded port, may have another file with this
path.

Source: docs/protocol.md (file).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"(\d{1,19}) (\d{1,19}) (\d{1,20}) (\d{1,20}) (\S+) (/.*)", re.ASCII | re.DOTALL)


class FileLocation(NamedTuple):
    """``length`` bytes (1 or more) at ``position`` of the file ``path``, which is ``inode`` of ``device``."""

    position: int
    length: int
    device: int
    inode: int
    boot: str
    path: str


def encode_file_location(place: FileLocation) -> str:
    return f"{place.position} {place.length} {place.device} {place.inode} {place.boot} {place.path}"


def parse_file_location(text: str) -> FileLocation:
    """Parse the text of the reply.

    Raises:
        ValueError: The text has another form.
    """
    found = _TEXT.fullmatch(text)
    if found is None or not int(found[2]):
        raise ValueError(f"{text[:80]!r}: expected POSITION LENGTH DEVICE INODE BOOT PATH")
    position, length, device, inode = map(int, found.group(1, 2, 3, 4))
    return FileLocation(position, length, device, inode, found[5], found[6])
