"""The compiled loops between RocketMQ's records and columns; see ``metaq_spark.columns.kernels`` for what such loops are.

A record (big-endian; a host is 8 bytes, or 20 with an IPv6 address, as ``sysFlag`` says)::

    0 totalSize i32 | 4 magic i32 | 8 bodyCRC i32 | 12 queueId i32 | 16 flag i32 | 20 queueOffset i64
    28 physicalOffset i64 | 36 sysFlag i32 | 40 bornTimestamp i64 | 48 bornHost | storeTimestamp i64 | storeHost
    reconsumeTimes i32 | preparedTransactionOffset i64 | bodyLength i32, body
    topicLength i8 (v2: i16), topic | propertiesLength i16, properties

An element of a batch that is sent::

    totalSize i32 | magic i32 = 0 | bodyCRC i32 = 0 | flag i32 | bodyLength i32, body | propertiesLength i16, properties

Properties are ``name 0x01 value 0x02 ...``, with or without the last 0x02.

A loop gets its columns as a table of addresses, because numba looks at every array that it is given, and a pull brings
32 messages: the places ``*_AT`` below. A column that is not wanted has address 0.
"""

# mypy: ignore-errors
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from metaq_spark.columns.addresses import (
    big_endian,
    compiled,
    copy,
    copy_text,
    crc32,
    int32_at,
    load,
    put_big_endian,
    store,
)

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
SMALLEST_RECORD: Final = 91
"""Bytes of a record with IPv4 hosts and neither body, topic nor properties."""

COMPRESSED: Final = 0x01
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
UNREADABLE: Final = 0xC0
"""Flags of 5.x for a record whose body is a batch of messages."""

CHECKSUM_MASK: Final = np.uint32(0x7FFFFFFF)
TIME_MS_MAX: Final = 253402300799999
"""The last millisecond of the year 9999, which is as far as Spark's timestamps go in practice."""

DONE: Final = 0
FULL: Final = 1
BODY_COMPRESSED: Final = 2
GAP: Final = 3
BAD_LENGTH: Final = 4
BAD_MAGIC: Final = 5
BAD_TOPIC: Final = 6
BAD_QUEUE: Final = 7
BAD_OFFSET: Final = 8
BAD_CHECKSUM: Final = 9
BAD_KIND: Final = 10
BAD_PROPERTY: Final = 11
LONG_PROPERTIES: Final = 12
"""What a loop returns; ``state`` says where it stopped.

``FULL``: the columns have no space for the record or row. ``BODY_COMPRESSED``: the body has to be decompressed first.
``GAP``: the record's queue offset is behind the one expected.
"""

(
    POSITION,  # of the record or row in its input
    ROW,  # rows that the columns have
    VALUE_BYTES,
    NEXT,  # queue offset of the next record
    END,  # queue offset to stop before
    NEEDED,  # bytes of a value that found no space
    RECORD_OFFSET,  # queue offset of the record at POSITION
    BODY_AT,  # of a compressed body: where it begins in the run, ...
    BODY_BYTES,  # ... its length, ...
    SYS_FLAG,  # ... and the record's sysFlag
    INFLATED_AT,  # address of that body decompressed, 0 = there is none
    INFLATED_BYTES,
    DENSE,  # whether a GAP is told
    QUEUE_ID,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    TEXT_BYTES_MAX,  # of each text column
    PAIRS_MAX,  # of the column of properties
    KEY_BYTES,
    ID_BYTES,
    TAG_BYTES,
    OFFSET_ID_BYTES,
    HOST_BYTES,
    PAIRS,
    NAME_BYTES,
    PROPERTY_BYTES,
    WITHOUT_KEYS,
    WITHOUT_ID,
    WITHOUT_TAGS,
    WITHOUT_BORN,
    WITHOUT_STORED,
    NON_ASCII_KEYS,
    NON_ASCII_ID,
    NON_ASCII_TAGS,
    NON_ASCII_NAMES,
    NON_ASCII_PROPERTIES,
    STATE_SIZE,
) = range(37)

