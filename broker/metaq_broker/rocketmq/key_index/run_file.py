"""One file of the index of keys: entries sorted by hash, written once and never changed.

::

    at   size  field
     0     4   "MQKX"
     4     4   version, 1
     8     8   number of entries
    16     8   earliest time of an entry, ms
    24     8   latest time
    32     4   length n of the coverage
    36     4   CRC-32 of these 36 bytes and of the coverage
    40     n   coverage: JSON, [[topic, partition, first ordinal, ordinal after the last], ...]
    then blocks of 4,096 bytes: 204 entries, zeros after the last one, CRC-32 of the 4,080 bytes, 12 zeros

    entry: hash 4 | place 8 | time 8    big-endian; the hash is unsigned

Hashes are evenly spread, so that the block of a hash is found by its value, with one or two reads. All messages of the
coverage that have keys are in the file, or have none.

Source: docs/log-format.md, "Index of keys".
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from metaq.formats.checksum import crc32
from metaq_broker.log.files.files import Files

SUFFIX: Final = ".keys"
MAGIC: Final = b"MQKX"
VERSION: Final = 1
BLOCK_BYTES: Final = 4096
BLOCK_ENTRIES: Final = 204
COVERAGE_BYTES_MAX: Final = 16 << 20
HASH_LIMIT: Final = 1 << 32

_HEAD: Final = struct.Struct(">4sIqqqi")
_CRC: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">Iqq")
_TIME_AT: Final = 12
_DATA_BYTES: Final = BLOCK_ENTRIES * _ENTRY.size
_PADDING: Final = bytes(BLOCK_BYTES - _DATA_BYTES - _CRC.size)


class Entry(NamedTuple):
    """A key of a message: its hash, the message's position, and its store time."""

    hash: int
    place: int
    time_ms: int


encode_entry: Final[Callable[[int, int, int], bytes]] = _ENTRY.pack
"""Encodes an entry (hash of a key, position, time in ms). Encoded entries sort like their hashes."""


def decode_entry(data: bytes) -> Entry:
    """Return the entry that ``encode_entry`` made."""
    return Entry(*_ENTRY.unpack(data))


class Covered(NamedTuple):
    """Ordinals of one partition, from ``first`` to below ``end``."""

    topic: str
    partition: int
    first: int
    end: int


class RunDamaged(Exception):
    """A file of the index is damaged."""


@dataclass(frozen=True, slots=True)
class IndexRun:
    """An open description of a file; the file itself is opened for each search."""

    path: Path
    count: int
    first_ms: int
    last_ms: int
    coverage: Sequence[Covered]
    blocks_at: int

    @property
    def block_count(self) -> int:
        return -(-self.count // BLOCK_ENTRIES)


def write_run(files: Files, path: Path, entries: Sequence[bytes], coverage: Iterable[Covered]) -> IndexRun:
    """Write a file durably (blocking); ``entries`` are encoded, and sorted.

    Raises:
        OSError: It cannot be written; the file is then missing or complete.
    """
    covered = list(coverage)
    times = [entry[_TIME_AT:] for entry in entries] or [bytes(8)]
    first_ms, last_ms = int.from_bytes(min(times), signed=True), int.from_bytes(max(times), signed=True)
    text = json.dumps([list(each) for each in covered]).encode()
    head = _HEAD.pack(MAGIC, VERSION, len(entries), first_ms, last_ms, len(text))
    parts = [head, _CRC.pack(crc32(head + text)), text]
    for at in range(0, len(entries), BLOCK_ENTRIES):
        data = b"".join(entries[at : at + BLOCK_ENTRIES]).ljust(_DATA_BYTES, b"\0")
        parts += [data, _CRC.pack(crc32(data)), _PADDING]
    files.write_atomic(path, b"".join(parts))
    return IndexRun(path, len(entries), first_ms, last_ms, covered, _HEAD.size + _CRC.size + len(text))


def open_run(files: Files, path: Path) -> IndexRun:
    """Read the front of a file (blocking).

    Raises:
        RunDamaged: It is not an index file, or is damaged.
        OSError: It cannot be read.
    """
    fd = files.open_read(path)
    try:
        front = files.pread(fd, _HEAD.size + _CRC.size, 0)
        if len(front) < _HEAD.size + _CRC.size:
            raise RunDamaged(f"{path}: {len(front)} bytes")
        magic, version, count, first_ms, last_ms, length = _HEAD.unpack_from(front)
        if (magic, version) != (MAGIC, VERSION) or not 0 <= length <= COVERAGE_BYTES_MAX or count < 0:
            raise RunDamaged(f"{path}: no index of keys of version {VERSION}")
        text = files.pread(fd, length, len(front))
        if _CRC.unpack_from(front, _HEAD.size)[0] != crc32(front[: _HEAD.size] + text):
            raise RunDamaged(f"{path}: its front has a wrong checksum")
        run = IndexRun(
            path, count, first_ms, last_ms, [Covered(*each) for each in json.loads(text)], len(front) + length
        )
        if files.size(fd) != run.blocks_at + run.block_count * BLOCK_BYTES:
            raise RunDamaged(f"{path}: its size is {files.size(fd)}")
    finally:
        files.close(fd)
    return run


def find_in_run(files: Files, run: IndexRun, key_hash: int) -> list[Entry]:
    """Return the entries with a hash (blocking; any thread).

    Raises:
        RunDamaged: A block that had to be read is damaged.
        OSError: The file cannot be read.
    """
    if not run.count:
        return []
    fd = files.open_read(run.path)
    try:
        blocks = _Blocks(files, fd, run)
        number = _first_block(blocks, key_hash)
        found: list[Entry] = []
        while number < run.block_count:
            entries = blocks.entries(number)
            found += [each for each in entries if each.hash == key_hash]
            if entries[-1].hash > key_hash:
                break
            number += 1
        return found
    finally:
        with contextlib.suppress(OSError):
            files.close(fd)


class _Blocks:
    """The blocks of an open file, each read once."""

    def __init__(self, files: Files, fd: int, run: IndexRun) -> None:
        self._files, self._fd, self.run = files, fd, run
        self._read: dict[int, list[Entry]] = {}

    def entries(self, number: int) -> list[Entry]:
        if (known := self._read.get(number)) is not None:
            return known
        block = self._files.pread(self._fd, BLOCK_BYTES, self.run.blocks_at + number * BLOCK_BYTES)
        data = block[:_DATA_BYTES]
        if len(block) != BLOCK_BYTES or _CRC.unpack_from(block, _DATA_BYTES)[0] != crc32(data):
            raise RunDamaged(f"{self.run.path}: block {number} has a wrong checksum")
        count = min(BLOCK_ENTRIES, self.run.count - number * BLOCK_ENTRIES)
        entries = [Entry(*_ENTRY.unpack_from(data, at * _ENTRY.size)) for at in range(count)]
        self._read[number] = entries
        return entries


def _first_block(blocks: _Blocks, key_hash: int) -> int:
    """Return the first block whose last hash is not below: from the expected position in growing steps, then by
    bisection.
    """
    count = blocks.run.block_count
    low, high = 0, count
    guess, step, ups = min(count - 1, key_hash * count // HASH_LIMIT), 1, set()
    while low < high:
        is_below = blocks.entries(guess)[-1].hash < key_hash
        ups.add(is_below)
        if is_below:
            low = guess + 1
        else:
            high = guess
        guess = (low + high) // 2 if len(ups) == 2 else min(high - 1, low + step) if is_below else max(0, high - step)
        step *= 2
    return low
