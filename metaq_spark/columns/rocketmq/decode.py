"""Decodes the records of a queue's pulls into record batches of Spark's exact types.

A decoder gathers rows over several pulls and returns a batch when it is full. The compiled and the plain decoder return
the same rows; ``engine`` chooses between them. Unselected columns are neither copied nor allocated, but every record is
checked: lengths, magic, topic and queue, that its queue offset was requested and is above the previous one, and the
checksum of its body.

In text that is not valid UTF-8 each invalid byte sequence is replaced by U+FFFD, because Spark's strings must be UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.errors import CorruptFrame
from metaq.formats.native_crc import crc32_address
from metaq.formats.stored_records import Collected, FrameRun, QueueRecords, Wanted
from metaq.model import Buffer
from metaq_spark.columns.engine import ColumnEngine, shared_engine
from metaq_spark.columns.rocketmq.batches import RAW_TYPES, RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import (
    REASONS,
    RECORD_BYTES_KEPT,
    ExpectedQueue,
    FrameUnusable,
    ReportGap,
    UnusableRecord,
)
from metaq_spark.columns.rocketmq.fields import decompressed, host_texts
from metaq_spark.columns.rocketmq.layout import FROM_PROPERTIES
from metaq_spark.columns.rocketmq.plain import PlainRecordDecoder
from metaq_spark.columns.rocketmq.record import offsets_of
from metaq_spark.columns.text import text_of

ROWS_MAX: Final = 32768
"""Limit on rows of a batch."""

BYTES_MAX: Final = 4 << 20
"""Bytes of bodies in a batch, and of each column of text; a single larger body becomes a separate batch."""

TEXT_BYTES_MIN: Final = 1 << 16
"""Every text of one record fits into this."""


class RecordDecoder:
    """Decodes the pulls of one queue into record batches. Switches to the compiled loops when ``engine`` says so."""

    def __init__(
        self,
        queue: ExpectedQueue,
        maker: RecordBatchMaker,
        report_gap: ReportGap,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        engine: ColumnEngine | None = None,
    ) -> None:
        self._queue, self._maker, self._report_gap = queue, maker, report_gap
        self._limits, self._engine = (rows_max, bytes_max), engine or shared_engine()
        self._decoder: PlainRecordDecoder | CompiledRecordDecoder = PlainRecordDecoder(queue, maker, *self._limits)

    def decode(self, data: Buffer, start: int, end: int, task_bytes_left: int = 0) -> Iterator[pa.RecordBatch]:
        """Decode the records of the queue offsets ``[start, end)``; yield full batches.

        Records from ``end`` on are ignored. ``data`` is not used any more after the last batch was taken.

        Raises:
            CorruptRecord: A record cannot be used. Earlier rows are kept, and the decoder can continue with the records
                after it, which must be fetched again: the rest of ``data`` is ignored.
        """
        yield from self._move_on(len(data), task_bytes_left)
        yield from self._decoder.decode(data, start, end, self._report_gap)

    def decode_frames(self, run: FrameRun, task_bytes_left: int = 0) -> Iterator[pa.RecordBatch]:
        """Decode messages as the bundled broker stores them into the rows of the records that it would send.

        Raises:
            FrameUnusable: A message is damaged, or of the few kinds that are decoded from records only. Earlier rows
                are kept, and the decoder can continue.
        """
        yield from self._move_on(len(run.data), task_bytes_left)
        if isinstance(self._decoder, PlainRecordDecoder):
            yield from self._plain_frames(self._decoder, run)
        else:
            yield from self._decoder.decode_frames(run)

    def _move_on(self, byte_count: int, task_bytes_left: int) -> Iterator[pa.RecordBatch]:
        """Switch to the compiled decoder when it is time; return the remaining batches of the plain one."""
        if isinstance(self._decoder, PlainRecordDecoder):
            kernels = self._engine.kernels_for(byte_count, task_bytes_left)
            if kernels is not None:
                yield from self._decoder.flush()
                self._decoder = CompiledRecordDecoder(self._queue, self._maker, *self._limits)

    def _plain_frames(self, decoder: PlainRecordDecoder, run: FrameRun) -> Iterator[pa.RecordBatch]:
        count = run.end - run.start
        collected = Collected(Wanted(count, 1 << 62, count))
        maker = QueueRecords(self._queue.topic.decode(), self._queue.queue_id, run.store_host)
        with suppress(CorruptFrame):  # the first frame; others end the work
            maker.of_run(
                bytes(run.data), 0, run.start, run.physical_offset, run.known_ms, collected, str(self._maker.source)
            )
        end = run.start + collected.looked_at
        try:
            yield from decoder.decode(b"".join(collected.records), run.start, end, self._report_gap)
        except UnusableRecord as error:
            raise FrameUnusable(error.offset) from None
        if end < run.end:
            raise FrameUnusable(end)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside, if any."""
        return self._decoder.flush()


