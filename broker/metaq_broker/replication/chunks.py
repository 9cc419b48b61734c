"""Bytes of another broker's log, cut into whole frames that were checked. No input or output here."""

from __future__ import annotations

import struct
from typing import Final

from metaq.errors import CorruptFrame
from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import HEADER_BYTES

_HEADER: Final = struct.Struct(">iiqi")


def checked_frames(run: bytes, offset: int, where: str) -> list[bytes]:
    """Return the whole frames at the front of ``run``, whose first byte is at ``offset``; a cut one is left out.

    Raises:
        CorruptFrame: A frame fails its checksum, or is none: nothing of the run may be stored.
    """
    frames: list[bytes] = []
    start, total, unpack, crc = 0, len(run), _HEADER.unpack_from, crc32
    while (body := start + HEADER_BYTES) <= total:
        length, stored, message_id, _ = unpack(run, start)
        end = body + length
        if length < 0 or (not length and not message_id):  # no broker gives the id 0: bytes that were never written
            raise CorruptFrame(where, offset + start, f"body length {length}, message id {message_id}")
        if end > total:
            break
        if crc(run[body:end]) & CHECKSUM_MASK != stored:
            raise CorruptFrame(where, offset + start, "its checksum is wrong")
        frames.append(run[start:end])
        start = end
    return frames
