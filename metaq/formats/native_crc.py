"""Where compiled code finds a fast CRC-32: the address of a C function, or 0 where there is none.

The isal package exports ``crc32_gzip_refl(uint32 seed, const void *bytes, uint64 length) -> uint32``, which is several
times faster than any table. An exported symbol is no promised interface, so it is looked up once for each process and
must agree with zlib on inputs that touch all of its code paths.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from typing import Final

_SYMBOL: Final = "crc32_gzip_refl"
_PROBE: Final = bytes(range(251)) * 5
_PROBE_LENGTHS: Final = (0, 1, 7, 15, 16, 17, 63, 64, 100, 255, 256, 1000, len(_PROBE))


@functools.cache
def crc32_address() -> int:
    """Return the address of a C function ``uint32 f(uint32 seed, void *, uint64)`` that gives zlib's CRC-32 for seed 0.

    0 if isal is not installed, exports no such function, or exports another one under that name.
    """
    try:
        from isal import isal_zlib

        function = getattr(ctypes.CDLL(isal_zlib.__file__), _SYMBOL)
    except (ImportError, OSError, AttributeError):
        return 0
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    if any(function(0, _PROBE, length) != zlib.crc32(_PROBE[:length]) for length in _PROBE_LENGTHS):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def required_crc32() -> int:
    """Return what ``crc32_address`` does, for compiled code that cannot do without.

    Raises:
        ImportError: isal is not installed, or exports no usable CRC-32.
    """
    address = crc32_address()
    if not address:
        raise ImportError("isal is not installed, or exports no CRC-32 that is zlib's")
    return address