(
    OFFSETS_AT,
    BORN_AT,
    BORN_PRESENT_AT,
    STORED_AT,
    STORED_PRESENT_AT,
    RECONSUMED_AT,
    FLAGS_AT,
    VALUE_ENDS_AT,
    VALUES_AT,
    KEY_ENDS_AT,
    KEYS_AT,
    KEYS_PRESENT_AT,
    ID_ENDS_AT,
    IDS_AT,
    IDS_PRESENT_AT,
    TAG_ENDS_AT,
    TAGS_AT,
    TAGS_PRESENT_AT,
    OFFSET_ID_ENDS_AT,
    OFFSET_IDS_AT,
    HOST_ENDS_AT,
    HOSTS_AT,
    PAIR_ENDS_AT,
    NAME_ENDS_AT,
    NAMES_AT,
    PROPERTY_ENDS_AT,
    PROPERTIES_AT,
    PARSED_AT,
    TABLE_SIZE,
) = range(29)

PARSED_WIDTH: Final = 4
"""Numbers of a pair in the scratch memory: name at, name length, value at, value length."""

PROPERTIES_MAX: Final = 32767
PAIRS_OF_RECORD_MAX: Final = PROPERTIES_MAX // 3 + 1

_UNIQ_KEY: Final = np.int64(int.from_bytes(b"UNIQ_KEY"))
_KEYS: Final = np.int32(int.from_bytes(b"KEYS"))
_TAGS: Final = np.int32(int.from_bytes(b"TAGS"))


@numba.njit(inline="always")
def _same(one, other, length):
    """Whether the bytes at two addresses are the same."""
    for k in range(length):
        if load(one + k, np.uint8) != load(other + k, np.uint8):
            return False
    return True


@numba.njit(inline="always")
def _put_end(table, row, end):
    """``end`` behind row ``row`` into a column of Arrow's int32 offsets."""
    store(table + 4 * (row + 1), np.int32(end))


@numba.njit
def _parse(at, length, parsed):
    """Write the pairs of a properties string to ``parsed``, each name once with its last value; how many there are.

    A pair without a name or a value counts for nothing.
    """
    count, end = 0, at + length
    while at < end:
        split, stop = np.int64(-1), at
        while stop < end:
            byte = load(stop, np.uint8)
            if byte == 2:
                break
            if byte == 1 and split < 0:
                split = stop
            stop += 1
        if split > at and stop > split + 1:
            name_length, place = split - at, 0
            while place < count:
                known = parsed + 8 * PARSED_WIDTH * place
                if load(known + 8, np.int64) == name_length and _same(load(known, np.int64), at, name_length):
                    break
                place += 1
            entry = parsed + 8 * PARSED_WIDTH * place
            if place == count:
                store(entry, np.int64(at))
                store(entry + 8, np.int64(name_length))
                count += 1
            store(entry + 16, np.int64(split + 1))
            store(entry + 24, np.int64(stop - split - 1))
        at = stop + 1
    return count


@numba.njit(inline="always")
def _put_text(table, state, ends, texts, present, used, without, non_ascii, row, at, length):
    """Put a text, or null if its length is 0, into a column that the other arguments are the places of."""
    if length:
        state[non_ascii] |= copy_text(table[texts] + state[used], at, length)
        state[used] += length
    else:
        state[without] += 1
    store(table[present] + row, np.uint8(length > 0))
    _put_end(table[ends], row, state[used])


@numba.njit(inline="always")
def _put_time(table, state, column, present, without, row, time_ms):
    known = 0 <= time_ms <= TIME_MS_MAX
    store(table[column] + 8 * row, np.int64(time_ms * 1000 if known else 0))
    store(table[present] + row, np.uint8(known))
    state[without] += not known


@numba.njit(inline="always")
def _put_hexadecimal(to, at, length):
    """Write bytes as upper-case digits, two each."""
    for k in range(length):
        byte = load(at + k, np.uint8)
        for place, digit in ((0, byte >> np.uint8(4)), (1, byte & np.uint8(15))):
            store(to + 2 * k + place, np.uint8(digit + 48 if digit < 10 else digit + 55))


