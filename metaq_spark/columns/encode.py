"""Columns to frames: the rows of a record batch become blocks of whole frames, ready for a batched put.

``FrameEncoder`` holds the ``value`` and ``attribute`` columns of one batch and writes the frames of any selection of
its rows, in the order of the selection. Message ids are 0: the broker gives the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq_spark.columns import plain
from metaq_spark.columns.engine import Engine, shared_engine
from metaq_spark.columns.memory import room
from metaq_spark.columns.native_crc import crc32_address

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_NOTHING: Final = np.zeros(0, dtype=np.uint8)
_NOTHING.flags.writeable = False  # as the buffers of Arrow are: numba compiles for each kind of array it meets


@dataclass(frozen=True, slots=True)
class Block:
    """``count`` whole frames, back to back."""

    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class VariableColumn:
    """A binary or string column as buffers: row i is ``data[ends[i]:ends[i + 1]]``; ``present[i]`` is 0 for null."""

    ends: Int64s
    data: Bytes
    present: Bytes

    @classmethod
    def of(cls, array: pa.Array) -> VariableColumn:
        """The buffers of a (large) binary or string array, sliced or not; nothing but the ends is copied."""
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, ends, data = array.buffers()
        ends = np.frombuffer(ends, dtype=np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
        present = np.asarray(array.is_valid()).astype(np.uint8) if array.null_count else np.ones(len(array), np.uint8)
        return cls(ends.astype(np.int64), _bytes(data), present)

    @classmethod
    def of_nulls(cls, rows: int) -> VariableColumn:
        """A column in which every row is null."""
        return cls(np.zeros(rows + 1, np.int64), _NOTHING, np.zeros(rows, np.uint8))

    def __len__(self) -> int:
        return len(self.present)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None and buffer.size else _NOTHING


class FrameEncoder:
    """Encodes rows of one batch. ``value`` has no nulls; a null ``attribute`` makes a message without one."""

    def __init__(
        self, value: pa.Array, attribute: pa.Array | None, block_bytes: int, engine: Engine | None = None
    ) -> None:
        self._value, self._attribute, self._block_bytes = value, attribute, block_bytes
        self._kernels = (engine or shared_engine()).kernels_for(value.nbytes)

    def blocks(self, rows: Int64s) -> Iterator[Block]:
        """The frames of ``rows`` in blocks of up to ``block_bytes``; a larger message is a block of its own."""
        if self._kernels is None:
            return self._plain_blocks(rows)
        return self._compiled_blocks(rows)

    def _compiled_blocks(self, rows: Int64s) -> Iterator[Block]:
        k = self._kernels
        assert k is not None
        value = VariableColumn.of(self._value)
        attribute = (
            VariableColumn.of_nulls(len(value)) if self._attribute is None else VariableColumn.of(self._attribute)
        )
        state = np.zeros(k.STATE_SIZE, dtype=np.int64)
        crc, done, capacity = crc32_address(), 0, self._block_bytes
        while done < len(rows):
            block = room(capacity, np.uint8)
            state[k.POSITION] = 0
            k.encode_frames(
                rows, crc, k.CRC_TABLES, state,
                value.ends, value.data, attribute.present, attribute.ends, attribute.data, block,
            )  # fmt: skip
            count = int(state[k.ROW]) - done
            # A message larger than a block gets a block of exactly its size; then blocks are of the usual size again.
            capacity = self._block_bytes if count else int(state[k.NEEDED])
            if count:
                yield Block(block[: state[k.POSITION]].tobytes(), count)
            done += count

    def _plain_blocks(self, rows: Int64s) -> Iterator[Block]:
        selection = pa.array(rows)
        values = [bytes(value) for value in self._value.cast(pa.large_binary()).take(selection).to_pylist()]
        attributes = [None] * len(rows) if self._attribute is None else self._attribute.take(selection).to_pylist()
        return (Block(data, count) for data, count in plain.encode_rows(values, attributes, self._block_bytes))


def hash_keys(keys: pa.Array, engine: Engine | None = None) -> Int64s:
    """The CRC-32 (0..2**32-1) of every key: binary as it is, strings in UTF-8, integers in decimal. Nulls give any."""
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    kernels = (engine or shared_engine()).kernels_for(keys.nbytes)
    if kernels is None:
        return plain.hash_keys([key or b"" for key in keys.cast(pa.large_binary()).to_pylist()])
    column = VariableColumn.of(keys)
    hashes = np.zeros(len(column), dtype=np.int64)
    kernels.hash_keys(column.ends, column.data, crc32_address(), kernels.CRC_TABLES, hashes)
    return hashes
