"""The bytes of a state file: the entries of a ``StateTable`` and later changes. No I/O.

Big-endian::

    file header, 36 bytes                                    record
    at size field                                            at size field
     0   7  "MetaQSt"                                         0   4  "StRe"
     7   1  version, 1                                        4   4  uint32 CRC-32, see below
     8   8  uint64 file number, random                        8   8  uint64 durable size
    16   8  uint64 size of the file when it got its name     16   4  uint32 value length
    24   8  uint64 records up to there                       20   2  uint16 key length
    32   4  uint32 CRC-32 of bytes 0..32                     22   1  kind: 1 put, 2 delete
                                                             23   n  key (UTF-8), value

In a pair the state is a replicated stream (``state_stream``), and a file is one generation of it. Its header has
version 2 and 60 bytes: at 32 the uint64 offset of the file's first byte in the stream, at 40 the stream's incarnation
(16 bytes), at 56 the CRC-32 of bytes 0..56.

A record's checksum covers the file number, the record's own position (uint64 each) and the bytes from 8 to its end: a
record is recognised only where it was written, so neither a value that contains a part of a state file nor an old block
that reappears after a crash can pass for one. Later records of a key replace earlier ones.

``durable size`` is how much of the file was known to be durable when the record was written. It distinguishes torn
writes from damage. After a power loss any part of the last writes may be missing, so everything from the first broken
record on is cut. But if the header, or an intact record after it, says that this position was durable already, the
bytes have changed since: that is damage, and cutting there would undo acknowledged changes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from metaq_broker.log.files.errors import StateDamaged

_MAGIC: Final = b"MetaQSt"
VERSION: Final = 1
STREAM_VERSION: Final = 2
_FILE: Final = struct.Struct(">7sBQQQ")
_U32: Final = struct.Struct(">I")
FILE_HEADER_BYTES: Final = _FILE.size + _U32.size
_STREAM: Final = struct.Struct(">Q16s")
STREAM_HEADER_BYTES: Final = _FILE.size + _STREAM.size + _U32.size

_MARK: Final = b"StRe"
_HEAD: Final = struct.Struct(">QIHB")
_POSITION: Final = struct.Struct(">QQ")
_HEAD_AT: Final = len(_MARK) + _U32.size
RECORD_HEADER_BYTES: Final = _HEAD_AT + _HEAD.size
_PUT: Final = 1
_DELETE: Final = 2

KEY_BYTES_MAX: Final = (1 << 16) - 1
VALUE_BYTES_MAX: Final = 16 << 20


class StateContent(NamedTuple):
    """The contents of a state file. ``cut_bytes`` at its end were torn in a crash and are ignored."""

    values: dict[str, bytes]
    cut_bytes: int


class Generation(NamedTuple):
    """Which part of a replicated stream a file is: from offset ``start`` on, of the stream ``incarnation``."""

    incarnation: str
    start: int


class StateHeader(NamedTuple):
    """The header of a file: ``size`` is the header's size, ``named_size`` the file's when it got its name."""

    file_number: int
    named_size: int
    records: int
    size: int
    generation: Generation | None


def encode_state(file_number: int, values: Mapping[str, bytes], generation: Generation | None = None) -> bytes:
    """Return a whole file with these entries."""
    changes = ((key, value) for key, value in values.items())
    size = FILE_HEADER_BYTES if generation is None else STREAM_HEADER_BYTES
    records, count = encode_changes(file_number, size, 0, changes), len(values)
    version = VERSION if generation is None else STREAM_VERSION
    head = _FILE.pack(_MAGIC, version, file_number, size + len(records), count)
    if generation is not None:
        head += _STREAM.pack(generation.start, bytes.fromhex(generation.incarnation))
    return head + _U32.pack(zlib.crc32(head)) + records


def encode_changes(
    file_number: int, position: int, durable_size: int, changes: Iterable[tuple[str, bytes | None]]
) -> bytes:
    """Return the records of changes, to be written at ``position``; a value of ``None`` deletes the key."""
    parts = []
    for key, value in changes:
        name = key.encode()
        kind = _PUT if value is not None else _DELETE
        content = value or b""
        rest = _HEAD.pack(durable_size, len(content), len(name), kind) + name + content
        parts.append(_MARK + _U32.pack(_checksum(file_number, position, rest)) + rest)
        position += _HEAD_AT + len(rest)
    return b"".join(parts)


def decode_state(path: object, content: bytes) -> StateContent:
    """Return the contents of the file ``path``.

    Raises:
        StateDamaged: It is damaged, apart from writes that a crash has torn.
    """
    file_number, safe_size, records, header_bytes, _ = read_header(path, content)
    values: dict[str, bytes] = {}
    at, count = header_bytes, 0
    while at < len(content):
        record = _read_record(file_number, content, at)
        if record is None:
            break
        if at < safe_size:
            count += 1
        _apply(values, record)
        at = record.end
    if at < safe_size or count != records:
        raise StateDamaged(path, at, "a durable record is broken or missing")
    witness = _durable_witness(file_number, content, at)
    if witness is not None:
        raise StateDamaged(path, at, f"a record is broken, and the one at byte {witness} says that it was durable")
    return StateContent(values, len(content) - at)


def decode_changes(path: object, file_number: int, position: int, part: bytes) -> list[tuple[str, bytes | None]]:
    """Return the changes in a part of the file ``path``, whole records from byte ``position`` on; ``None``: deleted.

    Raises:
        StateDamaged: It is damaged.
    """
    changes: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(part):
        record = _read_record(file_number, part, at, position)
        if record is None:
            raise StateDamaged(path, position + at, "a record of a part of it is broken")
        changes.append((record.key, record.value))
        at = record.end
    return changes


def salvage_state(path: object, content: bytes) -> StateContent:
    """Return the readable entries of a damaged file; ``cut_bytes`` could not be read. Older values may have returned.

    Raises:
        StateDamaged: The header is damaged: records cannot be recognised without the file number.
    """
    file_number, _, _, header_bytes, _ = read_header(path, content)
    values: dict[str, bytes] = {}
    at, lost = header_bytes, 0
    while at < len(content):
        record = _read_record(file_number, content, at)
        if record is not None:
            _apply(values, record)
            at = record.end
            continue
        following = content.find(_MARK, at + 1)
        following = len(content) if following < 0 else following
        lost += following - at
        at = following
    return StateContent(values, lost)


def whole_changes(file_number: int, position: int, part: bytes) -> int:
    """Return the length of the whole, intact records at the front of ``part``, whose first byte is at ``position``."""
    at = 0
    while at < len(part) and (record := _read_record(file_number, part, at, position)) is not None:
        at = record.end
    return at


class _Record(NamedTuple):
    key: str
    value: bytes | None
    durable_size: int
    end: int


def _apply(values: dict[str, bytes], record: _Record) -> None:
    if record.value is None:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value


def read_header(path: object, content: bytes) -> StateHeader:
    """Return the header at the front of ``content``, of the file ``path``.

    Raises:
        StateDamaged: There is no intact one, or it has an unknown version.
    """
    if len(content) < FILE_HEADER_BYTES or content[: len(_MAGIC)] != _MAGIC:
        raise StateDamaged(path, 0, "it does not begin as a state file")
    version = content[len(_MAGIC)]
    if version not in (VERSION, STREAM_VERSION):
        reason = f"its version is {version}, this program knows versions {VERSION} and {STREAM_VERSION} only"
        raise StateDamaged(path, 0, reason)
    size = FILE_HEADER_BYTES if version == VERSION else STREAM_HEADER_BYTES
    checked = size - _U32.size
    if len(content) < size or _U32.unpack_from(content, checked)[0] != zlib.crc32(content[:checked]):
        raise StateDamaged(path, 0, "the checksum of its header does not match")
    _, _, file_number, named_size, records = _FILE.unpack_from(content)
    generation = None
    if version == STREAM_VERSION:
        start, incarnation = _STREAM.unpack_from(content, _FILE.size)
        generation = Generation(incarnation.hex(), start)
    return StateHeader(file_number, named_size, records, size, generation)


def _read_record(file_number: int, content: bytes, at: int, position: int = 0) -> _Record | None:
    """Return the record at ``at``; ``None`` if there is no intact one. ``content`` begins at ``position``."""
    if content[at : at + len(_MARK)] != _MARK or len(content) - at < RECORD_HEADER_BYTES:
        return None
    durable_size, value_bytes, key_bytes, kind = _HEAD.unpack_from(content, at + _HEAD_AT)
    key_at = at + RECORD_HEADER_BYTES
    value_at = key_at + key_bytes
    end = value_at + value_bytes
    (checksum,) = _U32.unpack_from(content, at + len(_MARK))
    if end > len(content) or checksum != _checksum(file_number, position + at, content[at + _HEAD_AT : end]):
        return None
    key = content[key_at:value_at].decode()
    return _Record(key, content[value_at:end] if kind == _PUT else None, durable_size, end)


def _durable_witness(file_number: int, content: bytes, broken: int) -> int | None:
    """Return the position of an intact record after ``broken`` that says that ``broken`` was durable."""
    at = content.find(_MARK, broken)
    while at >= 0:
        record = _read_record(file_number, content, at)
        if record is not None and record.durable_size > broken:
            return at
        at = content.find(_MARK, at + 1)
    return None


def _checksum(file_number: int, position: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_POSITION.pack(file_number, position)))
