"""The compiled loops between frames and columns: one pass over the bytes in each direction.

Imported on first use only, because numba takes a fifth of a second to import. The machine code is cached on disk,
beside this file or in a folder of the user, so it is compiled once for each installation and not in every Python
worker.

Kernels work on plain numpy arrays and addresses and raise nothing: they return a status and leave their progress in
``state``, from which ``decode`` and ``encode`` make batches and errors. Frame layout: ``metaq.wire.text.frames``.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

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


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, keeping the machine code on disk wherever a folder can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        # Neither this folder nor the home directory can be written, as in many containers.
        numba.config.CACHE_DIR = _private_folder()
        return numba.njit(cache=numba.config.CACHE_DIR != "")(function)


def _private_folder() -> str:
    """A folder that nobody else may write: numba loads what it finds there as code. Empty if there is none."""
    folder = os.path.join(tempfile.gettempdir(), f"metaq-spark-kernels-{os.getuid()}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder, follow_symlinks=False)
    except OSError:
        return ""
    return folder if status.st_uid == os.getuid() and not status.st_mode & 0o022 else ""


@numba.njit(inline="always")
def _int32_at(data, at):
    word = (
        np.uint32(data[at]) << 24
        | np.uint32(data[at + 1]) << 16
        | np.uint32(data[at + 2]) << 8
        | np.uint32(data[at + 3])
    )
    return np.int64(np.int32(word))


@numba.njit(inline="always")
def _put_int32(data, at, number):
    data[at] = np.uint8(number >> 24 & 0xFF)
    data[at + 1] = np.uint8(number >> 16 & 0xFF)
    data[at + 2] = np.uint8(number >> 8 & 0xFF)
    data[at + 3] = np.uint8(number & 0xFF)


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


@numba.njit
def _crc32(data, start, end, crc_address, tables):
    if crc_address != 0:
        return _call_crc(crc_address, data.ctypes.data + start, end - start)
    return _crc_by_table(data, start, end, tables)


@numba.njit(inline="always")
def _attribute_length(run, body, end):
    """Length of the attribute that the body starts with; -1 if the body cannot hold what it says."""
    length = _int32_at(run, body) if end - body >= 4 else np.int64(-1)
    return length if body + 4 + length <= end else np.int64(-1)


@_compiled
def decode_frames(
    run, base, crc_address, tables, state,
    offsets, message_ids, timestamps, timed, attribute_ends, attributed, attributes, value_ends, values,
):  # fmt: skip
    """Append the frames of ``run`` from ``state[POSITION]`` on to the columns; ``base`` is the offset of ``run[0]``.

    ``timed`` and ``attributed`` are one byte a row (0 = null); ``*_ends`` are Arrow's int32 offsets, one more than
    rows.
    """
    position, row = state[POSITION], state[ROW]
    value_end, attribute_end = state[VALUE_BYTES], state[ATTRIBUTE_BYTES]
    status = DONE
    while position < len(run):
        body = position + HEADER_BYTES
        length = _int32_at(run, position) if body <= len(run) else np.int64(-1)
        end = body + length
        if length < 0 or end > len(run):
            status = BAD_LENGTH
            break
        if _crc32(run, body, end, crc_address, tables) & CHECKSUM_MASK != np.uint32(_int32_at(run, position + 4)):
            status = BAD_CHECKSUM
            break
        has_attribute = run[position + 19] & 1
        attribute_length = _attribute_length(run, body, end) if has_attribute else np.int64(0)
        if attribute_length < 0:
            status = BAD_ATTRIBUTE
            break
        start = body + 4 * has_attribute + attribute_length
        if (
            row == len(offsets)
            or value_end + end - start > len(values)
            or attribute_end + attribute_length > len(attributes)
        ):
            state[NEEDED] = length
            status = FULL
            break
        message_id = _int32_at(run, position + 8) << 32 | _int32_at(run, position + 12) & 0xFFFFFFFF
        offsets[row] = base + position
        message_ids[row] = message_id
        timed[row] = message_id >= 0
        timestamps[row] = ((message_id >> 22) + EPOCH_MS) * 1000
        state[WITHOUT_TIME] += message_id < 0
        attributed[row] = has_attribute
        state[WITHOUT_ATTRIBUTE] += 1 - has_attribute
        seen = np.uint8(0)
        for at in range(attribute_length):
            byte = run[body + 4 + at]
            attributes[attribute_end + at] = byte
            seen |= byte
        state[NON_ASCII] |= seen & 0x80
        attribute_end += attribute_length
        _copy(values.ctypes.data + value_end, run.ctypes.data + start, end - start)
        value_end += end - start
        row += 1
        attribute_ends[row] = attribute_end
        value_ends[row] = value_end
        position = end
    state[POSITION], state[ROW] = position, row
    state[VALUE_BYTES], state[ATTRIBUTE_BYTES] = value_end, attribute_end
    return status


@_compiled
def encode_frames(rows, crc_address, tables, state, value_ends, values, attributed, attribute_ends, attributes, block):
    """Write the frames of ``rows[state[ROW]:]`` to ``block`` from ``state[POSITION]`` on, with message id 0.

    ``attributed`` has one byte a row, or none at all when no row has an attribute.
    """
    position, index = state[POSITION], state[ROW]
    status = DONE
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
            _put_int32(block, body, attribute_length)
            _copy(block.ctypes.data + body + 4, attributes.ctypes.data + attribute_ends[row], attribute_length)
            start = body + 4 + attribute_length
        _copy(block.ctypes.data + start, values.ctypes.data + value_ends[row], size)
        _put_int32(block, position, length)
        crc = _crc32(block, body, body + length, crc_address, tables) & CHECKSUM_MASK
        _put_int32(block, position + 4, np.int64(crc))
        block[position + 8 : position + HEADER_BYTES] = 0
        block[position + 19] = 1 if has_attribute else 0
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
