"""A batched put: a block of whole frames is checked and given its message ids in one pass.

Source: design D5 extension 3; the frame is facts section 2.1.
"""

from __future__ import annotations

import struct
from typing import Final

from metaq.checksum import CHECKSUM_MASK, crc32
from metaq.message_id import IdRange
from metaq.wire.text.frames import HEADER_BYTES

_HEADER: Final = struct.Struct(">iiqi")
_ID: Final = struct.Struct(">q")
_ID_AT: Final = 8


class BlockRefused(Exception):
    """The block is not ``count`` whole, correct frames; the text names the frame that is wrong."""


def number_block(
    block: bytes, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int
) -> tuple[bytearray, list[tuple[int, int]]]:
    """Return the block with the ids written into it, and marks for the index.

    Marks are ``(relative offset, relative ordinal)`` of frame starts, at least ``mark_bytes`` apart, the first ``(0, 0)``.

    Raises:
        BlockRefused: A frame is cut, too long or fails its checksum, or there are not exactly ``count`` of them.
    """
    numbered = bytearray(block)
    total, start, next_mark = len(block), 0, 0
    marks: list[tuple[int, int]] = []
    for ordinal, message_id in enumerate(ids):
        body_start = start + HEADER_BYTES
        if body_start > total:
            raise BlockRefused(f"frame {ordinal} of {count} begins at byte {start}, but the block has {total} bytes")
        length, stored, _, _ = _HEADER.unpack_from(block, start)
        end = body_start + length
        if not 0 <= length <= message_bytes_max or end > total:
            raise BlockRefused(_length_fault(ordinal, start, length, message_bytes_max, total))
        if crc32(block[body_start:end]) & CHECKSUM_MASK != stored:
            raise BlockRefused(f"frame {ordinal} at byte {start} fails its checksum")
        if start >= next_mark:
            marks.append((start, ordinal))
            next_mark = start + mark_bytes
        _ID.pack_into(numbered, start + _ID_AT, message_id)
        start = end
    if start != total:
        raise BlockRefused(f"{count} frames take {start} bytes, but the block has {total} bytes")
    return numbered, marks


def _length_fault(ordinal: int, start: int, length: int, message_bytes_max: int, total: int) -> str:
    if length > message_bytes_max:
        return f"frame {ordinal} at byte {start} has a body of {length} bytes, maxMessageSize is {message_bytes_max}"
    return f"frame {ordinal} at byte {start} says {length} body bytes, which the block of {total} bytes does not hold"
