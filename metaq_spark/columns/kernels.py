"""The compiled loops between frames and columns: one pass over the bytes in each direction.

Imported on first use only, because numba takes a fifth of a second to import. The machine code is cached on disk,
beside this file or in a folder of the user, so it is compiled once for each installation and not in every Python
worker.

The columns of a read: ``timed`` and ``attributed`` are one byte a row (0 = null), ``*_ends`` Arrow's int32 offsets, one
more than rows. A column that is not wanted is arrays of length 0: one compiled version serves all choices of columns.

Kernels work on plain numpy arrays and addresses and raise nothing: they return a status and leave their progress in
``state``, from which ``decode`` and ``encode`` make batches and errors. Frame layout: ``metaq.wire.text.frames``.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from metaq.code_cache import private_folder as _private_folder
from metaq.message_id import EPOCH_MS

HEADER_BYTES: Final = 20
CHECKSUM_MASK: Final = np.uint32(0x7FFFFFFF)

DONE: Final = 0
FULL: Final = 1
BAD_LENGTH: Final = 2
BAD_CHECKSUM: Final = 3
BAD_ATTRIBUTE: Final = 4
"""What a kernel returns. ``FULL``: the output has no room for the frame or row at ``state[POSITION]``."""

POSITION: Final = 0
ROW: Final = 1
VALUE_BYTES: Final = 2
ATTRIBUTE_BYTES: Final = 3
WITHOUT_ATTRIBUTE: Final = 4
WITHOUT_TIME: Final = 5
NON_ASCII: Final = 6
NEEDED: Final = 7
STATE_SIZE: Final = 8
"""Places in the ``state`` array of int64: how far a kernel came, what it met, and the bytes it had no room for."""


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


@intrinsic
def _call_crc(typingctx: Any, function: Any, source: Any, length: Any) -> Any:
    """Call ``uint32 f(uint32, void *, uint64)`` at an address. Passed as a number, so that the code stays cacheable."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.IntType(32), [ir.IntType(32), cgutils.voidptr_t, ir.IntType(64)])
        target = builder.inttoptr(arguments[0], function_type.as_pointer())
        bytes_at = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(target, [ir.Constant(ir.IntType(32), 0), bytes_at, arguments[2]])

    return types.uint32(types.int64, types.int64, types.int64), build


@intrinsic
def _copy(typingctx: Any, target: Any, source: Any, length: Any) -> Any:
    """``memcpy(target, source, length)`` between two addresses."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


@intrinsic
def _big_endian(typingctx: Any, address: Any, kind: Any) -> Any:
    """The big-endian integer of type ``kind`` at an address, aligned or not: one load, one swap."""
    bits = kind.dtype.bitwidth

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
        loaded = builder.load(pointer)
        loaded.align = 1
        return builder.bswap(loaded) if sys.byteorder == "little" else loaded

    return kind.dtype(types.int64, kind), build


@intrinsic
def _put_big_endian(typingctx: Any, address: Any, number: Any) -> Any:
    """Store ``number``, as wide as its type is, at an address, aligned or not."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.bswap(arguments[1]) if sys.byteorder == "little" else arguments[1]
        pointer = builder.inttoptr(arguments[0], value.type.as_pointer())
        builder.store(value, pointer).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), build


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, keeping the machine code on disk wherever a folder can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        # Neither this folder nor the home directory can be written, as in many containers.
        numba.config.CACHE_DIR = _private_folder()
        return numba.njit(cache=numba.config.CACHE_DIR != "")(function)


@numba.njit(inline="always")
def _int32_at(data, at):
    return np.int64(_big_endian(data.ctypes.data + at, np.int32))


@numba.njit(inline="always")
def _int64_at(data, at):
    return _big_endian(data.ctypes.data + at, np.int64)


@numba.njit
def _crc_by_table(data, start, end, tables):
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 16 <= end:
        mixed = np.uint32(0)
        mixed ^= tables[15, data[at] ^ (crc & 0xFF)] ^ tables[14, data[at + 1] ^ (crc >> 8 & 0xFF)]
        mixed ^= tables[13, data[at + 2] ^ (crc >> 16 & 0xFF)] ^ tables[12, data[at + 3] ^ (crc >> 24)]
        for k in range(4, 16):
            mixed ^= tables[15 - k, data[at + k]]
        crc = mixed
        at += 16
    while at < end:
        crc = crc >> 8 ^ tables[0, (crc ^ data[at]) & 0xFF]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@numba.njit(inline="always")
def _crc32(data, start, end, crc_address, tables):
    if crc_address != 0:
        crc = _call_crc(crc_address, data.ctypes.data + start, end - start)
    else:
        crc = _crc_by_table(data, start, end, tables)
    return crc


@numba.njit(inline="always")
def _attribute_length(run, body, end):
    """Length of the attribute that the body starts with; -1 if the body cannot hold what it says."""
    length = _int32_at(run, body) if end - body >= 4 else np.int64(-1)
    return length if body + 4 + length <= end else np.int64(-1)


@numba.njit(inline="always")
def _copy_text(target, to, source, at, length):
    """Copy bytes one by one; 0x80 if one of them is not ASCII, else 0."""
    seen = np.uint8(0)
    for index in range(length):
        byte = source[at + index]
        target[to + index] = byte
        seen |= byte
    return seen & 0x80


