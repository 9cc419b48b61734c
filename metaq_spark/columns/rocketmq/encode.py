"""Encodes the rows of a record batch into elements of RocketMQ's batches.

``ElementEncoder`` holds the columns of one record batch and writes the elements of any selection of its rows, in the
order of the selection, after the elements of an open block. Every message gets a UNIQ_KEY that depends only on its
row. A message with a delay cannot be in a batch: it is a ``SingleMessage``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.formats.rocketmq.properties import RESERVED
from metaq.model import Buffer
from metaq_spark.columns.blocks import Bytes, EncodedBlock, OpenBlock
from metaq_spark.columns.encode import Int64s, VariableColumn
from metaq_spark.columns.engine import ColumnEngine, shared_engine
from metaq_spark.columns.rocketmq.plain import encode_element
from metaq_spark.columns.rocketmq.unique_keys import unique_key
from metaq_spark.errors import RowError

DELAY_LEVELS: Final = range(19)
"""0 means no delay; brokers have 18 levels by default, and treat a higher one as the highest."""

BODY_BYTES_MAX: Final = 4 << 20
"""Largest body that a broker takes unless it is configured otherwise; clients of other languages send no more."""

PROPERTIES_BYTES_MAX: Final = 32000
"""Limit that all brokers accept; they also count the properties that they add."""

_BESIDE_THE_VALUE: Final = 64
"""Size of a message without properties, beyond its value."""

_SEPARATORS: Final = (
    "a tag, a key or a property has one of the characters U+0001 and U+0002, which separate them in a message"
)

_EMPTY: Final = (
    "a property has an empty name or an empty value, which a message cannot carry; leave it out, or make it null"
)

_BARS: Final = "||"
_NO_BARS: Final = "|| stands between the tags of a subscription, so that no consumer could ask for it"


@dataclass(frozen=True, slots=True)
class PropertyColumn:
    """A column of maps as buffers: row i has the pairs ``ends[i]:ends[i + 1]``; the ``wanted`` ones are written."""

    ends: Int64s
    wanted: Bytes
    names: VariableColumn
    values: VariableColumn

    @classmethod
    def of(cls, array: pa.MapArray) -> PropertyColumn:
        """The buffers of a map array, sliced or not. A null map has no pairs."""
        ends = np.asarray(array.offsets).astype(np.int64)
        names, values = array.keys, array.items
        encoded = names.dictionary_encode()
        free = np.array([name not in RESERVED for name in encoded.dictionary.to_pylist()], dtype=np.bool_)
        wanted = np.array(values.is_valid())
        if len(free):
            wanted = wanted & free[np.asarray(encoded.indices)]
        if array.null_count:  # a null map may have pairs hidden below it
            hidden = np.repeat(~np.asarray(array.is_valid()), np.diff(ends))
            wanted[ends[0] : ends[-1]] &= ~hidden
        return cls(ends, wanted.astype(np.uint8), VariableColumn.of(names), VariableColumn.of(values))

    def row_with_empty(self) -> int | None:
        """Return the first row with a wanted pair whose name or value is empty."""
        empty = (np.diff(self.names.ends) == 0) | (np.diff(self.values.ends) == 0)
        faulty = np.flatnonzero(empty & (self.wanted != 0))
        inside = faulty[(faulty >= self.ends[0]) & (faulty < self.ends[-1])]
        return int(np.searchsorted(self.ends, inside[0], side="right")) - 1 if len(inside) else None


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a record batch that become messages. ``value`` has no nulls; nulls elsewhere mean no value.

    ``keys``: strings, or lists of strings. ``delays``: int32, from 0 on.
    """

    value: pa.Array
    tags: pa.Array | None = None
    keys: pa.Array | None = None
    properties: pa.MapArray | None = None
    delays: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class SingleMessage(EncodedBlock):
    """A single element that must be sent alone."""


@dataclass(frozen=True, slots=True)
class Element:
    body: bytes
    properties: bytes

    @classmethod
    def of(cls, raw: Buffer) -> Element:
        """Read an element that this module made."""
        data = bytes(raw)
        length = struct.unpack_from(">i", data, 16)[0]
        return cls(data[20 : 20 + length], data[22 + length :])


