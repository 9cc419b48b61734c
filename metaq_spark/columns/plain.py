"""The loops of ``kernels`` in plain Python, for processes without numba: same rows, same frames, some times slower."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.errors import CorruptFrame
from metaq.message_id import timestamp_ms
from metaq.model import TopicPartition
from metaq.wire.text.frames import FLAG_ATTRIBUTE, Frame, encode_frame, walk
from metaq_spark.columns.schema import ARROW_SCHEMA, ConstantColumns

_INT32: Final = struct.Struct(">i")
_TYPES: Final = ARROW_SCHEMA.types[3:]
"""Types of the columns that differ from row to row."""


class PlainDecoder:
    """A ``RunDecoder`` over ``walk``."""

    def __init__(self, source: TopicPartition, rows_max: int, bytes_max: int) -> None:
        self._source, self._rows_max, self._bytes_max = source, rows_max, bytes_max
        self._constants = ConstantColumns(source, rows_max)
        self._rows: list[tuple[int, int, int | None, str | None, bytes]] = []
        self._bytes = 0

    def decode(self, data: bytes, base_offset: int) -> Iterator[pa.RecordBatch]:
        """Take in a run; see ``RunDecoder``."""
        end = base_offset
        for frame in walk(data, base_offset, where=str(self._source)):
            row = self._row(frame)
            if len(self._rows) == self._rows_max or (self._rows and self._bytes + len(row[-1]) > self._bytes_max):
                yield from self.flush()
            self._rows.append(row)
            self._bytes += len(row[-1])
            end = frame.end
        if end != base_offset + len(data):
            raise CorruptFrame(str(self._source), end, "the body length is negative or runs past the data")

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside; see ``RunDecoder``."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(list(column), type=kind) for column, kind in zip(columns, _TYPES, strict=True)]
            self._rows, self._bytes = [], 0
            yield self._constants.batch(*arrays)

    def _row(self, frame: Frame) -> tuple[int, int, int | None, str | None, bytes]:
        time_ms = timestamp_ms(frame.message_id)
        time_us = None if time_ms is None else time_ms * 1000
        if not frame.flag & FLAG_ATTRIBUTE:
            return frame.offset, frame.message_id, time_us, None, frame.body
        length = _INT32.unpack_from(frame.body)[0] if len(frame.body) >= _INT32.size else -1
        start = _INT32.size + length
        if length < 0 or start > len(frame.body):
            reason = "the flag announces an attribute that does not fit into the body"
            raise CorruptFrame(str(self._source), frame.offset, reason)
        attribute = frame.body[_INT32.size : start].decode("utf-8", "replace")
        return frame.offset, frame.message_id, time_us, attribute, frame.body[start:]


def encode_rows(values: list[bytes], attributes: list[str | None], bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole frames, as ``FrameEncoder.blocks`` makes them: ``(block, count)``."""
    frames: list[bytes] = []
    size = 0
    for value, attribute in zip(values, attributes, strict=True):
        raw = None if attribute is None else attribute.encode()
        body = value if raw is None else _INT32.pack(len(raw)) + raw + value
        frame = encode_frame(0, 0 if raw is None else FLAG_ATTRIBUTE, body)
        if frames and size + len(frame) > bytes_max:
            yield b"".join(frames), len(frames)
            frames, size = [], 0
        frames.append(frame)
        size += len(frame)
    if frames:
        yield b"".join(frames), len(frames)


def hash_keys(keys: list[bytes]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The CRC-32 of every key, 0..2**32-1."""
    return np.fromiter((zlib.crc32(key) for key in keys), dtype=np.int64, count=len(keys))
