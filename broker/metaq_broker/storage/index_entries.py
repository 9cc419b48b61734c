"""Entries of a segment's index, as 32 bytes each (the table is in ``index``), and many of them in memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from metaq.formats.checksum import crc32
from metaq.model import Buffer

RECORD_BYTES = 32

_ENTRY = struct.Struct(">qqqI")
_CRC = struct.Struct(">I")


class IndexEntry(NamedTuple):
    """What is known at one frame boundary. ``offset`` and ``ordinal`` count from the beginning of the partition."""

    offset: int
    ordinal: int
    time_ms: int
    span: int

    def encode(self) -> bytes:
        """Return the entry's 32 bytes."""
        fields = _ENTRY.pack(*self)
        return fields + _CRC.pack(crc32(fields))


def decode_entry(record: Buffer) -> IndexEntry | None:
    """Return the entry in 32 bytes, or ``None`` if they are too few or damaged."""
    if len(record) != RECORD_BYTES or _CRC.unpack_from(record, 28)[0] != crc32(record[:28]):
        return None
    return IndexEntry(*_ENTRY.unpack_from(record))


class Entries:
    """Entries in ascending order, kept as they are written: ``records`` has ``RECORD_BYTES`` for each."""

    __slots__ = ("records",)

    def __init__(self, entries: Iterable[IndexEntry] = ()) -> None:
        self.records = bytearray().join(entry.encode() for entry in entries)

    def __len__(self) -> int:
        return len(self.records) // RECORD_BYTES

    def __getitem__(self, number: int) -> IndexEntry:
        position = (number if number >= 0 else len(self) + number) * RECORD_BYTES
        if not 0 <= position < len(self.records):
            raise IndexError(f"entry {number} of {len(self)}")
        return IndexEntry(*_ENTRY.unpack_from(self.records, position))

    def __iter__(self) -> Iterator[IndexEntry]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entries) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<Entries, {len(self)}>"

    def append(self, entry: IndexEntry) -> None:
        """Add an entry behind all others."""
        self.records += entry.encode()

    def begin_with(self, others: Entries) -> bool:
        """Say whether the first ones are ``others``."""
        return self.records.startswith(others.records)

    def drop(self, count: int) -> None:
        """Forget the first ``count``."""
        del self.records[: count * RECORD_BYTES]

    def shift(self, messages: int) -> None:
        """Count ``messages`` more before every entry."""
        self.records[:] = Entries(entry._replace(ordinal=entry.ordinal + messages) for entry in self).records
