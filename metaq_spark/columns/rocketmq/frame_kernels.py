"""The compiled loop from frames of the bundled broker directly to the columns of RocketMQ's records.

``metaq.formats.stored_records`` defines the record of a frame; ``record_kernels`` defines the columns. The fields in
the attribute of a stored RocketMQ message are decoded only if a column needs them, or the flags say that the body is
compressed.

Rare cases end the loop with ``UNUSUAL``: a wrong checksum or length, batches in a body, tags and properties that no
record can hold.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, var-annotated"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from metaq.compiled.addresses import (
    big_endian,
    compiled,
    copy,
    crc32,
    int32_at,
    load,
    put_big_endian,
    store,
)
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.formats.stored_records import TAG_BYTES_MAX
from metaq_spark.columns.rocketmq.record_kernels import (
    BODY_AT,
    BODY_BYTES,
    BODY_COMPRESSED,
    BORN_HOST_V6,
    CHECKSUM_MASK,
    COMPRESSED,
    DONE,
    END,
    FIXED_COLUMNS,
    FULL,
    INFLATED_AT,
    INFLATED_BYTES,
    NEEDED,
    NEXT,
    PARSED_AT,
    POSITION,
    PROPERTIES_MAX,
    RECORD_OFFSET,
    ROW,
    STORE_HOST_V6,
    SYS_FLAG,
    UNREADABLE,
    UNUSUAL,
    VALUE_AT,
    VALUE_BYTES,
    VALUE_ENDS_AT,
    has_space,
    put_end,
    put_fixed,
    put_properties,
)

_NO_DIGIT: Final = 64
_IPV4, _IPV6 = ord("4"), ord("6")
_IPV4_DIGITS: Final = 48
_IPV6_DIGITS: Final = 64
_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
_SEPARATOR: Final = 2

_FIELDS_AT: Final = 256
_TAG_AT: Final = 512
SCRATCH_BYTES: Final = _TAG_AT + 5 + TAG_BYTES_MAX
"""Memory of a loop: the front of a record, from ``_FIELDS_AT`` on decoded fields, from ``_TAG_AT`` on properties."""

_TAGS: Final = np.int32(int.from_bytes(b"TAGS"))


def _digits() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the six bits of each byte as a base64 digit, ``_NO_DIGIT`` for other bytes."""
    table = np.full(256, _NO_DIGIT, dtype=np.uint8)
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    table[list(alphabet)] = np.arange(64, dtype=np.uint8)
    return table


DIGITS: Final = _digits()


@numba.njit(inline="always")
def _six(at, digits_at):
    return load(digits_at + np.int64(load(at, np.uint8)), np.uint8)


