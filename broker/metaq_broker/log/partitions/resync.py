"""Finds where messages continue after a damaged frame. The rules are at the top of ``recovery``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import HEADER_BYTES, ID_AT, FrameHeader, frame_bytes
from metaq.formats.message_id import IDS_PER_MS
from metaq.model import BROKER_ID_MAX
from metaq_broker.log.segments.segment_view import SegmentView

_CHUNK_BYTES: Final = 1 << 16


class Anchor(NamedTuple):
    """A known frame boundary after the damage, and the number of messages between the damage and it."""

    offset: int
    messages: int


def next_boundary(view: SegmentView, offset: int, reference_id: int | None, anchor: Anchor | None) -> int | None:
    """Return the start of the first frame after the damaged one at ``offset``; ``None`` if none follows.

    ``reference_id`` is the id of an intact message of the same segment. With an anchor, the result is at most the
    anchor.
    """
    header = view.header(offset)
    if header is None:
        return anchor.offset if anchor else None
    limit = anchor.offset if anchor else view.end
    own_end = offset + header.frame_bytes
    plausible = _plausible(header, reference_id)
    if header.length >= 0 and own_end <= limit and any(header) and _leads_on(view, own_end, anchor):
        return own_end
    if (end := _end_by_checksum(view, offset, header, limit, anchor)) is not None:
        return end
    if plausible and own_end > view.end and anchor is None:
        return None
    # An anchor's count excludes frames inside a payload; without one, a plausible length is trusted.
    search_from = own_end if plausible and own_end <= limit and anchor is None else offset + 1
    return _search(view, search_from, limit, reference_id, anchor)


def _plausible(header: FrameHeader, reference_id: int | None) -> bool:
    if header.length < 0 or header.checksum < 0 or not any(header):
        return False
    return reference_id is None or _origin(header.message_id) == _origin(reference_id)


def _origin(message_id: int) -> tuple[bool, int]:
    return message_id < 0, message_id // IDS_PER_MS & BROKER_ID_MAX


def _leads_on(view: SegmentView, offset: int, anchor: Anchor | None, *, exactly: bool = False) -> bool:
    """Return whether valid frames continue at ``offset``: up to the anchor with a valid count, or else one with a body.

    ``exactly`` requires that they reach the anchor; otherwise more damage on the way is accepted.
    """
    if anchor is not None and offset == anchor.offset:
        return True
    count, end, has_body = 0, offset, False
    for count, frame in enumerate(view.frames(offset), 1):
        end, has_body = frame.end, has_body or frame.has_body
        if anchor is None:
            if has_body:
                return True
        elif end >= anchor.offset:
            return end == anchor.offset and count < anchor.messages
    if anchor is None:
        return count > 0 and end == view.end
    return has_body and count < anchor.messages and not exactly


def _end_by_checksum(
    view: SegmentView, offset: int, header: FrameHeader, limit: int, anchor: Anchor | None
) -> int | None:
    """Return the end of the body that matches the header's checksum, if only the length is damaged."""
    if header.checksum < 0:
        return None
    done = offset + HEADER_BYTES
    crc = 0
    for end in _candidates(view, done, limit, None, with_limit=anchor is not None):
        crc = _crc_on(view, done, end, crc)
        done = end
        if crc & CHECKSUM_MASK == header.checksum and _leads_on(view, end, anchor):
            return end
    return None


def _crc_on(view: SegmentView, start: int, end: int, crc: int) -> int:
    for at in range(start, end, _CHUNK_BYTES):
        crc = crc32(view.read(at, min(_CHUNK_BYTES, end - at)), crc)
    return crc


def _search(view: SegmentView, start: int, limit: int, reference_id: int | None, anchor: Anchor | None) -> int | None:
    # First search frames of the same broker; the tail may have been written under another broker id.
    for reference in dict.fromkeys((reference_id, None)):
        for offset in _candidates(view, start, limit, reference):
            if _leads_on(view, offset, anchor, exactly=True):
                return offset
    return anchor.offset if anchor else None


def _candidates(
    view: SegmentView, start: int, limit: int, reference_id: int | None, *, with_limit: bool = False
) -> Iterator[int]:
    """Yield offsets in ``[start, limit)`` of possible headers; then the limit itself if requested."""
    pattern = _header_pattern(None if reference_id is None else _origin(reference_id))
    for at in range(start, limit, _CHUNK_BYTES):
        chunk = view.read(at, min(_CHUNK_BYTES + HEADER_BYTES - 1, view.end - at))
        for match in pattern.finditer(chunk):
            if at + match.start() < limit and match.start() < _CHUNK_BYTES:
                yield at + match.start()
    if with_limit:
        yield limit


@lru_cache(maxsize=64)
def _header_pattern(origin: tuple[bool, int] | None) -> re.Pattern[bytes]:
    """Return a pattern for headers: length and checksum not negative, not all zero, the id of the given origin."""
    if origin is None:
        id_and_flag = b".{12}"
    else:
        negative, broker_id = origin
        sign = b"[\x80-\xff]" if negative else b"[\\x00-\x7f]"
        # The broker id is bits 12..21 of the id: the low six bits of its sixth byte, the high four of its seventh.
        sixth = _one_of(high << 6 | broker_id >> 4 for high in range(4))
        seventh = _one_of((broker_id & 15) << 4 | low for low in range(16))
        id_and_flag = sign + b".{4}" + sixth + seventh + b".{5}"
    return re.compile(rb"(?s)(?=(?!\x00{20})[\x00-\x7f].{3}[\x00-\x7f].{3}" + id_and_flag + rb")")


def _one_of(values: Iterator[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % value for value in values) + b"]"


def flipped_header(span: bytes, expected: int) -> tuple[int, int] | None:
    """Return the frame of a span in which one flipped bit of id or flag explains the span's checksum.

    ``span`` is whole frames with intact bodies. The result is (start, end) in it; ``None`` if no single bit explains
    it.
    """
    data, start = bytearray(span), 0
    while start < len(data):
        end = start + frame_bytes(data, start)
        for at in range(start + ID_AT, start + HEADER_BYTES):  # the id and the flag
            for bit in range(8):
                data[at] ^= 1 << bit
                found = crc32(data) == expected
                data[at] ^= 1 << bit
                if found:
                    return start, end
        start = end
    return None
