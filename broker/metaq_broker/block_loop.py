"""The loops over a batched put, compiled by numba; imported by ``block_kernel`` once a broker has use for them.

The machine code is cached on disk, so it is made once for each installation: a second of work the first time, a few
hundredths in every later process. It runs without the interpreter's lock.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import sys
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.checksum import CHECKSUM_MASK
from metaq.code_cache import private_folder
from metaq.message_id import EPOCH_MS, IDS_PER_MS, SEQUENCE_BITS, TIME_SHIFT
from metaq.wire.text.frames import HEADER_BYTES
from metaq_broker.log.index_entries import RECORD_BYTES

SEQUENCE_MASK = IDS_PER_MS - 1
ID_AT = 8
NOTHING = np.uint32(0)
"""The CRC-32 of no bytes."""


@intrinsic
def _call_crc32(typingctx: Any, function: Any, before: Any, source: Any, length: Any) -> Any:
    """Call ``uint32 f(uint32, void *, uint64)`` at an address. Passed as a number, so that the code stays cacheable."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        source_at = builder.inttoptr(arguments[2], cgutils.voidptr_t)
        return builder.call(target, [arguments[1], source_at, arguments[3]])

    return types.uint32(types.int64, types.uint32, types.int64, types.int64), build


@intrinsic
def _at(typingctx: Any, address: Any, kind: Any) -> Any:
    """The big-endian integer of type ``kind`` at an address, aligned or not."""
    bits = kind.dtype.bitwidth

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], cgutils.ir.IntType(bits).as_pointer()))
        loaded.align = 1
        return builder.bswap(loaded) if sys.byteorder == "little" else loaded

    return kind.dtype(types.int64, kind), build


@intrinsic
def _put(typingctx: Any, address: Any, number: Any) -> Any:
    """Store ``number``, as wide as its type is, big-endian, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.bswap(arguments[1]) if sys.byteorder == "little" else arguments[1]
        builder.store(value, builder.inttoptr(arguments[0], value.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), build


def _number(data, count, first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32):
    """Check and number ``count`` frames; return the number of marks, or -1 if anything at all is wrong."""
    # An address, not the array: each use of that in the loop would count a reference up and down.
    block, total = data.ctypes.data, data.size
    start, next_mark, made = 0, 0, 0
    for ordinal in range(count):
        body = start + HEADER_BYTES
        if body > total:
            return -1
        length = _at(block + start, np.uint32)
        end = body + length
        if length > message_bytes_max or end > total:  # negative ones are the largest of all
            return -1
        if _call_crc32(crc32, NOTHING, block + body, length) & CHECKSUM_MASK != _at(block + start + 4, np.uint32):
            return -1
        if start >= next_mark:
            marks[made, 0], marks[made, 1] = start, ordinal
            made += 1
            next_mark = start + mark_bytes
        tick = first_tick + ordinal
        message_id = (tick >> SEQUENCE_BITS) << TIME_SHIFT | broker_bits | (tick & SEQUENCE_MASK)
        _put(block + start + ID_AT, np.int64(message_id))
        start = end
    return made if start == total else -1


def _index(block, total, count, marks, state, interval_bytes, now_ms, records, crc32):
    """Make the index entries of a block (an address), whose frames have been checked; return how many.

    ``marks``: offset, ordinal, offset, ordinal, ... ``state``: an ``IndexPlace``, which becomes that behind the block.
    """
    record = records.ctypes.data
    start, first_ordinal, time_ms, marked, span = state[0], state[1], state[2], state[3], np.uint32(state[4])
    done, made, due, offset = 0, 0, marked + interval_bytes - start, 0
    for number in range(marks.size // 2):
        offset = marks[2 * number]
        # Ids ascend, so nothing before the frame at a mark is later than that frame.
        time_ms = max(time_ms, _time_ms(_at(block + offset + ID_AT, np.int64), now_ms))
        if offset >= due:
            span = _call_crc32(crc32, span, block + done, offset - done)
            _put_record(record, start + offset, first_ordinal + marks[2 * number + 1], time_ms, span, crc32)
            record, made = record + RECORD_BYTES, made + 1
            done, marked, due, span = offset, start + offset, offset + interval_bytes, NOTHING
    while True:
        end = offset + HEADER_BYTES + _at(block + offset, np.uint32)
        if end >= total:
            break
        offset = end
    time_ms = max(time_ms, _time_ms(_at(block + offset + ID_AT, np.int64), now_ms))
    span = _call_crc32(crc32, span, block + done, total - done)
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
    _put(record, np.int64(offset))
    _put(record + 8, np.int64(ordinal))
    _put(record + 16, np.int64(time_ms))
    _put(record + 24, np.uint32(span))
    _put(record + 28, _call_crc32(crc32, NOTHING, record, RECORD_BYTES - 4))


def _compiled(function, signature):
    """Compile for the types that are used, keeping the machine code on disk wherever a folder can be written."""
    try:
        return numba.njit(signature, nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        numba.config.CACHE_DIR = private_folder()
        return numba.njit(signature, nogil=True, cache=numba.config.CACHE_DIR != "")(function)


number = _compiled(_number, "int64(uint8[::1], int64, int64, int64, int64, int64, int64[:, ::1], int64)")
index = _compiled(_index, "int64(int64, int64, int64, int64[::1], int64[::1], int64, int64, uint8[::1], int64)")