@numba.njit
def _decode_fields(at, digits, to, digits_at):
    """Decode base64 digits; return whether all of them are valid."""
    seen = np.uint8(0)
    for _ in range(digits // 4):
        first, second = _six(at, digits_at), _six(at + 1, digits_at)
        third, last = _six(at + 2, digits_at), _six(at + 3, digits_at)
        seen |= first | second | third | last
        word = np.int64(first) << 18 | np.int64(second) << 12 | np.int64(third) << 6 | np.int64(last)
        store(to, np.uint8(word >> 16))
        store(to + 1, np.uint8(word >> 8 & 255))
        store(to + 2, np.uint8(word & 255))
        at += 4
        to += 3
    return not seen & np.uint8(_NO_DIGIT)


@numba.njit(inline="always")
def _flags_at(head, digits_at):
    """The lower 16 bits of the sys flag in the digits at an address."""
    low, middle = np.int64(_six(head + 8, digits_at)), np.int64(_six(head + 9, digits_at))
    return (low << 10 | middle << 4 | np.int64(_six(head + 10, digits_at)) >> 2) & 0xFFFF


@numba.njit
def _put_front(record, fields, is_stored, is_v6, sys_flag, stored_ms, physical, host, host_bytes):
    """Write a record up to the end of its hosts, without the queue's constant fields; return the position.

    ``fields`` are the decoded ones; a message that is not ``is_stored`` has none.
    """
    born_bytes = 20 if is_v6 else 8
    put_big_endian(record + 28, physical)
    if is_stored:
        copy(record + 16, fields, 4)
        copy(record + 36, fields + 4, 12 + born_bytes)
    else:
        put_big_endian(record + 16, np.int32(0))
        put_big_endian(record + 36, np.int32(0))
        put_big_endian(record + 40, stored_ms)
        put_big_endian(record + 48, np.int64(0))
    at = record + 48 + born_bytes
    put_big_endian(at, stored_ms)
    copy(at + 8, host, host_bytes)
    behind = at + 8 + host_bytes
    if is_stored:
        copy(behind, fields + 16 + born_bytes, 4)
    else:
        put_big_endian(behind, np.int32(0))
    return behind


@numba.njit(inline="always")
def _look_at(frame, length, record, digits_at, with_fields, with_properties):
    """Examine the frame at an address: return the bytes before the payload, whether a RocketMQ client sent it and from
    an IPv6 address, the lower half of its sys flag, and position and length of its properties.

    Fields are decoded, and properties created, if needed. A record cannot have a length above ``PROPERTIES_MAX``.
    """
    body, flags, skipped, tag = frame + HEADER_BYTES, load(frame + 19, np.uint8), np.int64(0), np.int64(0)
    attribute, attribute_bytes = body + 4, int32_at(body) if flags & np.uint8(1) and length >= 4 else np.int64(-1)
    is_stored, is_v6, sys_flag, properties, properties_bytes = False, False, np.int64(0), attribute, np.int64(0)
    if 0 <= attribute_bytes <= length - 4:
        skipped = 4 + attribute_bytes
        while tag < attribute_bytes and load(attribute + tag, np.uint8) != _SEPARATOR:
            tag += 1
    if flags & np.uint8(3) == np.uint8(3) and tag + 1 < attribute_bytes and skipped:
        kind, head = load(attribute + tag + 1, np.uint8), attribute + tag + 2
        digits = np.int64(_IPV4_DIGITS if kind == _IPV4 else _IPV6_DIGITS)
        if kind in (_IPV4, _IPV6) and tag + 2 + digits <= attribute_bytes:
            sys_flag, is_stored, is_v6 = _flags_at(head, digits_at), True, kind == _IPV6
            if with_fields or with_properties or sys_flag & (COMPRESSED | UNREADABLE):
                is_stored = _decode_fields(head, digits, record + _FIELDS_AT, digits_at)
                if sys_flag & _HOSTS != (BORN_HOST_V6 if is_v6 else 0):
                    is_stored = False
            properties, properties_bytes = head + digits, attribute_bytes - tag - 2 - digits
    if not is_stored:
        is_v6, sys_flag, properties_bytes = False, np.int64(0), np.int64(0)
        if tag and with_properties:
            properties, properties_bytes = record + _TAG_AT, 5 + tag if tag <= TAG_BYTES_MAX else PROPERTIES_MAX + tag
            put_big_endian(properties, _TAGS)
            store(properties + 4, np.uint8(1))
            copy(properties + 5, attribute, min(tag, TAG_BYTES_MAX))
    return skipped, is_stored, is_v6, sys_flag, properties, properties_bytes


@compiled
def decode_frames(
    run, crc_address, tables, digits, table, state, physical_offset, known_ms, store_host, scratch
):  # fmt: skip
    """Append the frames of ``run`` from ``state[POSITION]`` on to the columns of ``table``, up to offset
    ``state[END]``.

    The first byte of ``run`` is at ``physical_offset``; ``known_ms`` is the store time for ids without one.
    """
    run_at, tables_at, digits_at, record = run.ctypes.data, tables.ctypes.data, digits.ctypes.data, scratch.ctypes.data
    host_at, host_bytes, fields = store_host.ctypes.data, np.int64(len(store_host)), record + _FIELDS_AT
    with_fields = False
    for place in range(FIXED_COLUMNS[0], FIXED_COLUMNS[1]):
        with_fields |= table[place] != 0
    while state[POSITION] < len(run) and state[NEXT] < state[END]:
        position = state[POSITION]
        frame, left = run_at + position, len(run) - position
        length = int32_at(frame) if left >= HEADER_BYTES else np.int64(-1)
        body = frame + HEADER_BYTES
        if length < 0 or HEADER_BYTES + length > left:
            return UNUSUAL
        if crc32(body, length, crc_address, tables_at) & CHECKSUM_MASK != np.uint32(int32_at(frame + 4)):
            return UNUSUAL
        skipped, is_stored, is_v6, sys_flag, properties, properties_bytes = _look_at(
            frame, length, record, digits_at, with_fields, table[PARSED_AT] != 0
        )
        if properties_bytes > PROPERTIES_MAX or sys_flag & UNREADABLE:
            return UNUSUAL
        value, value_bytes = body + skipped, length - skipped
        if sys_flag & COMPRESSED and table[VALUE_AT]:
            if not state[INFLATED_AT]:
                state[BODY_AT], state[BODY_BYTES], state[SYS_FLAG] = value - run_at, value_bytes, sys_flag
                return BODY_COMPRESSED
            value, value_bytes = state[INFLATED_AT], state[INFLATED_BYTES]
        if not has_space(table, state, value_bytes, properties_bytes):
            state[NEEDED] = value_bytes
            return FULL
        row = state[ROW]
        if table[VALUE_AT]:
            copy(table[VALUE_AT] + state[VALUE_BYTES], value, value_bytes)
            state[VALUE_BYTES] += value_bytes
            put_end(table[VALUE_ENDS_AT], row, state[VALUE_BYTES])
        state[INFLATED_AT] = 0
        state[RECORD_OFFSET] = state[NEXT]
        behind = record + 56
        if with_fields:
            message_id = big_endian(frame + 8, np.int64)
            stored_ms = (message_id >> TIME_SHIFT) + EPOCH_MS if message_id >= 0 else known_ms
            behind = _put_front(
                record, fields, is_stored, is_v6, sys_flag, stored_ms, physical_offset + position, host_at, host_bytes
            )
        put_fixed(record, behind, table, state, row)
        if table[PARSED_AT]:
            put_properties(table, state, row, properties, properties_bytes)
        state[ROW], state[NEXT] = row + 1, state[NEXT] + 1
        state[POSITION] = position + HEADER_BYTES + length
    return DONE


@compiled
def measure_frames(run, frames_max):
    """Return the number of whole frames, up to ``frames_max``, at the front of ``run``, and their bytes."""
    run_at, at, count = run.ctypes.data, np.int64(0), np.int64(0)
    while count < frames_max and at + HEADER_BYTES <= len(run):
        length = int32_at(run_at + at)
        if length < 0 or at + HEADER_BYTES + length > len(run):
            break
        at += HEADER_BYTES + length
        count += 1
    return count, at
