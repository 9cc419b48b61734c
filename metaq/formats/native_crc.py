"""Finds a fast CRC-32: the address of a C function for compiled code, and the same for Python code.

The isal package exports C functions ``(uint32 seed, const void *bytes, uint64 length) -> uint32``, which are several
times faster than any table: one for each kind of processor, and ``crc32_gzip_refl``, which calls the best one. On
processors with AVX-512, that one leaves the upper halves of the vector registers in use when it returns. From then on
every SSE instruction of the thread is slower, so that Python code around a compiled loop took up to four times as long.
The function with SSE instructions does not, and processes 28 GB a second; it is used if the processor supports it.

An exported symbol is not a documented interface, so it is looked up once per process and must agree with zlib on inputs
that reach all of its code paths.
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib
from collections.abc import Callable
from ctypes import byref, c_char
from itertools import product
from pathlib import Path
from typing import Final

from metaq.model import Buffer

BLOCK_BYTES_MIN: Final = 1 << 13
"""From how many bytes on a call of the function from Python takes less time than zlib."""

_ANY_PROCESSOR: Final = "crc32_gzip_refl"
_SSE: Final = "crc32_gzip_refl_by8"
_SSE_FEATURES: Final = frozenset({"pclmulqdq", "sse4_1"})
"""Processor features that the SSE function needs."""
_PROCESSOR: Final = Path("/proc/cpuinfo")
_PROBE: Final = bytes(range(251)) * 5
_PROBE_LENGTHS: Final = (0, 1, 7, 15, 16, 17, 63, 64, 100, 127, 128, 255, 256, 1000, len(_PROBE))


@functools.cache
def crc32_address() -> int:
    """Return the address of a C function ``uint32 f(uint32 seed, void *, uint64)`` that gives zlib's CRC-32 for seed 0.

    0 if isal is not installed, has no such function, or its function has other results.
    """
    try:
        from isal import isal_zlib

        library = ctypes.CDLL(isal_zlib.__file__)
    except (ImportError, OSError):
        return 0
    names = [_SSE, _ANY_PROCESSOR] if _processor_features() >= _SSE_FEATURES else [_ANY_PROCESSOR]
    return next((address for name in names if (address := _address_of(library, name))), 0)


@functools.cache
def crc32_function() -> Callable[..., int] | None:
    """Return the function at that address for Python code, ``None`` if there is none.

    It keeps the interpreter's lock: to give it away and wait for it may take longer than the call.
    """
    prototype = ctypes.PYFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)
    return prototype(address) if (address := crc32_address()) else None


def crc32_of_block(data: Buffer, value: int = 0) -> int:
    """Return zlib's CRC-32 of ``data``, continued from ``value``: from some KiB on several times as fast as zlib.

    ``data`` that cannot be written, other than ``bytes``, is left to zlib.
    """
    function = crc32_function() if len(data) >= BLOCK_BYTES_MIN else None
    if function is None or (type(data) is memoryview and data.readonly):
        return zlib.crc32(data, value)
    return function(value, data if type(data) is bytes else byref(c_char.from_buffer(data)), len(data))


def required_crc32() -> int:
    """Return the address as ``crc32_address`` does, for compiled code that requires it.

    Raises:
        ImportError: isal is not installed, or exports no usable CRC-32.
    """
    address = crc32_address()
    if not address:
        raise ImportError("isal is not installed, or exports no CRC-32 that is zlib's")
    return address


def _address_of(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function that computes zlib's CRC-32, else 0."""
    try:
        function = library[name]
    except AttributeError:
        return 0
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    for before, length in product((0, 0x9D0F35A1), _PROBE_LENGTHS):
        if function(before, _PROBE, length) != zlib.crc32(_PROBE[:length], before):
            return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _processor_features() -> frozenset[str]:
    """Return the features of an x86 processor on Linux; empty elsewhere."""
    try:
        flags = re.search(r"^flags\s*:(.*)", _PROCESSOR.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(flags[1].split()) if flags else frozenset()
