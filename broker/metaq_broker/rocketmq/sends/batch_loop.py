"""The loop that makes frames of the elements of a batch, compiled by numba; imported by ``batch_frames`` once a broker
needs it.

It runs without the interpreter's lock, and its code is kept as ``addresses`` says.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

import numba
import numpy as np

from metaq.compiled.addresses import big_endian, byte_at, call_crc32, compiled, copy, put_big_endian, store
from metaq.formats.checksum import CHECKSUM_MASK
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES
from metaq.formats.rocketmq.properties import BYTES_MAX
from metaq.formats.stored_form import STORED_FORM

IS_UNUSUAL = -1
"""In place of the number of frames: the batch is for the plain code."""

NOTHING = np.uint32(0)
BODY_AT = OVERHEAD_BYTES - 2
LENGTH_BYTES = 4
NAME_END, PAIR_END = 1, 2
NAME_BYTES = 5
T, A, G, S = ord("T"), ord("A"), ord("G"), ord("S")


@numba.njit(inline="always")
def _is_tags(at):
    """Return whether the name TAGS and its separator are at ``at``."""
    return (
        byte_at(at) == T
        and byte_at(at + 1) == A
        and byte_at(at + 2) == G
        and byte_at(at + 3) == S
        and byte_at(at + 4) == NAME_END
    )


@numba.njit(inline="always")
def _tag(properties, size):
    """Return where the last tag in a text of properties begins, and its length: 0 without one, -1: for plain code."""
    at = size - NAME_BYTES
    while at >= 0:
        if _is_tags(properties + at):
            first = at + NAME_BYTES
            end = first
            while end < size and byte_at(properties + end) != PAIR_END:
                end += 1
            if end == first or (at > 0 and byte_at(properties + at - 1) != PAIR_END):
                return first, -1
            return first, end - first
        at -= 1
    return 0, 0


def _frames(batch, at, wanted_flag, head, common, out, ends, crc32):
    """Make frames of the elements from ``at`` on until ``out`` or ``ends`` is full.

    Return where the next element begins, and how many frames were made. ``ends``: where each ends in ``out``.
    """
    source, total, target, space = batch.ctypes.data, batch.size, out.ctypes.data, out.size
    head_at, head_bytes, common_at, common_bytes = head.ctypes.data, head.size, common.ctypes.data, common.size
    made, used = 0, 0
    while at < total and made < ends.size:
        if total - at < OVERHEAD_BYTES:
            return at, IS_UNUSUAL
        size = np.int64(big_endian(source + at, np.int32))
        body_bytes = np.int64(big_endian(source + at + 16, np.int32))
        properties_at = at + OVERHEAD_BYTES + body_bytes
        if body_bytes < 0 or at + size > total or properties_at > at + size:
            return at, IS_UNUSUAL
        own_bytes = np.int64(big_endian(source + properties_at - 2, np.uint16))
        if properties_at + own_bytes > at + size or big_endian(source + at + 12, np.int32) != wanted_flag:
            return at, IS_UNUSUAL
        has_end = own_bytes == 0 or byte_at(source + properties_at + own_bytes - 1) == PAIR_END
        properties_bytes = own_bytes + (0 if has_end else 1) + common_bytes
        longest = HEADER_BYTES + LENGTH_BYTES + properties_bytes * 3 + head_bytes + body_bytes
        if properties_bytes > BYTES_MAX or longest > space:
            return at, IS_UNUSUAL
        if used + longest > space:
            break
        # Copy the properties to their place without a tag; if a tag is found in them, move them after it.
        frame = target + used
        content = frame + HEADER_BYTES
        properties = content + LENGTH_BYTES + head_bytes
        copy(properties, source + properties_at, own_bytes)
        if not has_end:
            store(properties + own_bytes, np.uint8(PAIR_END))
        copy(properties + properties_bytes - common_bytes, common_at, common_bytes)
        tag_at, tag_bytes = _tag(properties, properties_bytes)
        if tag_bytes < 0:
            return at, IS_UNUSUAL
        attribute_bytes = tag_bytes + head_bytes + properties_bytes
        if tag_bytes:
            behind = content + LENGTH_BYTES + attribute_bytes
            copy(behind, properties, properties_bytes)  # ``longest`` counts them once more for this
            copy(content + LENGTH_BYTES, behind + tag_at, tag_bytes)
            copy(properties + tag_bytes, behind, properties_bytes)
        copy(content + LENGTH_BYTES + tag_bytes, head_at, head_bytes)
        copy(content + LENGTH_BYTES + attribute_bytes, source + at + BODY_AT, body_bytes)
        length = LENGTH_BYTES + attribute_bytes + body_bytes
        put_big_endian(content, np.int32(attribute_bytes))
        put_big_endian(frame, np.int32(length))
        put_big_endian(frame + 4, np.uint32(call_crc32(crc32, NOTHING, content, length) & CHECKSUM_MASK))
        put_big_endian(frame + 8, np.int64(0))
        put_big_endian(frame + 16, np.int32(STORED_FORM))
        used += HEADER_BYTES + length
        ends[made] = used
        at, made = at + size, made + 1
    return at, made


frames = compiled(
    _frames,
    "Tuple((int64, int64))(Array(uint8, 1, 'C', readonly=True), int64, int64, Array(uint8, 1, 'C', readonly=True), "
    "Array(uint8, 1, 'C', readonly=True), uint8[::1], int64[::1], int64)",
)
