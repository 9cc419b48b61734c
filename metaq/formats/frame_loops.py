"""The compiled passes over frame blocks; imported by ``frame_block`` once a process has use for them.

They run without the interpreter's lock.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def, var-annotated"
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import numpy as np

from metaq.compiled.addresses import big_endian, call_crc32, compiled, put_big_endian
from metaq.formats.checksum import CHECKSUM_MASK
from metaq.formats.frames import HEADER_BYTES, ID_AT
from metaq.formats.message_id import IDS_PER_MS, SEQUENCE_BITS, TIME_SHIFT

SEQUENCE_MASK = IDS_PER_MS - 1
NOTHING = np.uint32(0)
"""The CRC-32 of no bytes."""


def _number(block, total, first_tick, broker_bits, body_bytes_max, ends, crc32):
    """Check and number ``ends.size`` frames at an address and note where each ends; whether all of them are right."""
    start = 0
    for number in range(ends.size):
        body = start + HEADER_BYTES
        if body > total:
            return False
        length = big_endian(block + start, np.uint32)
        end = body + length
        if length > body_bytes_max or end > total:  # negative ones are the largest of all
            return False
        if call_crc32(crc32, NOTHING, block + body, length) & CHECKSUM_MASK != big_endian(block + start + 4, np.uint32):
            return False
        tick = first_tick + number
        message_id = (tick >> SEQUENCE_BITS) << TIME_SHIFT | broker_bits | (tick & SEQUENCE_MASK)
        put_big_endian(block + start + ID_AT, np.int64(message_id))
        ends[number] = start = end
    return start == total


def _check(run, total, ends, crc32):
    """Note where the whole frames at an address end; return how many there are, -1 if one is damaged or was never
    written, and whether their ids ascend from 0 or above.
    """
    start, count, latest, ascend = np.int64(0), 0, np.int64(0), 1
    while start + HEADER_BYTES <= total:
        length = np.int64(big_endian(run + start, np.int32))
        body = start + HEADER_BYTES
        message_id = big_endian(run + start + ID_AT, np.int64)
        if length < 0 or (length == 0 and message_id == 0):
            return -1, 0
        if body + length > total:
            break
        if call_crc32(crc32, NOTHING, run + body, length) & CHECKSUM_MASK != big_endian(run + start + 4, np.uint32):
            return -1, 0
        if message_id < latest:
            ascend = 0
        latest = message_id
        ends[count] = start = body + length
        count += 1
    return count, ascend


def _ends_of(block, total, ends):
    """Note where each of the whole frames at an address ends; return how many there are."""
    at, count = np.int64(0), 0
    while at < total:
        at += HEADER_BYTES + np.int64(big_endian(block + at, np.int32))
        ends[count] = at
        count += 1
    return count


number = compiled(_number, "boolean(int64, int64, int64, int64, int64, int64[::1], int64)")
check = compiled(_check, "UniTuple(int64, 2)(int64, int64, int64[::1], int64)")
ends_of = compiled(_ends_of, "int64(int64, int64, int64[::1])")
