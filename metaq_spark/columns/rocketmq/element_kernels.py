"""The compiled loop from columns to the elements of RocketMQ's batches.

An element (big-endian)::

    totalSize i32 | magic i32 = 0 | bodyCRC i32 = 0 | flag i32 | bodyLength i32, body | propertiesLength i16, properties

Properties are ``name 0x01 value 0x02 ...``. Columns are passed as a table of addresses, as in ``record_kernels``.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, var-annotated"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from metaq.compiled.addresses import compiled, copy, load, put_big_endian, store

DONE: Final = 0
FULL: Final = 1
BAD_PROPERTY: Final = 2
LONG_PROPERTIES: Final = 3
"""Status codes of the loop. ``FULL``: the block has no space for the row at ``state[ROW]``."""

POSITION, ROW, NEEDED, STATE_SIZE = range(4)
"""Places in ``state``: bytes that the block has, rows that are done, and the bytes that were too many."""

_UNIQ_KEY: Final = np.int64(int.from_bytes(b"UNIQ_KEY"))
_KEYS: Final = np.int32(int.from_bytes(b"KEYS"))
_TAGS: Final = np.int32(int.from_bytes(b"TAGS"))

(
    IN_VALUE_ENDS_AT,  # int64 ends, one more than rows, and bytes, as of ``VariableColumn``
    IN_VALUES_AT,
    IN_TAG_ENDS_AT,
    IN_TAGS_AT,
    IN_TAGS_PRESENT_AT,
    IN_KEY_ENDS_AT,
    IN_KEYS_AT,
    IN_KEYS_PRESENT_AT,
    IN_PAIR_ENDS_AT,
    IN_PAIRS_WANTED_AT,
    IN_NAME_ENDS_AT,
    IN_NAMES_AT,
    IN_PROPERTY_ENDS_AT,
    IN_PROPERTIES_AT,
    IN_PREFIX_AT,  # the first digits of every UNIQ_KEY
    IN_TABLE_SIZE,
) = range(16)

ELEMENT_BYTES: Final = 22
"""Bytes of an element beside body and properties."""

KEY_PREFIX_DIGITS: Final = 20
ROW_DIGITS: Final = 12
"""A UNIQ_KEY is a prefix and the number of the row; see ``metaq_spark.columns.rocketmq.unique_keys``."""

CLIENT_PROPERTIES_MAX: Final = 32000
"""Limit that all brokers accept; they also count the properties that they add."""


@numba.njit
def _put_clean(to, at, length):
    """Copy a text; whether it has one of the two bytes that separate properties."""
    copy(to, at, length)
    found = False
    for k in range(length):
        byte = load(at + k, np.uint8)
        found |= (byte == 1) | (byte == 2)
    return found


@numba.njit(inline="always")
def _span(ends, row):
    start = load(ends + 8 * row, np.int64)
    return start, load(ends + 8 * row + 8, np.int64) - start


@numba.njit(inline="always")
def _put_named(to, name, name_bytes, at, length):
    """Write ``name`` (a number of ``name_bytes`` bytes), separators and the text; return the end, and whether the text
    contains a separator.
    """
    if name_bytes == 4:
        put_big_endian(to, np.int32(name))
    else:
        put_big_endian(to, np.int64(name))
    store(to + name_bytes, np.uint8(1))
    unclean = _put_clean(to + name_bytes + 1, at, length)
    store(to + name_bytes + 1 + length, np.uint8(2))
    return to + name_bytes + 2 + length, unclean


@numba.njit(inline="always")
def _put_unique_key(to, prefix_at, number):
    put_big_endian(to, np.int64(_UNIQ_KEY))
    store(to + 8, np.uint8(1))
    copy(to + 9, prefix_at, KEY_PREFIX_DIGITS)
    for k in range(ROW_DIGITS):
        digit = np.uint8(number >> np.int64(4 * (ROW_DIGITS - 1 - k)) & 15)
        store(to + 9 + KEY_PREFIX_DIGITS + k, np.uint8(digit + 48 if digit < 10 else digit + 55))
    store(to + 9 + KEY_PREFIX_DIGITS + ROW_DIGITS, np.uint8(2))
    return to + 10 + KEY_PREFIX_DIGITS + ROW_DIGITS


@numba.njit(inline="always")
def _pairs_bytes(table, row):
    """Bytes of the row's own properties, with separators."""
    total = np.int64(0)
    start, count = _span(table[IN_PAIR_ENDS_AT], row)
    for pair in range(start, start + count):
        if load(table[IN_PAIRS_WANTED_AT] + pair, np.uint8):
            total += _span(table[IN_NAME_ENDS_AT], pair)[1] + _span(table[IN_PROPERTY_ENDS_AT], pair)[1] + 2
    return total


