"""The sparse index beside a segment: the state of the log at some of its frame boundaries.

File ``START.index``, all numbers big-endian: one header, then entries in ascending order, 32 bytes each, so that no
entry straddles a disk sector::

    header                                     entry
    at size field                              at size field
     0   4  magic "MQIX"                        0   8  offset: a frame boundary of the segment
     4   4  version, 1                          8   8  ordinal: messages before it in the partition
     8   8  start offset of the segment        16   8  time_ms: no message before it is later than this
    16   4  log bytes between entries          24   4  span: CRC-32 of the segment from the entry before to here
    20   8  zero                               28   4  CRC-32 of the 28 bytes before
    28   4  CRC-32 of the 28 bytes before

The first entry is at the segment's start (span 0), the last one of a finished segment at its end, which gives its
number of messages. The span covers headers, too, which MetaQ's own checksum does not. An index is written without
fsync, after the bytes that it describes have become durable, and rebuilt from the segment when it is missing, short or
damaged. Only its first entry cannot be rebuilt, because it has the number of earlier messages: it is synced before
older segments are removed. A damaged entry is skipped; the one before it is used.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from metaq.formats.checksum import crc32
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import message_id_at
from metaq.formats.message_id import timestamp_ms
from metaq.formats.native_crc import crc32_of_block
from metaq.model import Buffer
from metaq_broker.log.files.files import FileHandle, Files, HandleCache

RECORD_BYTES = 32

_ENTRY = struct.Struct(">qqqI")
_CRC = struct.Struct(">I")


class IndexEntry(NamedTuple):
    """The state at one frame boundary. ``offset`` and ``ordinal`` count from the beginning of the partition."""

    offset: int
    ordinal: int
    time_ms: int
    span: int

    def encode(self) -> bytes:
        fields = _ENTRY.pack(*self)
        return fields + _CRC.pack(crc32(fields))


def decode_entry(record: Buffer) -> IndexEntry | None:
    """Return the entry in 32 bytes, or ``None`` if they are too few or damaged."""
    if len(record) != RECORD_BYTES or _CRC.unpack_from(record, 28)[0] != crc32(record[:28]):
        return None
    return IndexEntry(*_ENTRY.unpack_from(record))


class Entries:
    """Entries in ascending order, stored as in the file: ``records`` has ``RECORD_BYTES`` for each."""

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
        self.records += entry.encode()

    def begin_with(self, others: Entries) -> bool:
        """Return whether the first entries are ``others``."""
        return self.records.startswith(others.records)

    def drop(self, count: int) -> None:
        del self.records[: count * RECORD_BYTES]

    def shift(self, messages: int) -> None:
        """Add ``messages`` to the ordinal of every entry."""
        self.records[:] = Entries(entry._replace(ordinal=entry.ordinal + messages) for entry in self).records


SUFFIX = ".index"
TIME_UNKNOWN = 0
"""Time of an entry before which no message id has a time."""

_HEADER = struct.Struct(">4sIqI8x")
SPAN_DAMAGED = 0
"""Span of damaged bytes, which is never compared: the quarantine file names them."""

BLOCK_INTERVAL_BYTES: Final = 1 << 15
"""Least log bytes between two entries inside a block: more entries cost more than they save."""

WINDOW_ENTRIES = 512
"""Bytes that a search reads at a time: 16 KiB take hardly longer than one entry."""

_FRONT_BYTES = 2 * RECORD_BYTES
"""Header and first entry."""

_MAGIC, _VERSION = b"MQIX", 1


def encode_header(start: int, interval_bytes: int) -> bytes:
    """Return the 32 bytes at the front of the index of the segment that starts at ``start``."""
    fields = _HEADER.pack(_MAGIC, _VERSION, start, interval_bytes)
    return fields + _CRC.pack(crc32(fields))


def header_belongs(record: Buffer, start: int) -> bool:
    """Return whether 32 bytes are the header of the index of the segment that starts at ``start``."""
    if len(record) != RECORD_BYTES or _CRC.unpack_from(record, 28)[0] != crc32(record[:28]):
        return False
    magic, version, of, _ = _HEADER.unpack_from(record)
    return (magic, version, of) == (_MAGIC, _VERSION, start)


def read_entries(files: Files, path: Path, start: int) -> tuple[list[IndexEntry], bool]:
    """Return the intact entries of an index file, ascending, and whether the file has exactly these and no damage.

    A file that is missing or belongs to another segment has no entries.
    """
    if not files.is_file(path):
        return [], False
    content = files.read_bytes(path)
    if not header_belongs(content[:RECORD_BYTES], start):
        return [], False
    entries: list[IndexEntry] = []
    for at in range(RECORD_BYTES, len(content), RECORD_BYTES):
        entry = decode_entry(content[at : at + RECORD_BYTES])
        if entry is not None and (not entries or entry.offset > entries[-1].offset):
            entries.append(entry)
    return entries, len(content) == RECORD_BYTES * (1 + len(entries))


def write_entries(
    files: Files, path: Path, start: int, interval_bytes: int, number: int, records: Buffer, *, durable: bool = False
) -> None:
    """Write entries with numbers from ``number`` on; number 0 also writes the header and cuts the old contents.

    Header and first entry are not changed in between, so that a crash leaves durable ones.
    """
    fd = files.open_append(path)
    try:
        if number == 0:
            if files.size(fd) > _FRONT_BYTES:
                files.truncate(fd, _FRONT_BYTES)
            files.pwrite(fd, encode_header(start, interval_bytes) + records, 0)
        else:
            files.pwrite(fd, records, RECORD_BYTES * (1 + number))
        if durable:
            files.fsync(fd)
    finally:
        files.close(fd)


def make_first_durable(files: Files, path: Path, entry: IndexEntry, interval_bytes: int) -> None:
    """Sync the header and the first entry of an index, and its name; write them if they are missing.

    Raises:
        OSError: The disk refuses.
    """
    fd = files.open_append(path)
    try:
        front = files.pread(fd, _FRONT_BYTES, 0)
        found = decode_entry(front[RECORD_BYTES:]) if header_belongs(front[:RECORD_BYTES], entry.offset) else None
        if found is None or (found.offset, found.ordinal) != (entry.offset, entry.ordinal):
            files.pwrite(fd, encode_header(entry.offset, interval_bytes) + entry.encode(), 0)
        files.fsync(fd)
    finally:
        files.close(fd)
    files.fsync_dir(path.parent)


class SegmentIndex:
    """The index of one segment: ``written`` entries in the file, the rest in ``unwritten``, oldest first."""

    __slots__ = ("path", "unwritten", "written")

    def __init__(self, path: Path, written: int, unwritten: Entries) -> None:
        self.path = path
        self.written = written
        self.unwritten = unwritten

    def last_at_most(
        self, handles: HandleCache, value_of: Callable[[IndexEntry], int], most: int, front: int, end: int | None
    ) -> IndexEntry | None:
        """Return the last entry whose value is at most ``most``; values never decrease from entry to entry.

        ``front`` and ``end`` are the values at the beginning and the end of the segment, if known: the more evenly
        values grow, the fewer entries are read. Damaged entries are skipped, and a file that cannot be read counts as
        empty: the result may then be an earlier entry, or ``None``, and the caller walks further.
        """
        if self.unwritten and value_of(self.unwritten[0]) <= most:
            return self.unwritten[bisect_right(self.unwritten, most, key=value_of) - 1]
        if self.unwritten and (end is None or end > value_of(self.unwritten[0])):
            end = value_of(self.unwritten[0])
        try:
            return self._search_file(_Window(handles.get(self.path)), value_of, most, front, end)
        except OSError:
            return None

    def _search_file(
        self, window: _Window, value_of: Callable[[IndexEntry], int], most: int, front: int, end: int | None
    ) -> IndexEntry | None:
        low, high, best = 0, self.written, None
        # Interpolation with a window per step: each step excludes everything outside of its window. If that is less
        # than half of the rest, values grow unevenly, and the next step is a bisection.
        share: float | None = 1.0 if end is None else None
        while high - low > WINDOW_ENTRIES:
            if share is None:
                assert end is not None  # known from the first step on
                share = (most - front) / (end - front) if end > front else 0.5
            left = high - low
            first, last = window.load(low + int(min(max(share, 0.0), 1.0) * left), low, high)
            number, entry = window.intact_at_or_after(first, last)
            if entry is None:
                # All entries of the window are damaged: the ones before it say where to continue.
                number, entry = window.intact_at_or_before(first - 1, low)
                if entry is None or value_of(entry) <= most:
                    best, low = entry or best, last
                else:
                    high, end = number, value_of(entry)
            elif value_of(entry) > most:
                high, end = number, value_of(entry)
            else:
                best, low, front = entry, number + 1, value_of(entry)
                number, entry = window.intact_at_or_before(last - 1, low)
                if entry is None:
                    low = last
                elif value_of(entry) <= most:
                    best, low, front = entry, last, value_of(entry)
                else:
                    high, end = number, value_of(entry)
            share = None if high - low <= left // 2 and end is not None else 0.5
        while low < high:
            middle = (low + high) // 2
            number, entry = window.intact_at_or_before(middle, low)
            if entry is None or value_of(entry) <= most:
                best, low = entry or best, middle + 1
            else:
                high = number
        return best


class _Window:
    """Entries of a file, read in pieces, because a search reads many neighbours."""

    __slots__ = ("_first", "_handle", "_records")

    def __init__(self, handle: FileHandle) -> None:
        self._handle = handle
        self._first, self._records = 0, b""

    def load(self, number: int, low: int, high: int) -> tuple[int, int]:
        """Read the entries around ``number`` between ``low`` and ``high``; return the range that was read.

        Raises:
            OSError: The file cannot be read.
        """
        first = max(low, min(number - WINDOW_ENTRIES // 2, high - WINDOW_ENTRIES))
        self._read(first)
        return first, min(first + WINDOW_ENTRIES, high)

    def intact_at_or_after(self, number: int, high: int) -> tuple[int, IndexEntry | None]:
        """Return the first intact entry from ``number`` to before ``high``, with its number; ``None`` with ``high``.

        Raises:
            OSError: The file cannot be read.
        """
        while number < high:
            entry = self._entry(number)
            if entry is not None:
                return number, entry
            number += 1
        return number, None

    def intact_at_or_before(self, number: int, low: int) -> tuple[int, IndexEntry | None]:
        """Return the last intact entry from ``low`` to ``number``, with its number; ``None`` with a number below
        ``low``.

        Raises:
            OSError: The file cannot be read.
        """
        entry = None
        while number >= low:
            entry = self._entry(number)
            if entry is not None:
                break
            number -= 1
        return number, entry

    def _entry(self, number: int) -> IndexEntry | None:
        position = (number - self._first) * RECORD_BYTES
        if not 0 <= position < len(self._records):
            self._read(max(0, number - WINDOW_ENTRIES // 2))
            position = (number - self._first) * RECORD_BYTES
        return decode_entry(self._records[position : position + RECORD_BYTES])

    def _read(self, first: int) -> None:
        self._first = first
        self._records = self._handle.pread(WINDOW_ENTRIES * RECORD_BYTES, RECORD_BYTES * (1 + first))


class IndexBuilder:
    """Makes the entries of one segment while its bytes are appended, from ``offset`` on.

    ``entries`` are the entries so far. ``time_ms`` never decreases, whatever the clock or the message ids do.
    """

    __slots__ = ("_marked", "_span", "entries", "interval_bytes", "offset", "ordinal", "time_ms")

    def __init__(self, entries: Entries, offset: int, ordinal: int, time_ms: int, interval_bytes: int) -> None:
        self.entries = entries
        self.offset, self.ordinal, self.time_ms = offset, ordinal, time_ms
        self.interval_bytes = interval_bytes
        self._marked = offset
        self._span = 0

    @classmethod
    def at_start(cls, offset: int, ordinal: int, time_ms: int, interval_bytes: int) -> IndexBuilder:
        """Return a builder for a segment that starts at ``offset``, with its first entry."""
        return cls(Entries([IndexEntry(offset, ordinal, time_ms, 0)]), offset, ordinal, time_ms, interval_bytes)

    @property
    def free_bytes(self) -> int:
        return self.interval_bytes - (self.offset - self._marked)

    def advance(self, data: Buffer, count: int, time_ms: int) -> None:
        """Add ``count`` whole messages, ``data``, none of them later than ``time_ms``."""
        self._span = crc32_of_block(data, self._span)
        self.offset += len(data)
        self.ordinal += count
        if time_ms > self.time_ms:
            self.time_ms = time_ms

    def mark(self) -> None:
        """Make an entry here, unless there is one."""
        if self.offset != self._marked:
            self._make(self._span)

    def leap(self, size: int, count: int, time_ms: int, span: int) -> None:
        """Add ``size`` bytes with a known checksum, with an entry before and after them."""
        self.mark()
        self.offset += size
        self.ordinal += count
        self.time_ms = max(self.time_ms, time_ms)
        self._make(span)

    def skip(self, size: int, count: int) -> None:
        """Add ``size`` damaged bytes with ``count`` messages, with an entry before and after them."""
        self.leap(size, count, self.time_ms, SPAN_DAMAGED)

    def shift(self, messages: int) -> None:
        """Add ``messages`` to all ordinals so far."""
        self.ordinal += messages
        self.entries.shift(messages)

    def _make(self, span: int) -> None:
        self.entries.append(IndexEntry(self.offset, self.ordinal, self.time_ms, span))
        self._marked, self._span = self.offset, 0

    def add_block(self, block: FrameBlock, now_ms: Callable[[], int], *, ids_ascend: bool = True) -> None:
        """Add a block of one frame or more. ``now_ms`` returns the time for ids without one.

        ``ids_ascend``: no message of the block is later than the ones after it.
        """
        if block.count == 1:
            known = timestamp_ms(message_id_at(block.data))
            self.advance(block.data, 1, now_ms() if known is None else known)
            if self.offset - self._marked >= self.interval_bytes:
                self._make(self._span)
            return
        due_bytes, block_interval_bytes = self.free_bytes, max(self.interval_bytes, BLOCK_INTERVAL_BYTES)
        view, ends, first, done = memoryview(block.data), block.ends, 0, 0
        while first < block.count:
            last = min(bisect_left(ends, done + due_bytes, lo=first), block.count - 1)
            latest = message_id_at(view, ends[last - 1] if last else 0) if ids_ascend else _latest(block, first, last)
            known = timestamp_ms(latest)
            self.advance(view[done : ends[last]], last + 1 - first, now_ms() if known is None else known)
            if self.offset - self._marked >= self.interval_bytes:
                self._make(self._span)
            first, done, due_bytes = last + 1, ends[last], block_interval_bytes


def _latest(block: FrameBlock, first: int, last: int) -> int:
    """Return the greatest id of frames ``first`` to ``last``; an id without a time, if there is one."""
    message_ids = [block.message_id(number) for number in range(first, last + 1)]
    return max(message_ids) if min(message_ids) >= 0 else min(message_ids)
