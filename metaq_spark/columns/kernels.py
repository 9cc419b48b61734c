"""The compiled loops between frames and columns: one pass over the bytes in each direction.

Imported on first use only, because numba takes a fifth of a second to import. The machine code is cached on disk,
beside this file or in a folder of the user, so it is compiled once for each installation and not in every Python
worker.

The columns of a read: ``timed`` and ``attributed`` are one byte a row (0 = null), ``*_ends`` Arrow's int32 offsets, one
more than rows. An unselected column has arrays of length 0: one compiled version serves all selections.

Kernels work on plain numpy arrays and addresses and raise nothing: they return a status and leave their progress in
``state``, from which ``decode`` and ``encode`` make batches and errors. Frame layout: ``metaq.formats.frames``.

Addresses of arrays are computed before the loops, and helpers take addresses: if an array is passed to an inlined
function or ``array.ctypes`` is used, numba changes its reference count atomically, which takes a fifth of a loop's
time.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, var-annotated"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from metaq.compiled.addresses import CRC_TABLES as CRC_TABLES
from metaq.compiled.addresses import (
    big_endian,
    compiled,
    copy,
    copy_text,
    crc32,
    int32_at,
    load,
    put_big_endian,
)
from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.native_crc import crc32_address
from metaq_spark.columns.blocks import MULTIPLIERS as _MULTIPLIERS

CHECKSUM_MASK: Final = np.uint32(0x7FFFFFFF)
FINGERPRINT_MULTIPLIERS: Final = tuple(np.uint64(number) for number in _MULTIPLIERS)

DONE: Final = 0
FULL: Final = 1
BAD_LENGTH: Final = 2
BAD_CHECKSUM: Final = 3
BAD_ATTRIBUTE: Final = 4
"""Status codes of a kernel. ``FULL``: the output has no space for the frame or row at ``state[POSITION]``."""

POSITION: Final = 0
ROW: Final = 1
VALUE_BYTES: Final = 2
ATTRIBUTE_BYTES: Final = 3
WITHOUT_ATTRIBUTE: Final = 4
WITHOUT_TIME: Final = 5
NON_ASCII: Final = 6
NEEDED: Final = 7
FINGERPRINT: Final = 8
STATE_SIZE: Final = 9
"""Size of the ``state`` array of int64: the kernel's progress, the event that stopped it, the bytes it had no space
for, and the sum of the fingerprints of its frames.
"""


@numba.njit(inline="always")
def _attribute_length(body, length):
    """Return the length of the attribute at the start of a body; -1 if it exceeds the body."""
    found = int32_at(body) if length >= 4 else np.int64(-1)
    return found if 4 + found <= length else np.int64(-1)


@numba.njit(inline="always")
def _look_at(frame, bytes_left, crc_address, tables_at):
    """Return status, body length, and bytes before the payload of the frame at an address with ``bytes_left`` bytes.

    Its checksum is verified.
    """
    length = int32_at(frame) if bytes_left >= HEADER_BYTES else np.int64(-1)
    body = frame + HEADER_BYTES
    if length < 0 or HEADER_BYTES + length > bytes_left:
        return BAD_LENGTH, length, np.int64(0)
    if crc32(body, length, crc_address, tables_at) & CHECKSUM_MASK != np.uint32(int32_at(frame + 4)):
        return BAD_CHECKSUM, length, np.int64(0)
    skipped = np.int64(4) + _attribute_length(body, length) if load(frame + 19, np.uint8) & 1 else np.int64(0)
    return DONE if skipped != 3 else BAD_ATTRIBUTE, length, skipped


@numba.njit(inline="always")
def _digit(code):
    """Return the six bits of a base64 digit, 64 for other characters."""
    if 65 <= code <= 90:
        return code - 65
    if 97 <= code <= 122:
        return code - 71
    if 48 <= code <= 57:
        return code + 4
    return 62 if code == 43 else 63 if code == 47 else 64


@numba.njit
def _shown(at, length):
    """Return the length of the visible part of the attribute at an address, and whether there is one:
    ``stored_form``.
    """
    tag = np.int64(0)
    while tag < length and load(at + tag, np.uint8) != 2:
        tag += 1
    if tag + 2 > length:
        return length, np.uint8(1)
    kind = load(at + tag + 1, np.uint8)
    digits = np.int64(48) if kind == 52 else np.int64(64)
    if (kind != 52 and kind != 54) or tag + 2 + digits > length:
        return length, np.uint8(1)
    low_flags = np.int64(0)
    for place in range(digits):
        six = _digit(np.int64(load(at + tag + 2 + place, np.uint8)))
        if six == 64:
            return length, np.uint8(1)
        if place == 9:
            low_flags = (six & 15) << 4
        elif place == 10:
            low_flags |= six >> 2
    if low_flags & 0x30 != (0 if kind == 52 else 0x10):
        return length, np.uint8(1)
    return tag, np.uint8(tag > 0)


@numba.njit(inline="always")
def _attribute(frame, skipped):
    """Return the length of the visible attribute, and whether there is one; ``skipped`` bytes precede the payload."""
    flags = load(frame + 19, np.uint8)
    if flags & np.uint8(3) == np.uint8(3):
        return _shown(frame + HEADER_BYTES + 4, skipped - 4)
    return max(np.int64(0), skipped - 4), flags & np.uint8(1)


@compiled
def decode_frames(
    run, base, address_bytes, rows_max, crc_address, tables, state,
    offsets, message_ids, timestamps, timed, attribute_ends, attributed, attributes, value_ends, values,
):  # fmt: skip
    """Append the frames of ``run`` from ``state[POSITION]`` on to the columns, up to ``rows_max`` rows.

    ``base`` is the offset of ``run[0]``, unless ``address_bytes`` is 8: then each frame is preceded by its own (int64).
    """
    position, row = state[POSITION], state[ROW]
    value_end, attribute_end = state[VALUE_BYTES], state[ATTRIBUTE_BYTES]
    without_time, without_attribute, non_ascii = np.int64(0), np.int64(0), np.uint8(0)
    status, with_attributes, with_values = DONE, len(attribute_ends) > 0, len(value_ends) > 0
    with_offsets, with_ids, with_times = len(offsets) > 0, len(message_ids) > 0, len(timestamps) > 0
    run_at, values_at, attributes_at = run.ctypes.data, values.ctypes.data, attributes.ctypes.data
    tables_at = tables.ctypes.data
    while position < len(run):
        header = position + address_bytes
        frame = run_at + header
        status, length, skipped = _look_at(frame, len(run) - header, crc_address, tables_at)
        if status != DONE:
            break
        attribute_length, has_attribute = _attribute(frame, skipped)
        size = length - skipped
        if (
            row == rows_max
            or (with_values and value_end + size > len(values))
            or (with_attributes and attribute_end + attribute_length > len(attributes))
        ):
            state[NEEDED] = length
            status = FULL
            break
        if with_offsets:
            offsets[row] = big_endian(run_at + position, np.int64) if address_bytes else base + position
        message_id = big_endian(frame + 8, np.int64)
        if with_ids:
            message_ids[row] = message_id
        if with_times:
            timed[row] = message_id >= 0
            timestamps[row] = ((message_id >> 22) + EPOCH_MS) * 1000
            without_time += message_id < 0
        if with_attributes:
            attributed[row] = has_attribute
            without_attribute += 1 - has_attribute
            if has_attribute:
                non_ascii |= copy_text(attributes_at + attribute_end, frame + HEADER_BYTES + 4, attribute_length)
                attribute_end += attribute_length
            attribute_ends[row + 1] = attribute_end
        if with_values:
            copy(values_at + value_end, frame + HEADER_BYTES + skipped, size)
            value_end += size
            value_ends[row + 1] = value_end
        row += 1
        position = header + HEADER_BYTES + length
    state[POSITION], state[ROW] = position, row
    state[VALUE_BYTES], state[ATTRIBUTE_BYTES] = value_end, attribute_end
    state[WITHOUT_TIME] += without_time
    state[WITHOUT_ATTRIBUTE] += without_attribute
    state[NON_ASCII] |= non_ascii
    return status


@numba.njit(inline="always")
def _fingerprint(head, flag):
    mixed = (np.uint64(head) ^ (np.uint64(flag) << np.uint64(63))) * FINGERPRINT_MULTIPLIERS[0]
    mixed = (mixed ^ (mixed >> np.uint64(32))) * FINGERPRINT_MULTIPLIERS[1]
    return np.int64(mixed ^ (mixed >> np.uint64(29)))


@compiled
def encode_frames(rows, crc_address, tables, state, value_ends, values, attributed, attribute_ends, attributes, block):
    """Write the frames of ``rows[state[ROW]:]`` to ``block`` from ``state[POSITION]`` on, with message id 0.

    ``attributed`` has one byte a row, or none at all when no row has an attribute.
    """
    position, index, fingerprint = state[POSITION], state[ROW], state[FINGERPRINT]
    status, to = DONE, block.ctypes.data
    values_at, attributes_at, tables_at = values.ctypes.data, attributes.ctypes.data, tables.ctypes.data
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
        value = values_at + value_ends[row]
        if has_attribute:
            put_big_endian(to + body, np.int32(attribute_length))
            copy(to + body + 4, attributes_at + attribute_ends[row], attribute_length)
            copy(to + body + 4 + attribute_length, value, size)
            crc = crc32(to + body, length, crc_address, tables_at)
        else:
            # Computed over the column, not the copy: loading bytes just stored in other widths stalls the core.
            crc = crc32(value, size, crc_address, tables_at)
            copy(to + body, value, size)
        head = length << 32 | np.int64(crc & CHECKSUM_MASK)
        fingerprint += _fingerprint(head, has_attribute)
        put_big_endian(to + position, head)
        put_big_endian(to + position + 8, np.int64(0))
        put_big_endian(to + position + 16, np.int32(1 if has_attribute else 0))
        position = body + length
        index += 1
    state[POSITION], state[ROW], state[FINGERPRINT] = position, index, fingerprint
    return status


@compiled
def hash_keys(ends, keys, crc_address, tables, hashes):
    """The CRC-32 of every key into ``hashes`` (int64, 0..2**32-1)."""
    keys_at, tables_at = keys.ctypes.data, tables.ctypes.data
    for row in range(len(hashes)):
        hashes[row] = crc32(keys_at + ends[row], ends[row + 1] - ends[row], crc_address, tables_at)


def first_call() -> None:
    """Make a first call: half of numba's start-up cost is in it, not in the import."""
    nothing, none = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    nothing.flags.writeable = False  # like the buffers of keys, so that no extra version is compiled
    hash_keys(none, nothing, crc32_address(), CRC_TABLES, none)
