"""The loops of ``kernels`` in plain Python, for processes without numba: same rows, same elements, but slower."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from metaq.model import Buffer
from metaq_spark.columns.rocketmq.batches import RAW_TYPES, RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import REASONS, CorruptRecord, Queue, ReportGap
from metaq_spark.columns.rocketmq.fields import decompressed, host_text
from metaq_spark.columns.rocketmq.layout import RAW_COLUMNS

_HEAD: Final = struct.Struct(">iiiiiqqiq")
_BEHIND_BODY: Final = struct.Struct(">iqi")
_MAGIC: Final = {-626843481: struct.Struct(">b"), -626843477: struct.Struct(">h")}
_SMALLEST: Final = 91
_COMPRESSED, _BORN_HOST_V6, _STORE_HOST_V6, _UNREADABLE = 0x01, 0x10, 0x20, 0xC0
_INNER_BATCH: Final = 0x80
_INNER_NUM: Final = b"INNER_NUM"
_CHECKSUM_MASK: Final = 0x7FFFFFFF
_TIME_MS_MAX: Final = 253402300799999
_ELEMENT: Final = struct.Struct(">iiiii")


class Unusable(Exception):
    """The record at ``position`` cannot be used; ``own_offset`` is the queue offset that it has, -1 if it has none."""

    def __init__(self, position: int, own_offset: int, reason: str) -> None:
        self.position, self.own_offset, self.reason = position, own_offset, reason
        super().__init__(position, own_offset, reason)


class Record(NamedTuple):
    """A record's parts; times in ms."""

    size: int
    queue_id: int
    flag: int
    offset: int
    physical_offset: int
    sys_flag: int
    checksum: int
    born_ms: int
    born_host: bytes
    stored_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    topic: bytes
    properties: bytes


def read_record(data: bytes, at: int) -> Record:
    """The record at a position.

    Raises:
        Unusable: It is cut, its lengths contradict each other, or its magic is none of a record.
    """
    left = len(data) - at
    own_offset = int.from_bytes(data[at + 20 : at + 28], signed=True) if left >= 28 else -1
    size = int.from_bytes(data[at : at + 4], signed=True) if left >= _SMALLEST else 0
    if not _SMALLEST <= size <= left:
        raise Unusable(at, own_offset, REASONS["length"])
    record = data[at : at + size]
    _, magic, crc, queue_id, flag, offset, physical, sys_flag, born_ms = _HEAD.unpack_from(record)
    if magic not in _MAGIC:
        raise Unusable(at, own_offset, REASONS["magic"])
    try:
        born_end = 48 + (20 if sys_flag & _BORN_HOST_V6 else 8)
        host_end = born_end + 8 + (20 if sys_flag & _STORE_HOST_V6 else 8)
        reconsume_times, _, body_bytes = _BEHIND_BODY.unpack_from(record, host_end)
        body, at_name = _part(record, host_end + 16, body_bytes)
        width = _MAGIC[magic]
        topic, at_properties = _part(record, at_name + width.size, width.unpack_from(record, at_name)[0])
        length = struct.unpack_from(">h", record, at_properties)[0]
        properties, _ = _part(record, at_properties + 2, length)
    except (struct.error, IndexError):
        raise Unusable(at, own_offset, REASONS["length"]) from None
    return Record(
        size, queue_id, flag, offset, physical, sys_flag, crc, born_ms, record[48:born_end],
        int.from_bytes(record[born_end : born_end + 8], signed=True), record[born_end + 8 : host_end],
        reconsume_times, body, topic, properties,
    )  # fmt: skip


def _part(record: bytes, start: int, length: int) -> tuple[bytes, int]:
    if length < 0 or start + length > len(record):
        raise IndexError
    return record[start : start + length], start + length


def parse_properties(raw: bytes) -> dict[bytes, bytes]:
    """The pairs of a properties string: each name once with its last value; without those that lack name or value."""
    pairs: dict[bytes, bytes] = {}
    for pair in raw.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            pairs[name] = value
    return pairs


