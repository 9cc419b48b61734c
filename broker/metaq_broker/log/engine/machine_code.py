"""What the compiled loops are written with: how they are compiled, and numbers and bytes at addresses.

The machine code of a loop is cached on disk, so it is made once for each installation: a second or two of work the
first time, a few hundredths in every later process. numba makes it again when the file of the loop has changed, not
when this one has.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, no-untyped-def"
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import sys
from typing import Any

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.code_cache import private_folder


def compiled(function, signature):
    """Compile for the types that are used, keeping the machine code on disk wherever a folder can be written."""
    try:
        return numba.njit(signature, nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        numba.config.CACHE_DIR = private_folder()
        return numba.njit(signature, nogil=True, cache=numba.config.CACHE_DIR != "")(function)


@intrinsic
def call_crc32(typingctx: Any, function: Any, before: Any, source: Any, length: Any) -> Any:
    """Call ``uint32 f(uint32, void *, uint64)`` at an address. Passed as a number, so that the code stays cacheable."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        source_at = builder.inttoptr(arguments[2], cgutils.voidptr_t)
        return builder.call(target, [arguments[1], source_at, arguments[3]])

    return types.uint32(types.int64, types.uint32, types.int64, types.int64), build


@intrinsic
def number_at(typingctx: Any, address: Any, kind: Any) -> Any:
    """The big-endian integer of type ``kind`` at an address, aligned or not."""
    bits = kind.dtype.bitwidth

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], cgutils.ir.IntType(bits).as_pointer()))
        loaded.align = 1
        return builder.bswap(loaded) if sys.byteorder == "little" else loaded

    return kind.dtype(types.int64, kind), build


@intrinsic
def put_number(typingctx: Any, address: Any, number: Any) -> Any:
    """Store ``number``, as wide as its type is, big-endian, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.bswap(arguments[1]) if sys.byteorder == "little" else arguments[1]
        builder.store(value, builder.inttoptr(arguments[0], value.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), build


@intrinsic
def byte_at(typingctx: Any, address: Any) -> Any:
    """The byte at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], cgutils.ir.IntType(8).as_pointer()))

    return types.uint8(types.int64), build


@intrinsic
def put_byte(typingctx: Any, address: Any, byte: Any) -> Any:
    """Store a byte at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], cgutils.ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8), build


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, length: Any) -> Any:
    """``memcpy(target, source, length)`` between two addresses."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build
