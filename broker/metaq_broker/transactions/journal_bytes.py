"""The bytes of a journal file. No I/O.

A position in the journal is an LSN: a byte position in the concatenation of all journal files. A file is named after
the LSN of its first byte (``00000000000000000000.journal``), like a partition's segments. Big-endian.

::

    file header, 20 bytes                          record header, 28 bytes
    at size field                                  at size field
     0   7  "MetaQTx"                               0   4  "TxRe"
     7   1  version, 1                              4   4  uint32 payload length
     8   8  uint64 LSN of this file's first byte    8   4  uint32 CRC-32 of the payload
    16   4  uint32 CRC-32 of bytes 0..16           12   8  uint64 durable LSN
                                                   20   1  type
                                                   21   3  zero
                                                   24   4  uint32 CRC-32 of (uint64 own LSN + bytes 0..24)
                                                   28   n  payload

The header's checksum covers the record's own LSN, so a record is recognised only where it was written: neither a
message body that contains a piece of a journal nor an old block that reappears after a crash can pass for one.

``durable LSN`` is how much of the journal was known to be durable when the record was written. It distinguishes torn
writes from damage. After a power loss any part of the last writes may be missing, so a broken record with intact ones
after it is not yet damage. But if an intact record after it says that the broken bytes were durable already, they
have changed since: that is damage, and cutting the journal there would undo commits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from metaq.formats.checksum import crc32
from metaq.formats.native_crc import crc32_of_block
from metaq.model import Buffer

_MAGIC: Final = b"MetaQTx"
VERSION: Final = 1
_FILE: Final = struct.Struct(">7sBQI")
FILE_HEADER_BYTES: Final = _FILE.size

_MARK: Final = b"TxRe"
_HEAD: Final = struct.Struct(">4sIIQB3x")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
RECORD_HEADER_BYTES: Final = _HEAD.size + _U32.size

_NAME: Final = re.compile(r"(\d{20})\.journal")


class RawRecord(NamedTuple):
    """A record as it is in a file; ``lsn`` is the position of its header's first byte.

    The payload is a view of the bytes that were read.
    """

    lsn: int
    durable_lsn: int
    kind: int
    payload: memoryview

    @property
    def length(self) -> int:
        return RECORD_HEADER_BYTES + len(self.payload)


class Broken(Exception):
    """There is no intact record, or no intact file header, at ``lsn``; ``reason`` says what is wrong."""

    def __init__(self, lsn: int, reason: str) -> None:
        self.lsn, self.reason = lsn, reason
        super().__init__(lsn, reason)


class UnknownVersion(Exception):
    """A journal file has a ``version`` that this program does not know."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(version)


def file_name(start: int) -> str:
    """Return the name of the file whose first byte has LSN ``start``."""
    return f"{start:020d}.journal"


def start_of(name: str) -> int | None:
    """Return the LSN in a file's name; ``None`` if it is not a journal file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def pack_file_header(start: int) -> bytes:
    """Return the header of a file whose first byte has LSN ``start``."""
    head = _FILE.pack(_MAGIC, VERSION, start, 0)[: -_U32.size]
    return head + _U32.pack(crc32(head))


def check_file_header(data: Buffer, start: int) -> None:
    """Check the first bytes of a file that is named after LSN ``start``.

    Raises:
        Broken: They are not this file's header.
        UnknownVersion: They are a file header of another version.
    """
    if len(data) < FILE_HEADER_BYTES:
        raise Broken(start, f"a file header has {FILE_HEADER_BYTES} bytes, here are {len(data)}")
    magic, version, named, checksum = _FILE.unpack_from(data)
    if checksum != crc32(data[: _FILE.size - _U32.size]) or magic != _MAGIC or named != start:
        raise Broken(start, "the file header is damaged")
    if version != VERSION:
        raise UnknownVersion(version)


def pack_record(lsn: int, durable_lsn: int, kind: int, payload: Sequence[Buffer]) -> bytes:
    """Return the header of a record at ``lsn``. ``payload`` is given in parts, which the caller writes after it."""
    length = checksum = 0
    for part in payload:
        length, checksum = length + len(part), crc32_of_block(part, checksum)
    head = _HEAD.pack(_MARK, length, checksum, durable_lsn, kind)
    return head + _U32.pack(_header_checksum(lsn, head))


def _header_checksum(lsn: int, head: Buffer) -> int:
    return crc32(head, crc32(_U64.pack(lsn)))


class _Head(NamedTuple):
    length: int
    checksum: int
    durable_lsn: int
    kind: int


def _read_head(data: Buffer, at: int, lsn: int) -> _Head | None:
    end = at + RECORD_HEADER_BYTES
    if end > len(data):
        return None
    head = data[at : at + _HEAD.size]
    if _U32.unpack_from(data, at + _HEAD.size)[0] != _header_checksum(lsn, head):
        return None
    mark, length, checksum, durable_lsn, kind = _HEAD.unpack(head)
    return _Head(length, checksum, durable_lsn, kind) if mark == _MARK else None


def read_record(data: Buffer, at: int, lsn: int) -> RawRecord:
    """Return the record at position ``at`` of ``data``, whose LSN is ``lsn``.

    Raises:
        Broken: There is no intact record.
    """
    head = _read_head(data, at, lsn)
    if head is None:
        raise Broken(lsn, f"no record header among the {len(data) - at} bytes left in the file")
    start = at + RECORD_HEADER_BYTES
    payload = memoryview(data)[start : start + head.length]
    if len(payload) < head.length:
        raise Broken(lsn, f"the record says {head.length} payload bytes, the file has {len(payload)}")
    if crc32_of_block(payload) != head.checksum:
        raise Broken(lsn, f"the {head.length} payload bytes fail their checksum")
    return RawRecord(lsn, head.durable_lsn, head.kind, payload)


def records_of(data: Buffer, start: int) -> Iterator[RawRecord]:
    """Yield the records of a whole file whose first byte has LSN ``start``.

    Raises:
        Broken, UnknownVersion: As ``check_file_header`` and ``read_record``, after the records before the break.
    """
    check_file_header(data, start)
    at = FILE_HEADER_BYTES
    while at < len(data):
        record = read_record(data, at, start + at)
        yield record
        at += record.length


def durable_claim(data: bytes, start: int, after_lsn: int) -> int:
    """Return the largest durable LSN that an intact record header after ``after_lsn`` names; 0 if there is none.

    ``data`` is a whole file whose first byte has LSN ``start``. The payloads need not be intact, because headers have
    checksums of their own.
    """
    claim, at = 0, data.find(_MARK, max(0, after_lsn + 1 - start))
    while at >= 0:
        head = _read_head(data, at, start + at)
        if head is not None:
            claim = max(claim, head.durable_lsn)
        at = data.find(_MARK, at + 1)
    return claim
