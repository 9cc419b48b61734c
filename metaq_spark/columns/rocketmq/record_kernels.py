"""The compiled loop from RocketMQ's records to columns; ``metaq_spark.columns.kernels`` describes such loops.

A record (big-endian; a host is 8 bytes, or 20 with an IPv6 address, as ``sysFlag`` says)::

    0 totalSize i32 | 4 magic i32 | 8 bodyCRC i32 | 12 queueId i32 | 16 flag i32 | 20 queueOffset i64
    28 physicalOffset i64 | 36 sysFlag i32 | 40 bornTimestamp i64 | 48 bornHost | storeTimestamp i64 | storeHost
    reconsumeTimes i32 | preparedTransactionOffset i64 | bodyLength i32, body
    topicLength i8 (v2: i16), topic | propertiesLength i16, properties

Properties are ``name 0x01 value 0x02 ...``, with or without the last 0x02.

A loop gets its columns as a table of addresses (positions ``*_AT`` below), because numba unpacks every array argument,
and a pull has only 32 messages. An unselected column has address 0.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, var-annotated"
# numba compiles these functions, and has no types for mypy.

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from metaq.compiled.addresses import (
    big_endian,
    compiled,
    copy,
    copy_text,
    crc32,
    int32_at,
    load,
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
"""The last millisecond of the year 9999, the practical limit of Spark's timestamps."""

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
AT_END: Final = 11
UNUSUAL: Final = 12
"""Status codes of the loop; ``state`` has the position.

``FULL``: the columns have no space for the record. ``BODY_COMPRESSED``: the body must be decompressed first. ``GAP``:
the record's queue offset is above the one expected. ``UNUSUAL``: the frame needs other code.
"""

(
    POSITION,  # of the record in the run
    ROW,  # rows that the columns have
    VALUE_BYTES,
    NEXT,  # queue offset of the next record
    END,  # queue offset to stop before
    NEEDED,  # bytes of a value that found no space
    RECORD_OFFSET,  # queue offset of the record at POSITION
    BODY_AT,  # of a compressed body: where it begins in the run, ...
    BODY_BYTES,  # ... its length, ...
    SYS_FLAG,  # ... and the record's sysFlag
    INFLATED_AT,  # address of the decompressed body, 0 = none
    INFLATED_BYTES,
    DENSE,  # whether a GAP is reported
    QUEUE_ID,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    TEXT_BYTES_MAX,  # of each text column
    PAIRS_MAX,  # of the column of properties
    KEYS_BYTES,
    MESSAGE_ID_BYTES,
    TAGS_BYTES,
    OFFSET_MESSAGE_ID_BYTES,
    BORN_HOST_BYTES,
    PAIRS,
    NAME_BYTES,
    PROPERTY_BYTES,
    WITHOUT_KEYS,
    WITHOUT_MESSAGE_ID,
    WITHOUT_TAGS,
    WITHOUT_BORN_TIMESTAMP,
    WITHOUT_STORE_TIMESTAMP,
    NON_ASCII_KEYS,
    NON_ASCII_MESSAGE_ID,
    NON_ASCII_TAGS,
    NON_ASCII_NAMES,
    NON_ASCII_PROPERTIES,
    STATE_SIZE,
) = range(37)

(
    QUEUE_OFFSET_AT,
    BORN_TIMESTAMP_AT,
    BORN_TIMESTAMP_PRESENT_AT,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_PRESENT_AT,
    RECONSUME_TIMES_AT,
    FLAG_AT,
    BORN_HOST_ENDS_AT,
    BORN_HOST_AT,
    OFFSET_MESSAGE_ID_ENDS_AT,
    OFFSET_MESSAGE_ID_AT,
    VALUE_ENDS_AT,
    VALUE_AT,
    KEYS_ENDS_AT,
    KEYS_AT,
    KEYS_PRESENT_AT,
    MESSAGE_ID_ENDS_AT,
    MESSAGE_ID_AT,
    MESSAGE_ID_PRESENT_AT,
    TAGS_ENDS_AT,
    TAGS_AT,
    TAGS_PRESENT_AT,
    PAIR_ENDS_AT,
    NAME_ENDS_AT,
    NAMES_AT,
    PROPERTY_ENDS_AT,
    PROPERTIES_AT,
    PARSED_AT,
    TABLE_SIZE,
) = range(29)
"""Places of the columns' addresses, named after the columns: ``AT``, and ``ENDS_AT`` of texts, ``PRESENT_AT`` where a
row may have no value. ``state`` has ``BYTES`` of texts, ``WITHOUT`` and ``NON_ASCII`` of the columns that need them."""