@numba.njit(inline="always")
def _put_properties(table, state, row, at, length):
    """The columns that are made of the properties."""
    parsed = table[PARSED_AT]
    count = _parse(at, length, parsed)
    keys_at = id_at = tag_at = keys_bytes = id_bytes = tag_bytes = np.int64(0)
    for k in range(count):
        entry = parsed + 8 * PARSED_WIDTH * k
        name, size = load(entry, np.int64), load(entry + 8, np.int64)
        value, value_bytes = load(entry + 16, np.int64), load(entry + 24, np.int64)
        if size == 4 and big_endian(name, np.int32) == _KEYS:
            keys_at, keys_bytes = value, value_bytes
        elif size == 4 and big_endian(name, np.int32) == _TAGS:
            tag_at, tag_bytes = value, value_bytes
        elif size == 8 and big_endian(name, np.int64) == _UNIQ_KEY:
            id_at, id_bytes = value, value_bytes
        if table[NAMES_AT]:
            state[NON_ASCII_NAMES] |= copy_text(table[NAMES_AT] + state[NAME_BYTES], name, size)
            state[NON_ASCII_PROPERTIES] |= copy_text(table[PROPERTIES_AT] + state[PROPERTY_BYTES], value, value_bytes)
            state[NAME_BYTES] += size
            state[PROPERTY_BYTES] += value_bytes
            _put_end(table[NAME_ENDS_AT], state[PAIRS], state[NAME_BYTES])
            _put_end(table[PROPERTY_ENDS_AT], state[PAIRS], state[PROPERTY_BYTES])
            state[PAIRS] += 1
    if table[NAMES_AT]:
        _put_end(table[PAIR_ENDS_AT], row, state[PAIRS])
    if table[KEYS_AT]:
        _put_text(
            table, state, KEY_ENDS_AT, KEYS_AT, KEYS_PRESENT_AT, KEY_BYTES, WITHOUT_KEYS, NON_ASCII_KEYS, row,
            keys_at, keys_bytes,
        )  # fmt: skip
    if table[IDS_AT]:
        _put_text(
            table, state, ID_ENDS_AT, IDS_AT, IDS_PRESENT_AT, ID_BYTES, WITHOUT_ID, NON_ASCII_ID, row, id_at, id_bytes
        )
    if table[TAGS_AT]:
        _put_text(
            table, state, TAG_ENDS_AT, TAGS_AT, TAGS_PRESENT_AT, TAG_BYTES, WITHOUT_TAGS, NON_ASCII_TAGS, row,
            tag_at, tag_bytes,
        )  # fmt: skip


@numba.njit(inline="always")
def _has_space(table, state, properties_bytes):
    """Whether the columns, but that of values, can take another record."""
    return (
        state[ROW] < state[ROWS_MAX]
        and max(
            state[KEY_BYTES], state[ID_BYTES], state[TAG_BYTES], state[NAME_BYTES], state[PROPERTY_BYTES],
            state[OFFSET_ID_BYTES] + 56 - properties_bytes, state[HOST_BYTES] + 20 - properties_bytes,
        ) + properties_bytes <= state[TEXT_BYTES_MAX]
        and state[PAIRS] + properties_bytes // 3 + 1 <= state[PAIRS_MAX]
    )  # fmt: skip


