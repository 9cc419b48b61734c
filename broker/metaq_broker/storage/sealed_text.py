"""Small text files with a title and a checksum: for facts that must be read back whole or not at all.

::

    TITLE
    LINE                             any number
    crc32 XXXXXXXX                   of everything before, 8 hex digits
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

_SUM_WORD = b"crc32 "


def seal(title: str, lines: Iterable[str]) -> bytes:
    """Return the content of such a file. Lines hold no line ends."""
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
