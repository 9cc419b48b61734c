"""``number_block``'s loop, compiled by numba: imported by ``block_kernel`` once a broker has use for it, and only then.

The machine code is cached on disk, so it is made once for each installation: a second of work the first time, a few
hundredths in every later process. It runs without the interpreter's lock.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import sys
from typing import Any

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.checksum import CHECKSUM_MASK
from metaq.code_cache import private_folder
from metaq.message_id import IDS_PER_MS, SEQUENCE_BITS, TIME_SHIFT
from metaq.wire.text.frames import HEADER_BYTES

SEQUENCE_MASK = IDS_PER_MS - 1


@intrinsic
def _call_crc32(typingctx: Any, function: Any, source: Any, length: Any) -> Any:
    """Call ``uint32 f(uint32, void *, uint64)`` at an address. Passed as a number, so that the code stays cacheable."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        source_at = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(target, [ir.Constant(ir.IntType(32), 0), source_at, arguments[2]])

    return types.uint32(types.int64, types.int64, types.int64), build


@intrinsic
def _uint32_at(typingctx: Any, address: Any) -> Any:
    """The big-endian number of 32 bits at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], cgutils.ir.IntType(32).as_pointer()))
        loaded.align = 1
        return builder.bswap(loaded) if sys.byteorder == "little" else loaded

    return types.uint32(types.int64), build


@intrinsic
def _put_int64(typingctx: Any, address: Any, number: Any) -> Any:
    """Store a number as 64 bits, big-endian, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.bswap(arguments[1]) if sys.byteorder == "little" else arguments[1]
        builder.store(value, builder.inttoptr(arguments[0], value.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


def _number(data, count, first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32):
    """Check and number ``count`` frames; return the number of marks, or -1 if anything at all is wrong."""
    # An address, not the array: each use of that in the loop would count a reference up and down.
    block, total = data.ctypes.data, data.size
    start, next_mark, made = 0, 0, 0
    for ordinal in range(count):
        body = start + HEADER_BYTES
        if body > total:
            return -1
        length = _uint32_at(block + start)
        end = body + length
        if length > message_bytes_max or end > total:  # negative ones are the largest of all
            return -1
        if _call_crc32(crc32, block + body, length) & CHECKSUM_MASK != _uint32_at(block + start + 4):
            return -1
        if start >= next_mark:
            marks[made, 0], marks[made, 1] = start, ordinal
            made += 1
            next_mark = start + mark_bytes
        tick = first_tick + ordinal
        message_id = (tick >> SEQUENCE_BITS) << TIME_SHIFT | broker_bits | (tick & SEQUENCE_MASK)
        _put_int64(block + start + 8, message_id)
        start = end
    return made if start == total else -1


def _compiled(function):
    """Compile for the types that are used, keeping the machine code on disk wherever a folder can be written."""
    signature = "int64(uint8[::1], int64, int64, int64, int64, int64, int64[:, ::1], int64)"
    try:
        return numba.njit(signature, nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        numba.config.CACHE_DIR = private_folder()
        return numba.njit(signature, nogil=True, cache=numba.config.CACHE_DIR != "")(function)


number = _compiled(_number)
