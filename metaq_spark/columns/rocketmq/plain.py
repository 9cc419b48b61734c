"""The loops of ``kernels`` in plain Python, for processes without numba: same rows, same elements, but slower."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from metaq.model import Buffer
from metaq_spark.columns.rocketmq.batches import RAW_TYPES, RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import REASONS, ExpectedQueue, ReportGap, UnusableRecord
from metaq_spark.columns.rocketmq.fields import decompressed
from metaq_spark.columns.rocketmq.layout import FROM_PROPERTIES, RAW_COLUMNS, READERS
from metaq_spark.columns.rocketmq.record import RecordParts, Unusable, offsets_of, parse_properties, read_record

_COMPRESSED, _UNREADABLE = 0x01, 0xC0
_CHECKSUM_MASK: Final = 0x7FFFFFFF
_ELEMENT: Final = struct.Struct(">iiiii")


class PlainRecordDecoder:
    """A ``RecordDecoder`` over ``read_record``."""

    def __init__(self, queue: ExpectedQueue, maker: RecordBatchMaker, rows_max: int, bytes_max: int) -> None:
        self._queue, self._maker, self._rows_max, self._bytes_max = queue, maker, rows_max, bytes_max
        self._names = [name for name in RAW_COLUMNS if name in maker.needed]
        self._readers = [READERS[name] for name in self._names]
        self._is_parsed = not maker.needed.isdisjoint(FROM_PROPERTIES)
        self._is_value_needed = "value" in maker.needed
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def decode(self, data: Buffer, start: int, end: int, report_gap: ReportGap) -> Iterator[pa.RecordBatch]:
        run, expected, position = bytes(data), start, 0
        try:
            while position < len(run):
                record = read_record(run, position)
                self._check(record, position, expected)
                if record.offset >= end:
                    break
                if record.offset > expected and self._queue.dense:
                    report_gap(expected, record.offset)
                    expected = record.offset
                self._check_body(record, position)
                yield from self._add(record, position)
                position, expected = position + record.size, record.offset + 1
        except Unusable as found:
            trusted = not self._queue.dense and expected <= found.own_offset < end
            size = int.from_bytes(run[found.position : found.position + 4], signed=True)
            damaged = run[found.position : found.position + size if size > 0 else len(run)]
            offset = found.own_offset if trusted else expected
            count = len(offsets_of(damaged, 0)) if found.reason == REASONS["kind"] else 1
            raise UnusableRecord(str(self._maker.source), offset, found.reason, damaged, count) from None
        if self._queue.dense and expected < end:
            report_gap(expected, end)

    def _check(self, record: RecordParts, position: int, expected: int) -> None:
        for fits, word in (
            (record.topic == self._queue.topic, "topic"),
            (record.queue_id == self._queue.queue_id, "queue"),
            (record.offset >= expected, "offset"),
        ):
            if not fits:
                raise Unusable(position, record.offset, REASONS[word])

    def _check_body(self, record: RecordParts, position: int) -> None:
        if (zlib.crc32(record.body) ^ record.checksum) & _CHECKSUM_MASK:
            raise Unusable(position, record.offset, REASONS["checksum"])
        if record.sys_flag & _UNREADABLE:
            raise Unusable(position, record.offset, REASONS["kind"])

    def _add(self, record: RecordParts, position: int) -> Iterator[pa.RecordBatch]:
        body = record.body
        if record.sys_flag & _COMPRESSED and self._is_value_needed:
            try:
                body = decompressed(body, record.sys_flag)
            except ValueError as error:
                raise Unusable(position, record.offset, str(error)) from None
        size = len(body) if self._is_value_needed else 0
        if len(self._rows) == self._rows_max or (self._rows and self._bytes + size > self._bytes_max):
            yield from self.flush()
        pairs = _text_pairs(record) if self._is_parsed else _NO_PAIRS
        self._rows.append(tuple([read(record, pairs, body) for read in self._readers]))
        self._bytes += size

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside; see ``RecordDecoder``."""
        if self._rows:
            columns = zip(*self._rows, strict=True)  # empty, if only constants are needed
            raw = {name: pa.array(column, RAW_TYPES[name]) for name, column in zip(self._names, columns, strict=True)}
            batch = self._maker.batch(len(self._rows), raw)
            self._rows, self._bytes = [], 0
            if batch is not None:
                yield batch


def _text_pairs(record: RecordParts) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in parse_properties(record.properties).items()}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


_NO_PAIRS: Final[dict[str, str]] = {}


def encode_element(body: bytes, properties: bytes) -> bytes:
    """Return a message in the form of a batch element."""
    size = _ELEMENT.size + len(body) + 2 + len(properties)
    return _ELEMENT.pack(size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