def offsets_of(data: bytes, at: int) -> range:
    """The queue offsets that the record at a position has: several, if its body is a batch that was stored as one.

    Raises:
        Unusable: As ``read_record``.
    """
    record = read_record(data, at)
    count = parse_properties(record.properties).get(_INNER_NUM, b"") if record.sys_flag & _INNER_BATCH else b""
    return range(record.offset, record.offset + (max(1, int(count)) if count.isdigit() and len(count) < 10 else 1))


class PlainRecordDecoder:
    """A ``RecordDecoder`` over ``read_record``."""

    def __init__(self, queue: Queue, maker: RecordBatchMaker, rows_max: int, bytes_max: int) -> None:
        self._queue, self._maker, self._rows_max, self._bytes_max = queue, maker, rows_max, bytes_max
        self._names = [name for name in RAW_COLUMNS if name in maker.needed]
        self._readers = [_READERS[name] for name in self._names]
        self._is_parsed = not maker.needed.isdisjoint(_FROM_PROPERTIES)
        self._is_value_needed = "value" in maker.needed
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def decode(self, data: Buffer, start: int, end: int, report_gap: ReportGap) -> Iterator[pa.RecordBatch]:
        """Take in records; see ``RecordDecoder``."""
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
            raise CorruptRecord(str(self._maker.source), offset, found.reason, damaged, count) from None
        if self._queue.dense and expected < end:
            report_gap(expected, end)

    def _check(self, record: Record, position: int, expected: int) -> None:
        for fits, word in (
            (record.topic == self._queue.topic, "topic"),
            (record.queue_id == self._queue.queue_id, "queue"),
            (record.offset >= expected, "offset"),
        ):
            if not fits:
                raise Unusable(position, record.offset, REASONS[word])

    def _check_body(self, record: Record, position: int) -> None:
        if (zlib.crc32(record.body) ^ record.checksum) & _CHECKSUM_MASK:
            raise Unusable(position, record.offset, REASONS["checksum"])
        if record.sys_flag & _UNREADABLE:
            raise Unusable(position, record.offset, REASONS["kind"])

    def _add(self, record: Record, position: int) -> Iterator[pa.RecordBatch]:
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
            columns = zip(*self._rows, strict=True)  # none, where nothing but constants is needed
            raw = {name: pa.array(column, RAW_TYPES[name]) for name, column in zip(self._names, columns, strict=True)}
            batch = self._maker.batch(len(self._rows), raw)
            self._rows, self._bytes = [], 0
            if batch is not None:
                yield batch


def _text_pairs(record: Record) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in parse_properties(record.properties).items()}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _time_us(time_ms: int) -> int | None:
    return time_ms * 1000 if 0 <= time_ms <= _TIME_MS_MAX else None


_NO_PAIRS: Final[dict[str, str]] = {}
_FROM_PROPERTIES: Final = frozenset({"message_id", "keys", "tags", "properties"})
_READERS: Final[Mapping[str, Callable[[Record, dict[str, str], bytes], Any]]] = {
    "queue_offset": lambda record, pairs, body: record.offset,
    "message_id": lambda record, pairs, body: pairs.get("UNIQ_KEY"),
    "offset_message_id": lambda record, pairs, body: _offset_message_id(record),
    "keys": lambda record, pairs, body: pairs.get("KEYS"),
    "tags": lambda record, pairs, body: pairs.get("TAGS"),
    "properties": lambda record, pairs, body: list(pairs.items()),
    "born_timestamp": lambda record, pairs, body: _time_us(record.born_ms),
    "store_timestamp": lambda record, pairs, body: _time_us(record.stored_ms),
    "born_host": lambda record, pairs, body: host_text(record.born_host),
    "reconsume_times": lambda record, pairs, body: record.reconsume_times,
    "flag": lambda record, pairs, body: record.flag,
    "value": lambda record, pairs, body: body,
}
"""The value of a column, from a record, its properties and its decompressed body."""


def _offset_message_id(record: Record) -> str:
    return (record.store_host + record.physical_offset.to_bytes(8, signed=True)).hex().upper()


def encode_element(body: bytes, properties: bytes) -> bytes:
    """A message as it is in a batch that is sent."""
    size = _ELEMENT.size + len(body) + 2 + len(properties)
    return _ELEMENT.pack(size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
