"""The loop that makes the index entries of a block, compiled by numba; imported by ``block_entries`` on first use.

It runs without the interpreter's lock.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def" numba compiles these functions and has no type
# stubs.

from __future__ import annotations

import numba
import numpy as np

from metaq.compiled.addresses import big_endian, call_crc32, compiled, put_big_endian
from metaq.formats.frames import ID_AT
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT

NOTHING = np.uint32(0)
"""The CRC-32 of no bytes."""
RECORD_BYTES = 32


@numba.njit(inline="always")
def _time_ms(message_id, now_ms):
    return (message_id >> TIME_SHIFT) + EPOCH_MS if message_id >= 0 else now_ms


@numba.njit(inline="always")
def _put_record(record, offset, ordinal, time_ms, span, crc32):
    put_big_endian(record, np.int64(offset))
    put_big_endian(record + 8, np.int64(ordinal))
    put_big_endian(record + 16, np.int64(time_ms))
    put_big_endian(record + 24, np.uint32(span))
    put_big_endian(record + 28, call_crc32(crc32, NOTHING, record, RECORD_BYTES - 4))


def _entries(block, ends, state, interval_bytes, block_interval_bytes, now_ms, records, crc32):
    """Make the index entries of a block (an address) whose frames end at ``ends``; return their number.

    ``state``: an ``IndexPosition``, which is moved behind the block.
    """
    record = records.ctypes.data
    start, ordinal, time_ms, marked, span = state[0], state[1], state[2], state[3], np.uint32(state[4])
    done, made, due, frame = 0, 0, marked + interval_bytes - start, 0
    for number in range(ends.size):
        end = ends[number]
        if end >= due:
            # Ids ascend, so no earlier message is later.
            time_ms = max(time_ms, _time_ms(big_endian(block + frame + ID_AT, np.int64), now_ms))
            span = call_crc32(crc32, span, block + done, end - done)
            _put_record(record, start + end, ordinal + number + 1, time_ms, span, crc32)
            record, made = record + RECORD_BYTES, made + 1
            done, marked, due, span = end, start + end, end + block_interval_bytes, NOTHING
        if number + 1 < ends.size:
            frame = end
    total = ends[ends.size - 1]
    time_ms = max(time_ms, _time_ms(big_endian(block + frame + ID_AT, np.int64), now_ms))
    span = call_crc32(crc32, span, block + done, total - done)
    if start + total - marked >= interval_bytes:
        _put_record(record, start + total, ordinal + ends.size, time_ms, span, crc32)
        made, marked, span = made + 1, start + total, NOTHING
    state[0], state[1], state[2], state[3], state[4] = start + total, ordinal + ends.size, time_ms, marked, span
    return made


entries = compiled(_entries, "int64(int64, int64[::1], int64[::1], int64, int64, int64, uint8[::1], int64)")
