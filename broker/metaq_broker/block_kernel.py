"""``number_block``'s loop as machine code: some forty times faster on small messages. Needs numba and isal.

``compiled`` makes it in about a second, in a background thread, once a broker has seen enough batched puts
(``put_block``). The CRC-32 is isal's exported C function; an exported symbol is no promised interface, so it is
verified first, and ``put_block`` tries the whole against the plain loop before it relies on it.
"""

# mypy: ignore-errors
# numba compiles the inner functions by its own rules and has no types to check them against.

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import Any, Final

from metaq.checksum import CHECKSUM_MASK
from metaq.message_id import IdRange
from metaq.wire.text.frames import HEADER_BYTES

_PROBE: Final = bytes(range(251)) * 5
_PROBE_LENGTHS: Final = (0, 1, 15, 16, 17, 63, 64, 100, 255, 256, len(_PROBE))
_SEQUENCE_BITS: Final = 12
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
_TIME_SHIFT: Final = 22


def compiled() -> Callable[[bytearray, int, IdRange, int, int], list[tuple[int, int]] | None]:
    """Return the compiled loop: it writes the ids into a block and returns its marks, ``None`` if a frame is wrong.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    import numpy

    number, crc32 = _number_loop(), _crc32_address()

    def number_in_place(
        block: bytearray, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int
    ) -> list[tuple[int, int]] | None:
        marks = numpy.empty((len(block) // mark_bytes + 1, 2), numpy.int64)
        tick = (ids.first >> _TIME_SHIFT) << _SEQUENCE_BITS | (ids.first & _SEQUENCE_MASK)
        broker_bits = ids.broker_id << _SEQUENCE_BITS
        data = numpy.frombuffer(block, numpy.uint8)
        made = number(data, count, tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32)
        return None if made < 0 else list(map(tuple, marks[:made].tolist()))

    return number_in_place


def _crc32_address() -> int:
    """Return the address of isal's ``uint32 crc32_gzip_refl(uint32 seed, const void *, uint64 length)``."""
    from isal import isal_zlib

    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError) as error:
        raise ImportError(f"isal exports no CRC-32: {error}") from None
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    if any(function(0, _PROBE, length) != zlib.crc32(_PROBE[:length]) for length in _PROBE_LENGTHS):
        raise ImportError("isal's exported CRC-32 is another one")
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _number_loop() -> Callable[..., int]:
    import numba
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic
    def call_crc32(typingctx: Any, function: Any, source: Any, length: Any) -> Any:
        """Call the C function at an address."""

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir = cgutils.ir
            function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
            target = builder.inttoptr(arguments[0], function_type.as_pointer())
            source_at = builder.inttoptr(arguments[1], cgutils.voidptr_t)
            return builder.call(target, [ir.Constant(ir.IntType(32), 0), source_at, arguments[2]])

        return types.uint32(types.int64, types.int64, types.int64), build

    @numba.njit(inline="always")
    def uint32_at(data, at):
        return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]

    @numba.njit
    def number(data, count, first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32):
        """Check and number ``count`` frames; return the number of marks, or -1 if anything at all is wrong."""
        total, start, next_mark, made = data.size, 0, 0, 0
        for ordinal in range(count):
            body = start + HEADER_BYTES
            if body > total:
                return -1
            length = uint32_at(data, start)
            end = body + length
            if length > message_bytes_max or end > total:  # negative ones are the largest of all
                return -1
            if call_crc32(crc32, data.ctypes.data + body, length) & CHECKSUM_MASK != uint32_at(data, start + 4):
                return -1
            if start >= next_mark:
                marks[made, 0], marks[made, 1] = start, ordinal
                made += 1
                next_mark = start + mark_bytes
            tick = first_tick + ordinal
            message_id = (tick >> _SEQUENCE_BITS) << _TIME_SHIFT | broker_bits | (tick & _SEQUENCE_MASK)
            for byte in range(8):
                data[start + 8 + byte] = message_id >> (56 - 8 * byte) & 0xFF
            start = end
        return made if start == total else -1

    return number
