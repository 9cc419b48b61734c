"""The loops over a batched put, compiled by numba; imported by ``block_kernel`` once a broker has use for them.

They run without the interpreter's lock, and their code is kept as ``machine_code`` says.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def, var-annotated"
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import numba
import numpy as np

from metaq.formats.checksum import CHECKSUM_MASK
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import EPOCH_MS, IDS_PER_MS, SEQUENCE_BITS, TIME_SHIFT
from metaq_broker.log.engine.machine_code import call_crc32, compiled, number_at, put_number
from metaq_broker.log.segments.index import RECORD_BYTES

SEQUENCE_MASK = IDS_PER_MS - 1
ID_AT = 8
NOTHING = np.uint32(0)
"""The CRC-32 of no bytes."""


def _number(data, count, first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32):
    """Check and number ``count`` frames; return the number of marks, or -1 if anything at all is wrong."""
    # An address, not the array: each use of that in the loop would count a reference up and down.
    block, total = data.ctypes.data, data.size
    start, next_mark, made = 0, 0, 0
    for ordinal in range(count):
        body = start + HEADER_BYTES
        if body > total:
            return -1
        length = number_at(block + start, np.uint32)
        end = body + length
        if length > message_bytes_max or end > total:  # negative ones are the largest of all
            return -1
        if call_crc32(crc32, NOTHING, block + body, length) & CHECKSUM_MASK != number_at(block + start + 4, np.uint32):
            return -1
        if start >= next_mark:
            marks[made, 0], marks[made, 1] = start, ordinal
            made += 1
            next_mark = start + mark_bytes
        tick = first_tick + ordinal
        message_id = (tick >> SEQUENCE_BITS) << TIME_SHIFT | broker_bits | (tick & SEQUENCE_MASK)
        put_number(block + start + ID_AT, np.int64(message_id))
        start = end
    return made if start == total else -1


def _index(block, total, count, marks, state, interval_bytes, now_ms, records, crc32):
    """Make the index entries of a block (an address), whose frames have been checked; return how many.

    ``marks``: offset, ordinal, offset, ordinal, ... ``state``: an ``IndexPosition``, moved behind the block.
    """
    record = records.ctypes.data
    start, first_ordinal, time_ms, marked, span = state[0], state[1], state[2], state[3], np.uint32(state[4])
    done, made, due, offset = 0, 0, marked + interval_bytes - start, 0
    for number in range(marks.size // 2):
        offset = marks[2 * number]
        # Ids ascend, so nothing before the frame at a mark is later than that frame.
        time_ms = max(time_ms, _time_ms(number_at(block + offset + ID_AT, np.int64), now_ms))
        if offset >= due:
            span = call_crc32(crc32, span, block + done, offset - done)
            _put_record(record, start + offset, first_ordinal + marks[2 * number + 1], time_ms, span, crc32)
            record, made = record + RECORD_BYTES, made + 1
            done, marked, due, span = offset, start + offset, offset + interval_bytes, NOTHING
    while True:
        end = offset + HEADER_BYTES + number_at(block + offset, np.uint32)
        if end >= total:
            break
        offset = end
    time_ms = max(time_ms, _time_ms(number_at(block + offset + ID_AT, np.int64), now_ms))
    span = call_crc32(crc32, span, block + done, total - done)
    if total >= due:
        _put_record(record, start + total, first_ordinal + count, time_ms, span, crc32)
        made, marked, span = made + 1, start + total, NOTHING
    state[0], state[1], state[2], state[3], state[4] = start + total, first_ordinal + count, time_ms, marked, span
    return made


@numba.njit(inline="always")
def _time_ms(message_id, now_ms):
    return (message_id >> TIME_SHIFT) + EPOCH_MS if message_id >= 0 else now_ms


@numba.njit(inline="always")
def _put_record(record, offset, ordinal, time_ms, span, crc32):
    put_number(record, np.int64(offset))
    put_number(record + 8, np.int64(ordinal))
    put_number(record + 16, np.int64(time_ms))
    put_number(record + 24, np.uint32(span))
    put_number(record + 28, call_crc32(crc32, NOTHING, record, RECORD_BYTES - 4))


number = compiled(_number, "int64(uint8[::1], int64, int64, int64, int64, int64, int64[:, ::1], int64)")
index = compiled(_index, "int64(int64, int64, int64, int64[::1], int64[::1], int64, int64, uint8[::1], int64)")