class ElementEncoder:
    """Encodes rows of one batch. Row ``i`` is row ``first_row + i`` of the task whose keys begin with ``prefix``.

    ``place`` names the task's input in errors. ``value_bytes_max`` returns the brokers' limit, and is called if a value
    exceeds the limit of all brokers.
    """

    def __init__(
        self,
        columns: RowColumns,
        prefix: bytes,
        first_row: int,
        place: str,
        engine: ColumnEngine | None = None,
        value_bytes_max: Callable[[], int] = lambda: BODY_BYTES_MAX,
    ) -> None:
        self._value_bytes_max: Callable[[], int] | None = value_bytes_max
        self._value, self._prefix, self._first_row, self._place = columns.value, prefix, first_row, place
        self._tags, self._keys = columns.tags, _joined(columns.keys)
        self._delays = None if columns.delays is None else np.asarray(columns.delays.fill_null(0)).astype(np.int64)
        self._properties = None if columns.properties is None else PropertyColumn.of(columns.properties)
        self._property_maps = columns.properties
        self._check()
        self._kernels = (engine or shared_engine()).kernels_for(columns.value.nbytes)
        if self._kernels is not None:
            self._lay_out()

    def append(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        """Append the elements of ``rows`` to ``block``, and yield a block each time that it is full.

        Messages with a delay are yielded one by one. At the end, ``block`` holds the rest.

        Raises:
            RowError: A row's value or properties are too long, or have invalid characters.
        """
        self._check_sizes()
        if self._delays is not None:
            delayed = self._delays[rows] > 0
            for row in rows[delayed]:
                yield SingleMessage(memoryview(self._element(int(row))), 1, 0)
            rows = rows[~delayed]
        if self._kernels is None:
            yield from self._append_plain(rows, block)
        else:
            yield from self._append_compiled(rows, block)

    def _check_sizes(self) -> None:
        """Check once, when the brokers of the rows are known, whether they accept all values."""
        ask, self._value_bytes_max = self._value_bytes_max, None
        if ask is None or self._value.nbytes <= BODY_BYTES_MAX:
            return
        sizes = np.diff(VariableColumn.of(self._value).ends)
        if sizes.max() > BODY_BYTES_MAX and sizes.max() > (limit := ask()):
            first = int(np.argmax(sizes > limit))
            raise self._refused(first, _too_large(int(sizes[first]), limit))

    def _check(self) -> None:
        if self._tags is not None and (row := _row_with(self._tags, _BARS)) is not None:
            raise self._refused(row, f"its tag is {self._tags[row].as_py()!r}; {_NO_BARS}")
        if self._properties is not None and (row := self._properties.row_with_empty()) is not None:
            raise self._refused(row, _EMPTY)
        if self._delays is not None:
            wrong = (self._delays < 0) | (self._delays > DELAY_LEVELS[-1])
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._refused(
                    row, f"delay_level is {self._delays[row]}; it goes from 0 (none) to {DELAY_LEVELS[-1]}"
                )

    def _lay_out(self) -> None:
        """Return the columns as a table of addresses for the kernel, and the objects that own the memory."""
        k = self._kernels_of()
        table = self._table = np.zeros(k.IN_TABLE_SIZE, dtype=np.int64)
        prefix = np.frombuffer(self._prefix, np.uint8)
        value = VariableColumn.of(self._value)
        self._alive: list[Any] = [prefix, value]
        table[k.IN_PREFIX_AT] = prefix.ctypes.data
        table[[k.IN_VALUE_ENDS_AT, k.IN_VALUES_AT]] = value.ends.ctypes.data, value.data.ctypes.data
        for array, ends, data, present in (
            (self._tags, k.IN_TAG_ENDS_AT, k.IN_TAGS_AT, k.IN_TAGS_PRESENT_AT),
            (self._keys, k.IN_KEY_ENDS_AT, k.IN_KEYS_AT, k.IN_KEYS_PRESENT_AT),
        ):
            if array is not None and array.null_count < len(array):
                column = VariableColumn.of(array)
                self._alive.append(column)
                table[[ends, data, present]] = [each.ctypes.data for each in (column.ends, column.data, column.present)]
        if self._properties is not None:
            one = self._properties
            table[[k.IN_PAIR_ENDS_AT, k.IN_PAIRS_WANTED_AT, k.IN_NAME_ENDS_AT, k.IN_NAMES_AT]] = [
                each.ctypes.data for each in (one.ends, one.wanted, one.names.ends, one.names.data)
            ]
            table[[k.IN_PROPERTY_ENDS_AT, k.IN_PROPERTIES_AT]] = (
                one.values.ends.ctypes.data,
                one.values.data.ctypes.data,
            )

    def _kernels_of(self) -> Any:
        from metaq_spark.columns.rocketmq import element_kernels as kernels

        return kernels

    def _append_compiled(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        k = self._kernels_of()
        state = np.zeros(k.STATE_SIZE, dtype=np.int64)
        expected = self._value.nbytes // max(1, len(self._value)) + _BESIDE_THE_VALUE
        done = 0
        while True:
            state[k.POSITION], state[k.ROW] = block.used, done
            some = rows[: done + block.messages_max - block.count]
            status = k.encode_elements(some, self._first_row, self._table, state, block.buffer)
            row = int(state[k.ROW])
            block.used, block.count, done = int(state[k.POSITION]), block.count + row - done, row
            if status == k.LONG_PROPERTIES:
                raise self._refused(int(rows[row]), _too_long(int(state[k.NEEDED])))
            if status == k.BAD_PROPERTY:
                raise self._refused(int(rows[row]), _SEPARATORS)
            if done == len(rows):
                return
            if not block.ensure_capacity(int(state[k.NEEDED]), (len(rows) - done) * expected):
                yield block.take()

    def _append_plain(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        for row in rows.tolist():
            element = self._element(row)
            if not block.add(element):
                yield block.take()
                block.add(element)

    def _element(self, row: int) -> bytes:
        pairs = {b"UNIQ_KEY": unique_key(self._prefix, self._first_row + row)}
        for name, column in ((b"TAGS", self._tags), (b"KEYS", self._keys)):
            if column is not None and (text := column[row].as_py()):
                pairs[name] = text.encode()
        if self._delays is not None and self._delays[row]:
            pairs[b"DELAY"] = str(self._delays[row]).encode()
        own = self._own_pairs(row)
        if any(byte in part for pair in (*pairs.items(), *own) for part in pair for byte in (b"\x01", b"\x02")):
            raise self._refused(row, _SEPARATORS)
        properties = b"".join(b"%b\x01%b\x02" % pair for pair in (*pairs.items(), *own))
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise self._refused(row, _too_long(len(properties)))
        value = self._value[row].as_py()
        return encode_element(value.encode() if isinstance(value, str) else value, properties)

    def _own_pairs(self, row: int) -> list[tuple[bytes, bytes]]:
        if self._properties is None or self._property_maps is None:
            return []
        column = self._properties
        start, end = int(column.ends[row]), int(column.ends[row + 1])
        names, values = self._property_maps.keys, self._property_maps.items
        return [
            (names[pair].as_py().encode(), values[pair].as_py().encode())
            for pair in range(start, end)
            if column.wanted[pair]
        ]

    def _refused(self, row: int, reason: str) -> RowError:
        return RowError(f"row {self._first_row + row + 1} of {self._place}", reason)


def _row_with(texts: pa.Array, part: str) -> int | None:
    """Return the first row whose text contains ``part``."""
    if part.encode() not in VariableColumn.of(texts).data.tobytes():  # quick; across two rows it is no hit
        return None
    import pyarrow.compute as pc

    rows = np.flatnonzero(np.asarray(pc.match_substring(texts, part).fill_null(False)))
    return int(rows[0]) if len(rows) else None


def _joined(keys: pa.Array | None) -> pa.Array | None:
    """Keys as one text a row, separated by spaces; nulls in a list are left out."""
    if keys is None or not pa.types.is_list(keys.type):
        return keys
    import pyarrow.compute as pc

    if keys.flatten().null_count:  # one null would make the whole list null
        rows = keys.to_pylist()
        keys = pa.array([None if row is None else [key for key in row if key is not None] for row in rows], keys.type)
    # Arrow does not join lists whose type excludes nulls, such as results of ``split`` and literals: cast them.
    return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")


def _too_large(size: int, limit: int) -> str:
    advice = "split it, compress it, or store it elsewhere and send where it is"
    return f"its value is {size} bytes; a message has at most {limit}: {advice}"


def _too_long(size: int) -> str:
    what = "its properties (tag, keys and UNIQ_KEY among them)"
    return f"{what} are {size} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