@numba.njit(inline="always")
def _look_at(run, header, crc_address, tables):
    """Status, end and length of the attribute of the frame at ``header``. Its checksum is verified."""
    body = header + HEADER_BYTES
    length = _int32_at(run, header) if body <= len(run) else np.int64(-1)
    end = body + length
    if length < 0 or end > len(run):
        return BAD_LENGTH, end, np.int64(0)
    if _crc32(run, body, end, crc_address, tables) & CHECKSUM_MASK != np.uint32(_int32_at(run, header + 4)):
        return BAD_CHECKSUM, end, np.int64(0)
    attribute_length = _attribute_length(run, body, end) if run[header + 19] & 1 else np.int64(0)
    return DONE if attribute_length >= 0 else BAD_ATTRIBUTE, end, attribute_length


@_compiled
def decode_frames(
    run, base, address_bytes, rows_max, crc_address, tables, state,
    offsets, message_ids, timestamps, timed, attribute_ends, attributed, attributes, value_ends, values,
):  # fmt: skip
    """Append the frames of ``run`` from ``state[POSITION]`` on to the columns, up to ``rows_max`` rows.

    ``base`` is the offset of ``run[0]``, unless ``address_bytes`` is 8: then each frame has its own in front (int64).
    """
    position, row = state[POSITION], state[ROW]
    value_end, attribute_end = state[VALUE_BYTES], state[ATTRIBUTE_BYTES]
    without_time, without_attribute, non_ascii = np.int64(0), np.int64(0), np.uint8(0)
    status, with_attributes, with_values = DONE, len(attribute_ends) > 0, len(value_ends) > 0
    with_offsets, with_ids, with_times = len(offsets) > 0, len(message_ids) > 0, len(timestamps) > 0
    while position < len(run):
        header = position + address_bytes
        status, end, attribute_length = _look_at(run, header, crc_address, tables)
        if status != DONE:
            break
        has_attribute = run[header + 19] & 1
        start = header + HEADER_BYTES + 4 * has_attribute + attribute_length
        if (
            row == rows_max
            or (with_values and value_end + end - start > len(values))
            or (with_attributes and attribute_end + attribute_length > len(attributes))
        ):
            state[NEEDED] = end - header - HEADER_BYTES
            status = FULL
            break
        if with_offsets:
            offsets[row] = _int64_at(run, position) if address_bytes else base + position
        message_id = _int64_at(run, header + 8)
        if with_ids:
            message_ids[row] = message_id
        if with_times:
            timed[row] = message_id >= 0
            timestamps[row] = ((message_id >> 22) + EPOCH_MS) * 1000
            without_time += message_id < 0
        if with_attributes:
            attributed[row] = has_attribute
            without_attribute += 1 - has_attribute
            non_ascii |= _copy_text(attributes, attribute_end, run, start - attribute_length, attribute_length)
            attribute_end += attribute_length
            attribute_ends[row + 1] = attribute_end
        if with_values:
            _copy(values.ctypes.data + value_end, run.ctypes.data + start, end - start)
            value_end += end - start
            value_ends[row + 1] = value_end
        row += 1
        position = end
    state[POSITION], state[ROW] = position, row
    state[VALUE_BYTES], state[ATTRIBUTE_BYTES] = value_end, attribute_end
    state[WITHOUT_TIME] += without_time
    state[WITHOUT_ATTRIBUTE] += without_attribute
    state[NON_ASCII] |= non_ascii
    return status


@_compiled
def encode_frames(rows, crc_address, tables, state, value_ends, values, attributed, attribute_ends, attributes, block):
    """Write the frames of ``rows[state[ROW]:]`` to ``block`` from ``state[POSITION]`` on, with message id 0.

    ``attributed`` has one byte a row, or none at all when no row has an attribute.
    """
    position, index = state[POSITION], state[ROW]
    status, to = DONE, block.ctypes.data
    while index < len(rows):
        row = rows[index]
        size = value_ends[row + 1] - value_ends[row]
        has_attribute = len(attributed) > 0 and attributed[row] != 0
        attribute_length = attribute_ends[row + 1] - attribute_ends[row] if has_attribute else np.int64(0)
        length = size + (4 + attribute_length if has_attribute else 0)
        body = position + HEADER_BYTES
        if body + length > len(block):
            state[NEEDED] = HEADER_BYTES + length
            status = FULL
            break
        start = body
        if has_attribute:
            _put_big_endian(to + body, np.int32(attribute_length))
            _copy(to + body + 4, attributes.ctypes.data + attribute_ends[row], attribute_length)
            start = body + 4 + attribute_length
        _copy(to + start, values.ctypes.data + value_ends[row], size)
        crc = _crc32(block, body, body + length, crc_address, tables) & CHECKSUM_MASK
        _put_big_endian(to + position, length << 32 | np.int64(crc))
        _put_big_endian(to + position + 8, np.int64(0))
        _put_big_endian(to + position + 16, np.int32(1 if has_attribute else 0))
        position = body + length
        index += 1
    state[POSITION], state[ROW] = position, index
    return status


@_compiled
def hash_keys(ends, keys, crc_address, tables, hashes):
    """The CRC-32 of every key into ``hashes`` (int64, 0..2**32-1)."""
    for row in range(len(hashes)):
        hashes[row] = _crc32(keys, ends[row], ends[row + 1], crc_address, tables)


@_compiled
def whole_frames(run):
    """Length of the whole frames at the front of ``run``; stops at a cut tail and at a negative length."""
    position = np.int64(0)
    while position + HEADER_BYTES <= len(run):
        length = _int32_at(run, position)
        if length < 0 or position + HEADER_BYTES + length > len(run):
            break
        position += HEADER_BYTES + length
    return position