@compiled
def decode_records(run, topic, crc_address, tables, table, state):
    """Put the records of ``run`` from ``state[POSITION]`` on into the columns of ``table``.

    Every record is checked: its lengths, magic, topic, queue, offset and checksum. Stops at the end offset as well.
    """
    run_at, topic_at, tables_at = run.ctypes.data, topic.ctypes.data, tables.ctypes.data
    while state[POSITION] < len(run):
        record, left = run_at + state[POSITION], len(run) - state[POSITION]
        state[RECORD_OFFSET] = big_endian(record + 20, np.int64) if left >= 28 else -1
        size = int32_at(record) if left >= SMALLEST_RECORD else np.int64(0)
        if size < SMALLEST_RECORD or size > left:
            return BAD_LENGTH
        magic, sys_flag = int32_at(record + 4), int32_at(record + 36)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            return BAD_MAGIC
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
        host_bytes = 20 if sys_flag & STORE_HOST_V6 else 8
        stored_at = record + 48 + born_bytes
        behind = stored_at + 8 + host_bytes
        end = record + size
        width = 2 if magic == MAGIC_V2 else 1
        if behind + 16 + width + 2 > end:
            return BAD_LENGTH
        body, body_bytes = behind + 16, int32_at(behind + 12)
        if body_bytes < 0 or body + body_bytes + width + 2 > end:
            return BAD_LENGTH
        name = body + body_bytes + width
        name_bytes = np.int64(big_endian(name - 2, np.int16) if width == 2 else load(name - 1, np.int8))
        if name_bytes < 0 or name + name_bytes + 2 > end:
            return BAD_LENGTH
        properties = name + name_bytes + 2
        properties_bytes = np.int64(big_endian(properties - 2, np.int16))
        if properties_bytes < 0 or properties + properties_bytes > end:
            return BAD_LENGTH
        if name_bytes != len(topic) or not _same(name, topic_at, name_bytes):
            return BAD_TOPIC
        if int32_at(record + 12) != state[QUEUE_ID]:
            return BAD_QUEUE
        offset = state[RECORD_OFFSET]
        if offset < state[NEXT]:
            return BAD_OFFSET
        if offset >= state[END]:
            state[POSITION] = len(run)
            return DONE
        if offset > state[NEXT] and state[DENSE]:
            return GAP
        stored_crc = np.uint32(int32_at(record + 8)) & CHECKSUM_MASK
        if crc32(body, body_bytes, crc_address, tables_at) & CHECKSUM_MASK != stored_crc:
            return BAD_CHECKSUM
        if sys_flag & UNREADABLE:
            return BAD_KIND
        value, value_bytes = body, body_bytes
        if sys_flag & COMPRESSED and table[VALUES_AT]:
            if not state[INFLATED_AT]:
                state[BODY_AT], state[BODY_BYTES], state[SYS_FLAG] = body - run_at, body_bytes, sys_flag
                return BODY_COMPRESSED
            value, value_bytes = state[INFLATED_AT], state[INFLATED_BYTES]
        if not _has_space(table, state, properties_bytes):
            state[NEEDED] = value_bytes
            return FULL
        row = state[ROW]
        if table[VALUES_AT]:
            if state[VALUE_BYTES] + value_bytes > state[VALUE_BYTES_MAX]:
                state[NEEDED] = value_bytes
                return FULL
            copy(table[VALUES_AT] + state[VALUE_BYTES], value, value_bytes)
            state[VALUE_BYTES] += value_bytes
            _put_end(table[VALUE_ENDS_AT], row, state[VALUE_BYTES])
        state[INFLATED_AT] = 0
        if table[OFFSETS_AT]:
            store(table[OFFSETS_AT] + 8 * row, offset)
        if table[BORN_AT]:
            _put_time(
                table, state, BORN_AT, BORN_PRESENT_AT, WITHOUT_BORN, row, big_endian(record + 40, np.int64)
            )
        if table[STORED_AT]:
            _put_time(
                table, state, STORED_AT, STORED_PRESENT_AT, WITHOUT_STORED, row, big_endian(stored_at, np.int64)
            )
        if table[RECONSUMED_AT]:
            store(table[RECONSUMED_AT] + 4 * row, np.int32(int32_at(behind)))
        if table[FLAGS_AT]:
            store(table[FLAGS_AT] + 4 * row, np.int32(int32_at(record + 16)))
        if table[HOSTS_AT]:
            copy(table[HOSTS_AT] + state[HOST_BYTES], record + 48, born_bytes)
            state[HOST_BYTES] += born_bytes
            _put_end(table[HOST_ENDS_AT], row, state[HOST_BYTES])
        if table[OFFSET_IDS_AT]:
            to = table[OFFSET_IDS_AT] + state[OFFSET_ID_BYTES]
            _put_hexadecimal(to, stored_at + 8, host_bytes)
            _put_hexadecimal(to + 2 * host_bytes, record + 28, 8)
            state[OFFSET_ID_BYTES] += 2 * host_bytes + 16
            _put_end(table[OFFSET_ID_ENDS_AT], row, state[OFFSET_ID_BYTES])
        if table[PARSED_AT]:
            _put_properties(table, state, row, properties, properties_bytes)
        state[ROW] = row + 1
        state[NEXT] = offset + 1
        state[POSITION] += size
    return DONE


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
"""Brokers count what they add to the properties; this is what all of them take."""


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
    """Write ``name`` (a number of ``name_bytes`` bytes), the text, and what separates them; where that ends, and
    whether the text has a separator in it."""
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
    """Address and length of a row's text; no length if it is null, or there is no such column."""
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