FIXED_COLUMNS: Final = (BORN_TIMESTAMP_AT, VALUE_ENDS_AT)
"""``range`` of the columns that ``put_fixed`` fills, except the queue offset."""

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
    for k in range(length):  # noqa: SIM110  a generator is nothing that numba compiles
        if load(one + k, np.uint8) != load(other + k, np.uint8):
            return False
    return True


@numba.njit(inline="always")
def put_end(table, row, end):
    """``end`` after row ``row`` into a column of Arrow's int32 offsets."""
    store(table + 4 * (row + 1), np.int32(end))


@numba.njit
def _parse(at, length, parsed):
    """Write the pairs of a properties string to ``parsed``, each name once with its last value; return their number.

    A pair without a name or a value is ignored.
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
    """Append a text, or null if its length is 0, to the column at the given positions of the table."""
    if length:
        state[non_ascii] |= copy_text(table[texts] + state[used], at, length)
        state[used] += length
    else:
        state[without] += 1
    store(table[present] + row, np.uint8(length > 0))
    put_end(table[ends], row, state[used])


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
def put_properties(table, state, row, at, length):
    """Fill the columns from the properties."""
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
            put_end(table[NAME_ENDS_AT], state[PAIRS], state[NAME_BYTES])
            put_end(table[PROPERTY_ENDS_AT], state[PAIRS], state[PROPERTY_BYTES])
            state[PAIRS] += 1
    if table[NAMES_AT]:
        put_end(table[PAIR_ENDS_AT], row, state[PAIRS])
    if table[KEYS_AT]:
        _put_text(
            table, state, KEYS_ENDS_AT, KEYS_AT, KEYS_PRESENT_AT, KEYS_BYTES, WITHOUT_KEYS, NON_ASCII_KEYS, row,
            keys_at, keys_bytes,
        )  # fmt: skip
    if table[MESSAGE_ID_AT]:
        _put_text(
            table,
            state,
            MESSAGE_ID_ENDS_AT,
            MESSAGE_ID_AT,
            MESSAGE_ID_PRESENT_AT,
            MESSAGE_ID_BYTES,
            WITHOUT_MESSAGE_ID,
            NON_ASCII_MESSAGE_ID,
            row,
            id_at,
            id_bytes,
        )
    if table[TAGS_AT]:
        _put_text(
            table, state, TAGS_ENDS_AT, TAGS_AT, TAGS_PRESENT_AT, TAGS_BYTES, WITHOUT_TAGS, NON_ASCII_TAGS, row,
            tag_at, tag_bytes,
        )  # fmt: skip


@numba.njit(inline="always")
def has_space(table, state, value_bytes, properties_bytes):
    """Whether the columns can take another record."""
    return (
        state[ROW] < state[ROWS_MAX]
        and (not table[VALUE_AT] or state[VALUE_BYTES] + value_bytes <= state[VALUE_BYTES_MAX])
        and max(
            state[KEYS_BYTES], state[MESSAGE_ID_BYTES], state[TAGS_BYTES], state[NAME_BYTES], state[PROPERTY_BYTES],
            state[OFFSET_MESSAGE_ID_BYTES] + 56 - properties_bytes, state[BORN_HOST_BYTES] + 20 - properties_bytes,
        ) + properties_bytes <= state[TEXT_BYTES_MAX]
        and state[PAIRS] + properties_bytes // 3 + 1 <= state[PAIRS_MAX]
    )  # fmt: skip


@numba.njit(inline="always")
def _look_at(record, left):
    """Return the layout of the record at an address with ``left`` bytes.

    Status, size, position of the fields after the hosts, position and length of the topic, and of the properties. Only
    the lengths and the magic are checked.
    """
    nothing = np.int64(0)
    size = int32_at(record) if left >= SMALLEST_RECORD else nothing
    if size < SMALLEST_RECORD or size > left:
        return BAD_LENGTH, size, nothing, nothing, nothing, nothing, nothing
    magic, sys_flag = int32_at(record + 4), int32_at(record + 36)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC, size, nothing, nothing, nothing, nothing, nothing
    width, end = 2 if magic == MAGIC_V2 else 1, record + size
    after_hosts = record + 56 + (20 if sys_flag & BORN_HOST_V6 else 8) + (20 if sys_flag & STORE_HOST_V6 else 8)
    body_bytes = int32_at(after_hosts + 12) if after_hosts + 18 + width <= end else np.int64(-1)
    topic = after_hosts + 16 + body_bytes + width
    if body_bytes < 0 or topic + 2 > end:
        return BAD_LENGTH, size, nothing, nothing, nothing, nothing, nothing
    topic_bytes = np.int64(big_endian(topic - 2, np.int16) if width == 2 else load(topic - 1, np.int8))
    properties = topic + topic_bytes + 2
    if topic_bytes < 0 or properties > end:
        return BAD_LENGTH, size, nothing, nothing, nothing, nothing, nothing
    properties_bytes = np.int64(big_endian(properties - 2, np.int16))
    status = DONE if 0 <= properties_bytes <= end - properties else BAD_LENGTH
    return status, size, after_hosts, topic, topic_bytes, properties, properties_bytes


@numba.njit(inline="always")
def _check(record, after_hosts, topic, topic_bytes, wanted_at, wanted_bytes, crc_address, tables_at, state):
    """Check that the record was requested, and its body's checksum; ``AT_END`` if it is after the requested ones."""
    if topic_bytes != wanted_bytes or not _same(topic, wanted_at, topic_bytes):
        return BAD_TOPIC
    if int32_at(record + 12) != state[QUEUE_ID]:
        return BAD_QUEUE
    offset = state[RECORD_OFFSET]
    if offset < state[NEXT]:
        return BAD_OFFSET
    if offset >= state[END]:
        return AT_END
    if offset > state[NEXT] and state[DENSE]:
        return GAP
    stored_crc = np.uint32(int32_at(record + 8)) & CHECKSUM_MASK
    if crc32(after_hosts + 16, int32_at(after_hosts + 12), crc_address, tables_at) & CHECKSUM_MASK != stored_crc:
        return BAD_CHECKSUM
    return BAD_KIND if int32_at(record + 36) & UNREADABLE else DONE


