"""Damaged ranges of a partition: never served, and listed in a small file so that no scan is needed.

File ``quarantine`` in the partition's folder, UTF-8 text, written atomically::

    metaq-quarantine 1
    START END MESSAGES REASON        one line per range, ascending; offsets in bytes, END exclusive
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

Without the file nothing is quarantined. If the file is damaged, every segment is verified again when the partition is
opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.model import OffsetRange
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

FILE_NAME = "quarantine"
_TITLE = "metaq-quarantine 1"


COPIED: Final = "damaged at the leader of the pair"
"""The reason of damage that this broker's disk has not caused."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[start, end)`` that are not served; ``messages`` is the number of messages in them, as far as known."""

    start: int
    end: int
    messages: int
    reason: str

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.start, self.end)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}), {self.messages} message(s): {self.reason}"


def encode_quarantine(damage: Iterable[Damage]) -> bytes:
    return seal(_TITLE, (f"{entry.start} {entry.end} {entry.messages} {entry.reason}" for entry in damage))


def decode_quarantine(content: bytes) -> list[Damage]:
    """Return the ranges in a quarantine file.

    Raises:
        ValueError: The content is damaged or of another version.
    """
    return [_decode_line(line) for line in unseal(_TITLE, content)]


def _decode_line(line: str) -> Damage:
    start, end, messages, reason = line.split(" ", 3)
    return Damage(int(start), int(end), int(messages), reason)


def read_quarantine(files: Files, directory: Path) -> list[Damage] | None:
    """Return the quarantined ranges of a partition folder; ``None`` if the file exists but cannot be read."""
    path = directory / FILE_NAME
    if not files.exists(path):
        return []
    try:
        return decode_quarantine(files.read_bytes(path))
    except ValueError:
        return None


def write_quarantine(files: Files, directory: Path, damage: Sequence[Damage]) -> None:
    """Replace the quarantined ranges of a partition folder; durable on return. Without ranges, the file is removed."""
    path = directory / FILE_NAME
    if damage:
        files.write_atomic(path, encode_quarantine(damage))
    elif files.exists(path):
        files.unlink(path)
        files.fsync_dir(directory)
