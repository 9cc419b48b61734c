"""The loop that makes records of frames, compiled by numba; imported by ``compiled_records`` once a broker needs it.

It runs without the interpreter's lock, and its code is kept as ``addresses`` says.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

import numba
import numpy as np

from metaq.compiled.addresses import (
    big_endian,
    byte_at,
    call_crc32,
    compiled,
    copy,
    put_big_endian,
    store,
)
from metaq.formats.checksum import CHECKSUM_MASK
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.formats.rocketmq.properties import BYTES_MAX
from metaq.formats.rocketmq.sys_flags import BORN_HOST_IPV6, STORE_HOST_IPV6
from metaq.formats.stored_form import HEAD_BYTES_MIN, STORED_FORM

RUN_ENDS, IS_FULL, IS_UNUSUAL = 0, 1, 2
"""Why the loop ended: no whole frame, or no space; enough records; a frame that is for the plain code."""

RECORD_FRONT_BYTES = 88
HOST_BYTES = 8
NOTHING = np.uint32(0)
SEPARATOR, KIND_IPV4, NO_DIGIT = 2, ord("4"), 255
HOSTS = BORN_HOST_IPV6 | STORE_HOST_IPV6

DIGITS = np.full(256, NO_DIGIT, np.uint8)
for _value, _digit in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    DIGITS[_digit] = _value


@numba.njit(inline="always")
def _decode_fields(source, target):
    """Decode 48 base64 digits into 36 bytes; return whether all are digits."""
    for _ in range(12):
        first, second = DIGITS[byte_at(source)], DIGITS[byte_at(source + 1)]
        third, fourth = DIGITS[byte_at(source + 2)], DIGITS[byte_at(source + 3)]
        if first == NO_DIGIT or second == NO_DIGIT or third == NO_DIGIT or fourth == NO_DIGIT:
            return False
        store(target, np.uint8(first << 2 | second >> 4))
        store(target + 1, np.uint8((second & 15) << 4 | third >> 2))
        store(target + 2, np.uint8((third & 3) << 6 | fourth))
        source, target = source + 4, target + 3
    return True


@numba.njit(inline="always")
def _put_places(record, fields, ordinal, physical_offset, store_ms, host):
    """Write the fields between the queue and the length of the body."""
    copy(record + 16, fields, 4)
    put_big_endian(record + 20, np.int64(ordinal))
    put_big_endian(record + 28, np.int64(physical_offset))
    copy(record + 36, fields + 4, 20)
    put_big_endian(record + 56, np.int64(store_ms))
    copy(record + 64, host, HOST_BYTES)
    copy(record + 72, fields + 24, 12)


def _records(
    run, offset, ordinal, physical_base, known_ms, magic, queue_id, ends, out, made_before, bytes_before, limits
):
    """Make records of the frames of ``run`` into ``out``; return (bytes passed, records made, their bytes, why it
    ended).

    ``ends``: the broker's address, and after it what a record has for its topic. ``limits``: records to make, bytes
    of records with ``bytes_before``, address of the CRC-32.
    """
    source, total, target, space = run.ctypes.data, run.size, out.ctypes.data, out.size
    host, topic, topic_bytes = ends.ctypes.data, ends.ctypes.data + HOST_BYTES, ends.size - HOST_BYTES
    count_max, bytes_max, crc32 = limits[0], limits[1], limits[2]
    at, made, used = 0, 0, 0
    while made < count_max:
        body = at + HEADER_BYTES
        if body > total:
            return at, made, used, RUN_ENDS
        length = np.int64(big_endian(source + at, np.int32))
        end = body + length
        if end > total:
            return at, made, used, RUN_ENDS
        flag = big_endian(source + at + 16, np.int32)
        if length < 4 or flag & STORED_FORM != STORED_FORM:
            return at, made, used, IS_UNUSUAL
        checksum = call_crc32(crc32, NOTHING, source + body, length) & CHECKSUM_MASK
        payload = body + 4 + np.int64(big_endian(source + body, np.int32))
        if checksum != big_endian(source + at + 4, np.uint32) or payload < body + 4 or payload > end:
            return at, made, used, IS_UNUSUAL
        tag_end = body + 4
        while tag_end < payload and byte_at(source + tag_end) != SEPARATOR:
            tag_end += 1
        properties = tag_end + HEAD_BYTES_MIN
        properties_bytes, body_bytes = payload - properties, end - payload
        if properties_bytes < 0 or properties_bytes > BYTES_MAX or byte_at(source + tag_end + 1) != KIND_IPV4:
            return at, made, used, IS_UNUSUAL
        size = RECORD_FRONT_BYTES + body_bytes + topic_bytes + 2 + properties_bytes
        if made_before + made > 0 and bytes_before + used + size > bytes_max:
            return at, made, used, IS_FULL
        record = target + used
        fields = record + RECORD_FRONT_BYTES
        if used + size + RECORD_FRONT_BYTES > space:
            return at, made, used, RUN_ENDS if made else IS_UNUSUAL
        if not _decode_fields(source + tag_end + 2, fields) or byte_at(fields + 7) & HOSTS:
            return at, made, used, IS_UNUSUAL
        message_id = big_endian(source + at + 8, np.int64)
        store_ms = (message_id >> TIME_SHIFT) + EPOCH_MS if message_id >= 0 else known_ms
        put_big_endian(record, np.int32(size))
        put_big_endian(record + 4, np.uint32(magic))
        put_big_endian(record + 8, np.uint32(call_crc32(crc32, NOTHING, source + payload, body_bytes) & CHECKSUM_MASK))
        put_big_endian(record + 12, np.int32(queue_id))
        _put_places(record, fields, ordinal + made, physical_base + offset + at, store_ms, host)
        put_big_endian(record + 84, np.int32(body_bytes))
        behind = record + RECORD_FRONT_BYTES
        copy(behind, source + payload, body_bytes)
        copy(behind + body_bytes, topic, topic_bytes)
        behind += body_bytes + topic_bytes
        put_big_endian(behind, np.uint16(properties_bytes))
        copy(behind + 2, source + properties, properties_bytes)
        at, made, used = end, made + 1, used + size
    return at, made, used, IS_FULL


records = compiled(
    _records,
    "Tuple((int64, int64, int64, int64))(Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64, int64, "
    "int64, uint8[::1], uint8[::1], int64, int64, int64[::1])",
)