@numba.njit(inline="always")
def put_fixed(record, after_hosts, table, state, row):
    """The columns of numbers, times and hosts."""
    born_bytes = 20 if int32_at(record + 36) & BORN_HOST_V6 else 8
    host_bytes = after_hosts - record - 56 - born_bytes
    stored_at = record + 48 + born_bytes
    if table[QUEUE_OFFSET_AT]:
        store(table[QUEUE_OFFSET_AT] + 8 * row, state[RECORD_OFFSET])
    if table[BORN_TIMESTAMP_AT]:
        _put_time(
            table,
            state,
            BORN_TIMESTAMP_AT,
            BORN_TIMESTAMP_PRESENT_AT,
            WITHOUT_BORN_TIMESTAMP,
            row,
            big_endian(record + 40, np.int64),
        )
    if table[STORE_TIMESTAMP_AT]:
        _put_time(
            table,
            state,
            STORE_TIMESTAMP_AT,
            STORE_TIMESTAMP_PRESENT_AT,
            WITHOUT_STORE_TIMESTAMP,
            row,
            big_endian(stored_at, np.int64),
        )
    if table[RECONSUME_TIMES_AT]:
        store(table[RECONSUME_TIMES_AT] + 4 * row, np.int32(int32_at(after_hosts)))
    if table[FLAG_AT]:
        store(table[FLAG_AT] + 4 * row, np.int32(int32_at(record + 16)))
    if table[BORN_HOST_AT]:
        copy(table[BORN_HOST_AT] + state[BORN_HOST_BYTES], record + 48, born_bytes)
        state[BORN_HOST_BYTES] += born_bytes
        put_end(table[BORN_HOST_ENDS_AT], row, state[BORN_HOST_BYTES])
    if table[OFFSET_MESSAGE_ID_AT]:
        to = table[OFFSET_MESSAGE_ID_AT] + state[OFFSET_MESSAGE_ID_BYTES]
        _put_hexadecimal(to, stored_at + 8, host_bytes)
        _put_hexadecimal(to + 2 * host_bytes, record + 28, 8)
        state[OFFSET_MESSAGE_ID_BYTES] += 2 * host_bytes + 16
        put_end(table[OFFSET_MESSAGE_ID_ENDS_AT], row, state[OFFSET_MESSAGE_ID_BYTES])


