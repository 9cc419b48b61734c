"""The input of ``metaq produce``: lines of files and of the standard input as they arrive, or whole files."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from typing import Final

CHUNK_BYTES: Final = 1 << 20
"""Limit on bytes of input that are sent, and waited for, at a time."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Limit on bytes of a line, or of a file that is one message. No broker accepts as many."""

STDIN: Final = "-"
_READ_BYTES: Final = 64 << 10


def chunks(files: Sequence[str], *, whole: bool) -> Iterator[list[bytes]]:
    """Yield the messages of ``files`` as they arrive, about ``CHUNK_BYTES`` at a time; without files, of stdin.

    Raises:
        OSError: A file cannot be read. A missing file is reported before any message.
        ValueError: A line, or with ``whole`` a file, is longer than ``MESSAGE_BYTES_MAX``.
    """
    names = files or [STDIN]
    for name in names:
        if name != STDIN:
            os.stat(name)
    for name in names:
        descriptor = _stdin() if name == STDIN else os.open(name, os.O_RDONLY)
        try:
            yield from [[_whole(descriptor, name)]] if whole else _lines(descriptor, name)
        except OSError as error:
            error.filename = error.filename or name
            raise
        finally:
            if name != STDIN:
                os.close(descriptor)


def _stdin() -> int:
    if sys.stdin is None:
        raise ValueError("the standard input is closed; name files, or -m TEXT")
    return sys.stdin.fileno()


def _whole(descriptor: int, name: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data := os.read(descriptor, _READ_BYTES):
        parts.append(data)
        size += len(data)
        _require_short(size, f"file {name}")
    return b"".join(parts)


def _lines(descriptor: int, name: str) -> Iterator[list[bytes]]:
    """Yield the whole lines that have arrived, without line ends; a last line without one counts too."""
    begun: list[bytes] = []
    size = 0
    while data := _available(descriptor):
        if b"\n" in data:
            first, *lines = data.split(b"\n")
            last = lines.pop()
            yield [b"".join([*begun, first]), *lines]
            begun, size = [last], len(last)
        else:
            begun.append(data)
            size += len(data)
            _require_short(size, f"a line of {name}")
    if size:
        yield [b"".join(begun)]


def _require_short(size: int, what: str) -> None:
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"{what} is longer than {MESSAGE_BYTES_MAX:,} bytes")


def _available(descriptor: int) -> bytes:
    """Wait for input and return it, up to ``CHUNK_BYTES``; empty at the end."""
    parts = [os.read(descriptor, _READ_BYTES)]
    size = len(parts[0])
    while parts[-1] and size < CHUNK_BYTES and select.select([descriptor], [], [], 0)[0]:
        parts.append(os.read(descriptor, _READ_BYTES))
        size += len(parts[-1])
    return b"".join(parts)
