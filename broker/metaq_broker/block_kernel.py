"""``number_block``'s loop as machine code: about ten times faster on small messages. Optional: needs numba and isal.

Imported by a background thread once a broker has seen enough batched puts (``put_block``). The machine code is
cached on disk by numba. The CRC-32 is isal's exported C function; an exported symbol is no promised interface, so it is
verified before use, here and by ``put_block``'s trial against the plain loop.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import ctypes
import zlib
from typing import Any, Final

import numba
import numpy as np
from isal import isal_zlib
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.checksum import CHECKSUM_MASK
from metaq.message_id import IdRange
from metaq.wire.text.frames import HEADER_BYTES

_PROBE: Final = bytes(range(251)) * 5
_SEQUENCE_BITS: Final = 12
_TIME_SHIFT: Final = 22


def _crc32_address() -> int:
    """Return the address of ``uint32 crc32_gzip_refl(uint32 seed, const void *, uint64 length)``.

    Raises:
        ImportError: It is not there, or gives other results than zlib.
    """
    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError) as error:
        raise ImportError(f"isal exports no CRC-32: {error}") from None
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    if any(function(0, _PROBE, size) != zlib.crc32(_PROBE[:size]) for size in (0, 1, 15, 16, 17, 64, 100, len(_PROBE))):
        raise ImportError("isal's exported CRC-32 is another one")
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_CRC32: Final = _crc32_address()


@intrinsic
def _crc32(typingctx: Any, function: Any, source: Any, length: Any) -> Any:
    """Call the C function at an address. The address is passed as a number, so that the machine code can be cached."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        source_at = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(target, [ir.Constant(ir.IntType(32), 0), source_at, arguments[2]])

    return types.uint32(types.int64, types.int64, types.int64), build


@numba.njit(cache=True)
def _int32_at(data, at):
    return np.int64(
        np.int32(
            np.uint32(data[at]) << 24
            | np.uint32(data[at + 1]) << 16
            | np.uint32(data[at + 2]) << 8
            | np.uint32(data[at + 3])
        )
    )


@numba.njit(cache=True)
def _number(data, count, first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc_address):
    """Check and number ``count`` frames; return the number of marks, or -1 if anything at all is wrong."""
    total, start, next_mark, made = data.size, 0, 0, 0
    for ordinal in range(count):
        body = start + HEADER_BYTES
        if body > total:
            return -1
        length = _int32_at(data, start)
        end = body + length
        if length < 0 or length > message_bytes_max or end > total:
            return -1
        crc = np.int64(_crc32(crc_address, data.ctypes.data + body, length)) & CHECKSUM_MASK
        if crc != _int32_at(data, start + 4):
            return -1
        if start >= next_mark:
            marks[made, 0], marks[made, 1] = start, ordinal
            made += 1
            next_mark = start + mark_bytes
        tick = first_tick + ordinal
        message_id = (tick >> _SEQUENCE_BITS) << _TIME_SHIFT | broker_bits | (tick & ((1 << _SEQUENCE_BITS) - 1))
        for byte in range(8):
            data[start + 8 + byte] = np.uint8(message_id >> (56 - 8 * byte) & 0xFF)
        start = end
    return made if start == total else -1


def number_in_place(
    block: bytearray, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int
) -> list[tuple[int, int]] | None:
    """Write the ids into ``block`` and return its marks, or ``None`` if it is not ``count`` correct frames."""
    marks = np.empty((len(block) // mark_bytes + 1, 2), np.int64)
    first = ids.first
    tick = (first >> _TIME_SHIFT) << _SEQUENCE_BITS | (first & ((1 << _SEQUENCE_BITS) - 1))
    made = _number(
        np.frombuffer(block, np.uint8), count, tick, ids.broker_id << _SEQUENCE_BITS, message_bytes_max, mark_bytes,
        marks, _CRC32,
    )  # fmt: skip
    return None if made < 0 else [(int(offset), int(ordinal)) for offset, ordinal in marks[:made].tolist()]