@compiled
def decode_records(run, topic, crc_address, tables, table, state):
    """Append the records of ``run`` from ``state[POSITION]`` on to the columns of ``table``.

    Every record is checked: its lengths, magic, topic, queue, offset and checksum. Stops at the end offset as well.
    """
    run_at, wanted_at, tables_at = run.ctypes.data, topic.ctypes.data, tables.ctypes.data
    while state[POSITION] < len(run):
        record, left = run_at + state[POSITION], len(run) - state[POSITION]
        state[RECORD_OFFSET] = big_endian(record + 20, np.int64) if left >= 28 else -1
        status, size, after_hosts, name, name_bytes, properties, properties_bytes = _look_at(record, left)
        if status == DONE:
            status = _check(record, after_hosts, name, name_bytes, wanted_at, len(topic), crc_address, tables_at, state)
        if status == AT_END:
            state[POSITION] = len(run)
            return DONE
        if status != DONE:
            return status
        value, value_bytes, sys_flag = after_hosts + 16, int32_at(after_hosts + 12), int32_at(record + 36)
        if sys_flag & COMPRESSED and table[VALUE_AT]:
            if not state[INFLATED_AT]:
                state[BODY_AT], state[BODY_BYTES], state[SYS_FLAG] = value - run_at, value_bytes, sys_flag
                return BODY_COMPRESSED
            value, value_bytes = state[INFLATED_AT], state[INFLATED_BYTES]
        if not has_space(table, state, value_bytes, properties_bytes):
            state[NEEDED] = value_bytes
            return FULL
        row = state[ROW]
        if table[VALUE_AT]:
            copy(table[VALUE_AT] + state[VALUE_BYTES], value, value_bytes)
            state[VALUE_BYTES] += value_bytes
            put_end(table[VALUE_ENDS_AT], row, state[VALUE_BYTES])
        state[INFLATED_AT] = 0
        put_fixed(record, after_hosts, table, state, row)
        if table[PARSED_AT]:
            put_properties(table, state, row, properties, properties_bytes)
        state[ROW], state[NEXT] = row + 1, state[RECORD_OFFSET] + 1
        state[POSITION] += size
    return DONE


@compiled
def measure_records(run, topic, queue_id, start, end):
    """Check that the records of ``run`` are of ``topic`` and ``queue_id``, without checksums, and measure those with
    offsets in ``[start, end)``.

    Return the position of the first one, the position after the last one that was read, their number, and the first and
    the last offset (-1 if there are none); then the offset of an invalid record (-1 if there is none) and its fault, 0
    if there is none: 1 + the position of its status after ``BAD_LENGTH``.
    """
    run_at, topic_at, position = run.ctypes.data, topic.ctypes.data, np.int64(0)
    begin, count, first, last = np.int64(0), np.int64(0), np.int64(-1), np.int64(-1)
    while position < len(run):
        record, left = run_at + position, len(run) - position
        offset = big_endian(record + 20, np.int64) if left >= 28 else np.int64(-1)
        status, size, _, name, name_bytes, _, _ = _look_at(record, left)
        if status == DONE:
            if name_bytes != len(topic) or not _same(name, topic_at, name_bytes):
                status = BAD_TOPIC
            elif int32_at(record + 12) != queue_id:
                status = BAD_QUEUE
            elif offset <= last:
                status = BAD_OFFSET
        if status != DONE:
            return begin, position, count, first, last, offset, np.int64(1 + status - BAD_LENGTH)
        if offset >= end:
            break
        position += size
        last = offset
        if offset < start:
            begin = position
        else:
            first = offset if count == 0 else first
            count += 1
    return begin, position, count, first, last, np.int64(-1), np.int64(0)
