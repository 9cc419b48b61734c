"""The loops of ``kernels`` in plain Python, for processes without numba: same rows and frames, several times slower."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.errors import CorruptFrame
from metaq.formats.frames import FLAG_ATTRIBUTE, HEADER_BYTES, Frame, encode_frame, frame_bytes, walk
from metaq.formats.message_id import timestamp_ms
from metaq.formats.message_types import OFFSET_BYTES
from metaq.formats.stored_form import shown_attribute
from metaq.model import Buffer
from metaq_spark.columns.batches import RAW_COLUMNS, BatchMaker
from metaq_spark.columns.schema import READ_COLUMNS

_INT32: Final = struct.Struct(">i")
_TYPES: Final = {name: kind for name, _, kind in READ_COLUMNS}
_CUT: Final = "the body length is negative or runs past the data"


Row = tuple[int, int, int | None, str | None, bytes]
"""Offset, id, time in us, attribute, value."""


class PlainDecoder:
    """A ``RunDecoder`` over ``walk``."""

    def __init__(self, maker: BatchMaker, rows_max: int, bytes_max: int) -> None:
        self._maker, self._rows_max, self._bytes_max = maker, rows_max, bytes_max
        self._where = str(maker.source)
        self._places = [(place, name) for place, name in enumerate(RAW_COLUMNS) if name in maker.needed]
        self._keeps_values = "value" in maker.needed
        self._rows: list[Row] = []
        self._bytes = 0

    def decode(
        self, data: Buffer, base_offset: int, *, may_be_cut: bool = False
    ) -> Generator[pa.RecordBatch, None, int]:
        frame = None
        for frame in walk(bytes(data), base_offset, where=self._where):  # rows keep parts of it
            row = self._row(frame)
            if self._is_full(row):
                yield from self.flush()
            self._rows.append(row)
        end = base_offset if frame is None else frame.end
        if end != base_offset + len(data) and not may_be_cut:
            raise CorruptFrame(self._where, end, _CUT)
        return end - base_offset

    def decode_addressed(self, data: bytes) -> Generator[pa.RecordBatch, None, int]:
        at = 0
        while at < len(data):
            start = at + OFFSET_BYTES
            offset = int.from_bytes(data[at:start])
            at = start + max(HEADER_BYTES, frame_bytes(data, start) if len(data) - start >= HEADER_BYTES else 0)
            frame = next(walk(data[start:at], offset, where=self._where), None)
            if frame is None:
                raise CorruptFrame(self._where, offset, _CUT)
            row = self._row(frame)
            if self._is_full(row):
                yield from self.flush()
            self._rows.append(row)
        return len(data)

    def flush(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            columns = list(zip(*self._rows, strict=True))
            raw = {name: pa.array(columns[place], _TYPES[name]) for place, name in self._places}
            batch = self._maker.batch(len(self._rows), raw)
            self._rows = []
            if batch is not None:
                yield batch

    def _is_full(self, row: Row) -> bool:
        """Count the bytes of ``row``; return whether it belongs into the next batch."""
        *_, attribute, value = row
        size = len(value) + (0 if attribute is None else len(attribute))
        if not self._rows:
            self._bytes = 0
        full = len(self._rows) == self._rows_max or (bool(self._rows) and self._bytes + size > self._bytes_max)
        self._bytes = size if full else self._bytes + size
        return full

    def _row(self, frame: Frame) -> Row:
        time_ms = timestamp_ms(frame.message_id)
        time_us = None if time_ms is None else time_ms * 1000
        if not frame.flag & FLAG_ATTRIBUTE:
            return frame.offset, frame.message_id, time_us, None, frame.body if self._keeps_values else b""
        length = _INT32.unpack_from(frame.body)[0] if len(frame.body) >= _INT32.size else -1
        start = _INT32.size + length
        if length < 0 or start > len(frame.body):
            reason = "the flag announces an attribute that does not fit into the body"
            raise CorruptFrame(self._where, frame.offset, reason)
        shown = shown_attribute(frame.flag, frame.body[_INT32.size : start])
        attribute = None if shown is None else shown.decode("utf-8", "replace")
        value = frame.body[start:] if self._keeps_values else b""
        return frame.offset, frame.message_id, time_us, attribute, value


def encode_rows(values: list[bytes], attributes: list[str | None]) -> Iterator[bytes]:
    """Yield the frame of each row, with message id 0."""
    for value, attribute in zip(values, attributes, strict=True):
        if attribute is None:
            yield encode_frame(0, 0, value)
        else:
            raw = attribute.encode()
            yield encode_frame(0, FLAG_ATTRIBUTE, _INT32.pack(len(raw)) + raw + value)


def hash_keys(keys: list[bytes]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the CRC-32 of every key, 0..2**32-1."""
    return np.fromiter((zlib.crc32(key) for key in keys), dtype=np.int64, count=len(keys))
