"""Encodes the rows of a record batch into whole frames in blocks, for batched puts.

``FrameEncoder`` holds the ``value`` and ``attribute`` columns of one batch and writes the frames of any selection of
its rows, in the order of the selection, after the frames of an open block. Message ids are 0: the broker assigns the
real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.formats.native_crc import crc32_address
from metaq_spark.columns import plain
from metaq_spark.columns.blocks import Bytes, EncodedBlock, OpenBlock
from metaq_spark.columns.engine import ColumnEngine, shared_engine

Int64s = np.ndarray[Any, np.dtype[np.int64]]

_NOTHING: Final = np.zeros(0, dtype=np.uint8)
_NOTHING.flags.writeable = False  # like Arrow's buffers: numba compiles a version for each kind of array
_NO_ENDS: Final = np.zeros(0, dtype=np.int64)
_NO_ROW_PRESENT: Final = np.zeros(0, dtype=np.uint8)


_BESIDE_THE_VALUE: Final = 28
"""Expected size of a frame beyond the value: a header and a short attribute."""


@dataclass(frozen=True, slots=True)
class VariableColumn:
    """A binary or string column as buffers: row i is ``data[ends[i]:ends[i + 1]]``; ``present[i]`` is 0 for null.

    ``present`` of length 0: every row is null.
    """

    ends: Int64s
    data: Bytes
    present: Bytes

    @classmethod
    def of(cls, array: pa.Array) -> VariableColumn:
        """Return the buffers of a (large) binary or string array, sliced or not; only the ends are copied."""
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, ends, data = array.buffers()
        ends = np.frombuffer(ends, dtype=np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
        present = np.asarray(array.is_valid()).astype(np.uint8) if array.null_count else np.ones(len(array), np.uint8)
        return cls(ends.astype(np.int64), _bytes(data), present)

    @classmethod
    def of_nulls(cls) -> VariableColumn:
        """A column in which every row is null, for any number of rows."""
        return cls(_NO_ENDS, _NOTHING, _NO_ROW_PRESENT)

    def __len__(self) -> int:
        return max(0, len(self.ends) - 1)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None and buffer.size else _NOTHING


class FrameEncoder:
    """Encodes rows of one batch. ``value`` has no nulls; a null ``attribute`` makes a message without one."""

    def __init__(self, value: pa.Array, attribute: pa.Array | None, engine: ColumnEngine | None = None) -> None:
        self._value, self._attribute = value, attribute
        size = value.nbytes
        self._kernels = (engine or shared_engine()).kernels_for(size)
        if self._kernels is not None:  # once, however many selections are made
            self._values = VariableColumn.of(value)
            self._attributes = VariableColumn.of_nulls() if attribute is None else VariableColumn.of(attribute)
            self._frame_bytes = size // max(1, len(value)) + _BESIDE_THE_VALUE

    def append(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        """Append the frames of ``rows`` to ``block``, and yield a block each time that it is full.

        At the end, ``block`` holds the rest.
        """
        if self._kernels is None:
            return self._append_plain(rows, block)
        return self._append_compiled(rows, block, self._kernels)

    def _append_compiled(self, rows: Int64s, block: OpenBlock, k: ModuleType) -> Iterator[EncodedBlock]:
        value, attribute = self._values, self._attributes
        state = np.zeros(k.STATE_SIZE, dtype=np.int64)
        crc, done = crc32_address(), 0
        while True:
            state[k.POSITION], state[k.ROW] = block.used, done
            k.encode_frames(
                rows[: done + block.messages_max - block.count], crc, k.CRC_TABLES, state,
                value.ends, value.data, attribute.present, attribute.ends, attribute.data, block.buffer,
            )  # fmt: skip
            row = int(state[k.ROW])
            block.used, block.count, done = int(state[k.POSITION]), block.count + row - done, row
            block.fingerprint, state[k.FINGERPRINT] = block.fingerprint + int(state[k.FINGERPRINT]), 0
            if done == len(rows):
                return
            if not block.ensure_capacity(int(state[k.NEEDED]), (len(rows) - done) * self._frame_bytes):
                yield block.take()

    def _append_plain(self, rows: Int64s, block: OpenBlock) -> Iterator[EncodedBlock]:
        selection = pa.array(rows)
        values = self._value.take(selection).cast(pa.large_binary()).to_pylist()
        attributes = [None] * len(rows) if self._attribute is None else self._attribute.take(selection).to_pylist()
        for frame in plain.encode_rows(values, attributes):
            if not block.add(frame):
                yield block.take()
                block.add(frame)


def hash_keys(keys: pa.Array, engine: ColumnEngine | None = None) -> Int64s:
    """Return the CRC-32 (0..2**32-1) of every key: binary unchanged, strings in UTF-8, integers in decimal. Undefined
    for nulls.
    """
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    kernels = (engine or shared_engine()).kernels_for(keys.nbytes)
    if kernels is None:
        return plain.hash_keys([key or b"" for key in keys.cast(pa.large_binary()).to_pylist()])
    column = VariableColumn.of(keys)
    hashes = np.zeros(len(column), dtype=np.int64)
    kernels.hash_keys(column.ends, column.data, crc32_address(), kernels.CRC_TABLES, hashes)
    return hashes