@numba.njit(inline="always")
def _put_pairs(table, row, to):
    unclean = False
    start, count = _span(table[IN_PAIR_ENDS_AT], row)
    for pair in range(start, start + count):
        if load(table[IN_PAIRS_WANTED_AT] + pair, np.uint8):
            name, size = _span(table[IN_NAME_ENDS_AT], pair)
            unclean |= _put_clean(to, table[IN_NAMES_AT] + name, size)
            store(to + size, np.uint8(1))
            to += size + 1
            value, size = _span(table[IN_PROPERTY_ENDS_AT], pair)
            unclean |= _put_clean(to, table[IN_PROPERTIES_AT] + value, size)
            store(to + size, np.uint8(2))
            to += size + 1
    return to, unclean


@numba.njit(inline="always")
def _text_of_row(table, ends, texts, present, row):
    """Return address and length of a row's text; length 0 if it is null, or the column is missing."""
    if not table[texts] or not load(table[present] + row, np.uint8):
        return np.int64(0), np.int64(0)
    start, length = _span(table[ends], row)
    return table[texts] + start, length


@compiled
def encode_elements(rows, first_row, table, state, block):
    """Write the batch elements of ``rows[state[ROW]:]`` to ``block`` from ``state[POSITION]`` on.

    The number in a row's UNIQ_KEY is ``first_row`` plus its index.
    """
    to = block.ctypes.data
    while state[ROW] < len(rows):
        row = rows[state[ROW]]
        value, value_bytes = _span(table[IN_VALUE_ENDS_AT], row)
        tag, tag_bytes = _text_of_row(table, IN_TAG_ENDS_AT, IN_TAGS_AT, IN_TAGS_PRESENT_AT, row)
        keys, keys_bytes = _text_of_row(table, IN_KEY_ENDS_AT, IN_KEYS_AT, IN_KEYS_PRESENT_AT, row)
        properties_bytes = np.int64(10 + KEY_PREFIX_DIGITS + ROW_DIGITS)
        properties_bytes += tag_bytes + 6 if tag_bytes else 0
        properties_bytes += keys_bytes + 6 if keys_bytes else 0
        if table[IN_NAMES_AT]:
            properties_bytes += _pairs_bytes(table, row)
        if properties_bytes > CLIENT_PROPERTIES_MAX:
            state[NEEDED] = properties_bytes
            return LONG_PROPERTIES
        size = ELEMENT_BYTES + value_bytes + properties_bytes
        element = to + state[POSITION]
        if state[POSITION] + size > len(block):
            state[NEEDED] = size
            return FULL
        put_big_endian(element, np.int32(size))
        put_big_endian(element + 4, np.int64(0))
        put_big_endian(element + 12, np.int32(0))
        put_big_endian(element + 16, np.int32(value_bytes))
        copy(element + 20, table[IN_VALUES_AT] + value, value_bytes)
        at = element + 20 + value_bytes
        put_big_endian(at, np.int16(properties_bytes))
        at = _put_unique_key(at + 2, table[IN_PREFIX_AT], first_row + row)
        unclean = False
        if tag_bytes:
            at, found = _put_named(at, _TAGS, 4, tag, tag_bytes)
            unclean |= found
        if keys_bytes:
            at, found = _put_named(at, _KEYS, 4, keys, keys_bytes)
            unclean |= found
        if table[IN_NAMES_AT]:
            at, found = _put_pairs(table, row, at)
            unclean |= found
        if unclean:
            return BAD_PROPERTY
        state[POSITION] += size
        state[ROW] += 1
    return DONE
