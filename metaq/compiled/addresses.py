"""Loads, stores, copies and checksums at addresses: what the compiled loops of connector and broker are made of.

Helpers take addresses, not arrays: if an array is passed to an inlined function, numba changes its reference count
atomically.
"""

# mypy: disable-error-code="attr-defined, call-arg, no-untyped-call, no-untyped-def"
# numba compiles these functions; it has no types for mypy.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.compiled.code_cache import private_folder


def _crc_tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The sixteen tables of the slicing-by-16 CRC-32 (reflected polynomial 0xEDB88320)."""
    tables = np.zeros((16, 256), dtype=np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, (row >> 1) ^ np.uint32(0xEDB88320), row >> 1).astype(np.uint32)
    tables[0] = row
    for k in range(1, 16):
        tables[k] = (tables[k - 1] >> 8) ^ row[tables[k - 1] & 0xFF]
    return tables


CRC_TABLES: Final = _crc_tables()

_NOTHING: Final = np.uint32(0)
"""The CRC-32 of no bytes."""


@intrinsic
def call_crc32(typingctx: Any, function: Any, before: Any, source: Any, length: Any) -> Any:
    """Call ``uint32 f(uint32, void *, uint64)`` at an address. Passed as a number, so that the code stays cacheable."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        source_at = builder.inttoptr(arguments[2], cgutils.voidptr_t)
        return builder.call(target, [arguments[1], source_at, arguments[3]])

    return types.uint32(types.int64, types.uint32, types.int64, types.int64), build


@intrinsic
def copy(typingctx: Any, target: Any, source: Any, length: Any) -> Any:
    """``memcpy(target, source, length)`` between two addresses."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


def _loading(kind: Any, swapped: bool) -> tuple[Any, Callable[..., Any]]:
    """Signature and body of a load of an integer of type ``kind``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], ir.IntType(kind.dtype.bitwidth).as_pointer()))
        loaded.align = 1
        return builder.bswap(loaded) if swapped else loaded

    return kind.dtype(types.int64, kind), build


@intrinsic
def load(typingctx: Any, address: Any, kind: Any) -> Any:
    """The integer of type ``kind`` at an address, aligned or not, in this machine's byte order."""
    return _loading(kind, False)


@intrinsic
def big_endian(typingctx: Any, address: Any, kind: Any) -> Any:
    """The big-endian integer of type ``kind`` at an address, aligned or not: one load, one swap."""
    return _loading(kind, sys.byteorder == "little")


@intrinsic
def put_big_endian(typingctx: Any, address: Any, number: Any) -> Any:
    """Store ``number``, with the width of its type, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.bswap(arguments[1]) if sys.byteorder == "little" else arguments[1]
        pointer = builder.inttoptr(arguments[0], value.type.as_pointer())
        builder.store(value, pointer).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), build


@intrinsic
def store(typingctx: Any, address: Any, number: Any) -> Any:
    """Store ``number``, with the width of its type, in this machine's byte order, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], arguments[1].type.as_pointer())
        builder.store(arguments[1], pointer).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), build


def compiled(function: Any, signature: str | None = None) -> Any:
    """Compile for ``signature`` now, or for what it is called with on first call.

    The machine code is kept on disk wherever a folder can be written. With a signature, the function runs without the
    interpreter's lock.
    """
    compiler: Any = numba.njit
    arguments, nogil = () if signature is None else (signature,), signature is not None
    try:
        return compiler(*arguments, nogil=nogil, cache=True)(function)
    except RuntimeError:
        # Neither this folder nor the home directory can be written, as in many containers.
        numba.config.CACHE_DIR = private_folder()
        return compiler(*arguments, nogil=nogil, cache=numba.config.CACHE_DIR != "")(function)


@numba.njit(inline="always")
def byte_at(address):
    """The byte at an address."""
    return load(address, np.uint8)


@numba.njit(inline="always")
def int32_at(address):
    """The big-endian int32 at an address, as an int64."""
    return np.int64(big_endian(address, np.int32))


@numba.njit(inline="always")
def _table_entry(tables_at, table, byte):
    return load(tables_at + 1024 * table + 4 * np.int64(byte), np.uint32)


@numba.njit
def _crc_by_table(address, length, tables_at):
    crc = np.uint32(0xFFFFFFFF)
    end = address + length
    while address + 16 <= end:
        mixed = np.uint32(0)
        for k in range(16):
            byte = np.uint32(load(address + k, np.uint8))
            if k < 4:
                byte ^= crc >> np.uint32(8 * k) & np.uint32(0xFF)
            mixed ^= _table_entry(tables_at, 15 - k, byte)
        crc = mixed
        address += 16
    while address < end:
        byte = (crc ^ np.uint32(load(address, np.uint8))) & np.uint32(0xFF)
        crc = crc >> np.uint32(8) ^ _table_entry(tables_at, 0, byte)
        address += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@numba.njit(inline="always")
def crc32(address, length, crc_address, tables_at):
    """The CRC-32 of the bytes at an address, by the C function at ``crc_address`` or, where that is 0, by tables."""
    return (
        call_crc32(crc_address, _NOTHING, address, length) if crc_address else _crc_by_table(address, length, tables_at)
    )


@numba.njit
def copy_text(to, origin, length):
    """Copy bytes between two addresses; 0x80 if one of them is not ASCII, else 0."""
    copy(to, origin, length)
    seen = np.uint8(0)
    for at in range(origin, origin + length):
        seen |= load(at, np.uint8)
    return seen & np.uint8(0x80)