class CompiledRecordDecoder:
    def __init__(self, queue: ExpectedQueue, maker: RecordBatchMaker, rows_max: int, bytes_max: int) -> None:
        from metaq.compiled.addresses import CRC_TABLES
        from metaq_spark.columns.rocketmq import record_kernels as kernels

        self._k: ModuleType = kernels
        self._queue, self._maker = queue, maker
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._topic, self._crc, self._tables = _bytes_of(queue.topic), crc32_address(), CRC_TABLES
        self._parsed = np.empty(kernels.PAIRS_OF_RECORD_MAX * kernels.PARSED_WIDTH, np.int64)
        self._scratch: np.ndarray[Any, Any] | None = None
        self._inflated = b""  # referenced while its address is in use
        self._start_batch(bytes_max)

    def _start_batch(self, value_bytes: int) -> None:
        """Fresh column buffers: the last ones belong to the batch now. Columns not needed have none."""
        k, needed = self._k, self._maker.needed
        self._state = np.zeros(k.STATE_SIZE, dtype=np.int64)
        self._table = np.zeros(k.TABLE_SIZE, dtype=np.int64)
        self._columns: dict[int, np.ndarray[Any, Any]] = {}
        rows, texts = self._rows_max, max(TEXT_BYTES_MIN, self._bytes_max)
        pairs = max(rows * 8, k.PAIRS_OF_RECORD_MAX)
        self._state[[k.QUEUE_ID, k.DENSE, k.ROWS_MAX, k.VALUE_BYTES_MAX, k.TEXT_BYTES_MAX, k.PAIRS_MAX]] = (
            self._queue.queue_id, self._queue.dense, rows, value_bytes, texts, pairs,
        )  # fmt: skip
        for name in needed - {"properties"}:
            self._add_column(name, rows, value_bytes if name == "value" else texts)
        if "properties" in needed:
            self._add_texts(k.NAME_ENDS_AT, k.NAMES_AT, pairs, texts)
            self._add_texts(k.PROPERTY_ENDS_AT, k.PROPERTIES_AT, pairs, texts)
            self._add(k.PAIR_ENDS_AT, rows + 1, np.int32)[:1] = 0
        if needed & FROM_PROPERTIES:
            self._table[k.PARSED_AT] = self._parsed.ctypes.data

    def _add_column(self, name: str, rows: int, byte_count: int) -> None:
        """The buffers of a column: numbers, or texts with their ends; which rows have a value, if not all have."""
        ends, at, present = (self._slot(name, "ENDS_AT"), self._slot(name, "AT"), self._slot(name, "PRESENT_AT"))
        assert at is not None
        if ends is not None:
            self._add_texts(ends, at, rows, byte_count)
        else:
            self._add(at, rows, np.int32 if RAW_TYPES[name].bit_width == 32 else np.int64)
        if present is not None:
            self._add(present, rows, np.uint8)

    def _slot(self, column: str, what: str) -> int | None:
        """The index in the kernel's table for a part of a column; ``None`` if the column has no such part."""
        return getattr(self._k, f"{column.upper()}_{what}", None)

    def _add_texts(self, ends: int, at: int, count: int, size: int) -> None:
        self._add(ends, count + 1, np.int32)[:1] = 0
        self._add(at, max(size, 1), np.uint8)

    def _add(self, place: int, count: int, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
        column = self._columns[place] = np.empty(count, dtype)
        self._table[place] = column.ctypes.data
        return column

    def decode(self, data: Buffer, start: int, end: int, report_gap: ReportGap) -> Iterator[pa.RecordBatch]:
        k, run = self._k, _bytes_of(data)
        self._state[[k.POSITION, k.NEXT, k.END, k.INFLATED_AT]] = 0, start, end, 0
        while (status := self._run_kernel(run)) != k.DONE:
            state = self._state
            position, expected = int(state[k.POSITION]), int(state[k.NEXT])
            if status == k.FULL:
                yield from self._next_batch()
            elif status == k.BODY_COMPRESSED:
                try:
                    self._decompress(run)
                except ValueError as error:
                    raise self._corrupt(run, position, str(error)) from None
            elif status == k.GAP:
                report_gap(expected, int(state[k.RECORD_OFFSET]))
                state[k.NEXT] = state[k.RECORD_OFFSET]
            else:
                raise self._corrupt(run, position, REASONS[_NAMES_OF_REASONS[status - k.BAD_LENGTH]])
        if self._queue.dense and self._state[k.NEXT] < end:
            report_gap(int(self._state[k.NEXT]), end)

    def decode_frames(self, run: FrameRun) -> Iterator[pa.RecordBatch]:
        from metaq_spark.columns.rocketmq import frame_kernels

        if self._scratch is None:
            self._scratch = np.zeros(frame_kernels.SCRATCH_BYTES, np.uint8)
        k, data, store_host = self._k, _bytes_of(run.data), _bytes_of(run.store_host)
        self._state[[k.POSITION, k.NEXT, k.END, k.INFLATED_AT]] = 0, run.start, run.end, 0
        while True:
            status = frame_kernels.decode_frames(
                data, self._crc, self._tables, frame_kernels.DIGITS, self._table, self._state,
                run.physical_offset, run.known_ms, store_host, self._scratch,
            )  # fmt: skip
            if status == k.FULL:
                yield from self._next_batch()
            elif status == k.BODY_COMPRESSED:
                try:
                    self._decompress(data)
                except ValueError:
                    raise FrameUnusable(int(self._state[k.NEXT])) from None
            elif status != k.DONE or self._state[k.NEXT] < run.end:
                raise FrameUnusable(int(self._state[k.NEXT]))
            else:
                return

    def _next_batch(self) -> Iterator[pa.RecordBatch]:
        """Return the gathered rows, and continue where the loop stopped for lack of space."""
        k, state = self._k, self._state
        kept = {place: int(state[place]) for place in (k.POSITION, k.NEXT, k.END, k.INFLATED_AT, k.INFLATED_BYTES)}
        needed = int(state[k.NEEDED])
        yield from self._take()
        self._start_batch(max(needed, self._bytes_max))
        self._state[list(kept)] = list(kept.values())

    def _decompress(self, run: np.ndarray[Any, Any]) -> None:
        """Decompress the body that the loop stopped at, and pass its address to the loop.

        Raises:
            ValueError: It cannot be decompressed.
        """
        k, state = self._k, self._state
        at = int(state[k.BODY_AT])
        body = run[at : at + int(state[k.BODY_BYTES])].tobytes()
        self._inflated = inflated = decompressed(body, int(state[k.SYS_FLAG]))
        state[k.INFLATED_AT] = np.frombuffer(inflated or b"\0", np.uint8).ctypes.data
        state[k.INFLATED_BYTES] = len(inflated)

    def _corrupt(self, run: np.ndarray[Any, Any], position: int, reason: str) -> UnusableRecord:
        k, state = self._k, self._state
        own_offset, expected = int(state[k.RECORD_OFFSET]), int(state[k.NEXT])
        offset = own_offset if not self._queue.dense and expected <= own_offset < state[k.END] else expected
        size = int.from_bytes(run[position : position + 4].tobytes(), signed=True)
        record = run[position : position + size if size > 0 else len(run)]
        count = len(offsets_of(record.tobytes(), 0)) if reason == REASONS["kind"] else 1
        return UnusableRecord(str(self._maker.source), offset, reason, record[:RECORD_BYTES_KEPT].tobytes(), count)

    def _run_kernel(self, run: np.ndarray[Any, Any]) -> int:
        status: int = self._k.decode_records(run, self._topic, self._crc, self._tables, self._table, self._state)
        return status

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside; see ``RecordDecoder``."""
        if self._state[self._k.ROW] > 0:
            yield from self._take()
            self._start_batch(self._bytes_max)

    def _take(self) -> Iterator[pa.RecordBatch]:
        """The batch of the rows gathered, if it has any that are wanted."""
        rows = int(self._state[self._k.ROW])
        if not rows:
            return
        batch = self._maker.batch(rows, {name: self._raw(name, rows) for name in self._maker.needed})
        if batch is not None:
            yield batch

    def _raw(self, name: str, rows: int) -> pa.Array:
        if name == "properties":
            return self._properties(rows)
        ends, at, present = (self._slot(name, "ENDS_AT"), self._slot(name, "AT"), self._slot(name, "PRESENT_AT"))
        assert at is not None
        validity, kind = None, RAW_TYPES[name]
        if present is not None:
            nulls = int(self._state[getattr(self._k, f"WITHOUT_{name.upper()}")])
            if nulls == rows:
                return pa.nulls(rows, kind)
            validity = _bitmap(self._columns[present], rows, nulls)
        if ends is None:
            return _array(kind, rows, validity, self._columns[at])
        used, non_ascii = self._slot(name, "BYTES"), getattr(self._k, f"NON_ASCII_{name.upper()}", None)
        assert used is not None
        if non_ascii is not None:
            return self._texts(rows, ends, at, used, non_ascii, validity)
        if name in _MADE_OF_BYTES:
            return _MADE_OF_BYTES[name](self._strings(pa.binary(), rows, ends, at, used))
        return self._strings(kind, rows, ends, at, used)

    def _texts(
        self, rows: int, ends: int, at: int, used: int, non_ascii: int, validity: pa.Buffer | None = None
    ) -> pa.Array:
        if not self._state[non_ascii]:
            return self._strings(pa.string(), rows, ends, at, used, validity)
        return text_of(self._strings(pa.binary(), rows, ends, at, used, validity))

    def _strings(
        self, kind: pa.DataType, rows: int, ends: int, at: int, used: int, validity: pa.Buffer | None = None
    ) -> pa.Array:
        return _array(kind, rows, validity, self._columns[ends], self._columns[at][: int(self._state[used])])

    def _properties(self, rows: int) -> pa.Array:
        k = self._k
        pairs = int(self._state[k.PAIRS])
        names = self._texts(pairs, k.NAME_ENDS_AT, k.NAMES_AT, k.NAME_BYTES, k.NON_ASCII_NAMES)
        values = self._texts(pairs, k.PROPERTY_ENDS_AT, k.PROPERTIES_AT, k.PROPERTY_BYTES, k.NON_ASCII_PROPERTIES)
        ends = _array(pa.int32(), rows + 1, None, self._columns[k.PAIR_ENDS_AT])
        maps = pa.MapArray.from_arrays(ends, names, values)
        return _with_each_name_once(maps) if self._state[k.NON_ASCII_NAMES] else maps


_MADE_OF_BYTES: Final = {"born_host": host_texts}
"""Columns of text for which the loop gives bytes."""

_NAMES_OF_REASONS: Final = ("length", "magic", "topic", "queue", "offset", "checksum", "kind")
"""In the order of the kernels' statuses."""


def _with_each_name_once(maps: pa.MapArray) -> pa.Array:
    """Names that are not valid UTF-8 may have become the same: the last one counts."""
    import pyarrow.compute as pc  # costs a small read more than the rest of it

    if not pc.any(pc.match_substring(maps.keys, "\N{REPLACEMENT CHARACTER}")).as_py():
        return maps
    return pa.array([list(dict(pairs).items()) for pairs in maps.to_pylist()], maps.type)


def _bytes_of(data: Buffer) -> np.ndarray[Any, Any]:
    """Return a read-only view of ``data``: numba compiles a version for each kind of array."""
    run = np.frombuffer(data, dtype=np.uint8)
    run.flags.writeable = False
    return run


def _array(arrow_type: pa.DataType, rows: int, validity: pa.Buffer | None, *data: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, rows, [validity, *(pa.py_buffer(part) for part in data)])


def _bitmap(present: np.ndarray[Any, Any], rows: int, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(present[:rows], bitorder="little")) if nulls else None
