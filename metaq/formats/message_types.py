"""Message types: which frames an ``fget`` keeps, and the body of its reply.

The type of a message is its attribute. A name of a type is letters, digits and underscores of ASCII, so a message with
any other attribute, or with none, has no type and is never kept. All numbers are big-endian::

    at   size  field
     0     8   int64  offset to continue at: after the last frame that was scanned
     8         for each matching frame, in order:
               8   int64  its own offset
               n   the whole frame

Source: docs/protocol.md, "fget".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metaq.errors import CorruptFrame, ProtocolError
from metaq.formats.frames import FLAG_ATTRIBUTE, HEADER_BYTES, Frame, frame_bytes, walk
from metaq.formats.stored_form import SEPARATOR, STORED_FORM

OFFSET_BYTES: Final = 8
"""Size of each offset in the body."""

TYPE_CHARS_MAX: Final = 200
"""Longest name of a type."""

_TYPE: Final = re.compile(rf"[A-Za-z0-9_]{{1,{TYPE_CHARS_MAX}}}")
_OFFSET: Final = struct.Struct(">q")
_ATTRIBUTE_LENGTH: Final = struct.Struct(">i")
TYPE_BYTES_MAX: Final = _ATTRIBUTE_LENGTH.size + TYPE_CHARS_MAX + 1
"""Bytes at the front of a body that contain the type of its message."""


def is_message_type(name: str) -> bool:
    """Return whether ``name`` is a valid message type: 1..200 letters, digits and underscores of ASCII."""
    return _TYPE.fullmatch(name) is not None


def encode_types(types: Iterable[str]) -> frozenset[bytes]:
    """Return the encoded types, for comparison with attributes.

    Raises:
        ValueError: A name is not a valid message type, or none is given.
    """
    names = list(types)
    for name in names:
        if not is_message_type(name):
            allowed = f"1..{TYPE_CHARS_MAX} letters, digits and underscores"
            raise ValueError(f"message type {name[:80]!r}: expected {allowed}")
    if not names:
        raise ValueError("no message type is named, at least one is needed")
    return frozenset(name.encode() for name in names)


def type_of(flag: int, body: bytes) -> bytes | None:
    """Return the attribute of a frame as bytes, ``None`` if it has none; of a RocketMQ message its tag.

    The first ``TYPE_BYTES_MAX`` bytes of the body are sufficient.
    """
    if not flag & FLAG_ATTRIBUTE or len(body) < _ATTRIBUTE_LENGTH.size:
        return None
    length = _ATTRIBUTE_LENGTH.unpack_from(body)[0]
    end = _ATTRIBUTE_LENGTH.size + length
    if flag & STORED_FORM == STORED_FORM:
        tag, separator, _ = body[_ATTRIBUTE_LENGTH.size : end].partition(SEPARATOR)
        if separator:
            return tag or None
    return body[_ATTRIBUTE_LENGTH.size : end] if length >= 0 and end <= len(body) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """Frames of the wanted types in a run: (offset, whole frame) each, and the offset after the last whole frame.

    ``fault`` describes the damage of the frame at ``next_offset``, if the selection ends there because of it.
    """

    next_offset: int
    kept: Sequence[tuple[int, bytes]]
    fault: str | None = None

    @property
    def frame_bytes(self) -> int:
        """Bytes of all kept frames together."""
        return sum(len(frame) for _, frame in self.kept)

    def encode(self) -> bytes:
        """Return the body of the reply."""
        parts = [_OFFSET.pack(self.next_offset)]
        for offset, frame in self.kept:
            parts += (_OFFSET.pack(offset), frame)
        return b"".join(parts)


def select(run: bytes, base_offset: int, types: Collection[bytes]) -> Selection:
    """Pick the frames whose type is one of ``types`` from a run that starts at ``base_offset``.

    The checksum of every whole frame is verified, even if the frame does not match: a damaged length would misplace all
    later frames. The selection ends at the first damaged frame, or at a cut tail.
    """
    kept: list[tuple[int, bytes]] = []
    next_offset = base_offset
    try:
        for frame in walk(run, base_offset):
            next_offset = frame.end
            if frame.flag & FLAG_ATTRIBUTE and type_of(frame.flag, frame.body) in types:
                kept.append((frame.offset, run[frame.offset - base_offset : next_offset - base_offset]))
    except CorruptFrame as damaged:
        return Selection(next_offset, kept, damaged.reason)
    return Selection(next_offset, kept)


def select_run(run: bytes, base_offset: int, types: Collection[bytes]) -> Selection:
    """Pick frames as ``select`` does, until a kept frame is followed by another one, or the other way round.

    So what is kept is contiguous from ``base_offset`` on, or nothing.
    """
    kept: list[tuple[int, bytes]] = []
    next_offset = base_offset
    try:
        for frame in walk(run, base_offset):
            is_wanted = type_of(frame.flag, frame.body) in types
            if next_offset > base_offset and is_wanted != bool(kept):
                break
            next_offset = frame.end
            if is_wanted:
                kept.append((frame.offset, run[frame.offset - base_offset : next_offset - base_offset]))
    except CorruptFrame as damaged:
        return Selection(next_offset, kept, damaged.reason)
    return Selection(next_offset, kept)


def encode_single_head(next_offset: int, offset: int) -> bytes:
    """Return the bytes in front of the frame at ``offset`` in a body with only this frame."""
    return _OFFSET.pack(next_offset) + _OFFSET.pack(offset)


def decode_filtered(body: bytes) -> tuple[int, list[Frame]]:
    """Return the next offset and the kept frames, each with its own offset, of a reply's body.

    Raises:
        ProtocolError: The body is malformed.
        CorruptFrame: A frame fails its checksum.
    """
    if len(body) < OFFSET_BYTES:
        raise ProtocolError(f"a filtered value of {len(body)} bytes", body)
    next_offset: int = _OFFSET.unpack_from(body)[0]
    frames: list[Frame] = []
    at = OFFSET_BYTES
    while at < len(body):
        frame_at = at + OFFSET_BYTES
        if frame_at + HEADER_BYTES > len(body):
            raise ProtocolError(f"a filtered value that is cut at byte {at}", body[at:])
        offset: int = _OFFSET.unpack_from(body, at)[0]
        size = frame_bytes(body, frame_at)
        end = frame_at + size
        if size < HEADER_BYTES or end > len(body):
            reason = f"a filtered value with a frame of {size - HEADER_BYTES} body bytes at byte {frame_at}"
            raise ProtocolError(reason, body[at:])
        frames += walk(body[frame_at:end], offset)
        at = end
    return next_offset, frames
