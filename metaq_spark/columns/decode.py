"""Frames to columns: runs of one partition go in, record batches of Spark's exact types come out.

A decoder gathers rows over several runs and hands out a batch when it is full, so small runs do not make small batches.
The compiled and the plain decoder give the same rows; ``engine`` says which is used.

An attribute that is not valid UTF-8 comes out with U+FFFD for each byte sequence that is not, because Spark's strings
must be UTF-8 and one odd attribute is no reason to hold back a partition. The payload is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.errors import CorruptFrame
from metaq.model import Buffer, TopicPartition
from metaq.wire.text.frames import whole_bytes
from metaq_spark.columns.engine import Engine, shared_engine
from metaq_spark.columns.memory import room
from metaq_spark.columns.native_crc import crc32_address
from metaq_spark.columns.plain import PlainDecoder
from metaq_spark.columns.schema import ConstantColumns

ROWS_MAX: Final = 32768
"""Most rows of a batch."""

BYTES_MAX: Final = 4 << 20
"""Payload bytes of a batch; a single message above this makes a batch of its own."""


class RunDecoder:
    """Turns the runs of one partition into record batches. Moves on to the compiled loops when ``engine`` says so."""

    def __init__(
        self,
        source: TopicPartition,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        engine: Engine | None = None,
    ) -> None:
        self._source, self._limits, self._engine = source, (rows_max, bytes_max), engine or shared_engine()
        self._decoder: PlainDecoder | CompiledDecoder = PlainDecoder(source, *self._limits)

    def decode(self, data: bytes, base_offset: int) -> Iterator[pa.RecordBatch]:
        """Take in a run of whole frames that starts at ``base_offset``; yield the batches that got full.

        Raises:
            CorruptFrame: A frame's header is impossible or its checksum is wrong. Rows before it may still be inside.
        """
        if isinstance(self._decoder, PlainDecoder):
            kernels = self._engine.kernels_for(len(data))
            if kernels is not None:
                yield from self._decoder.flush()
                self._decoder = CompiledDecoder(self._source, *self._limits, kernels)
        yield from self._decoder.decode(data, base_offset)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside, if any."""
        return self._decoder.flush()


def measure_run(data: Buffer) -> int:
    """Length of the whole frames at the front of a buffer, by the fastest loop that this process has loaded."""
    kernels = shared_engine().kernels_for(0)
    return whole_bytes(data) if kernels is None else int(kernels.whole_frames(np.frombuffer(data, dtype=np.uint8)))


class CompiledDecoder:
    """The decoder that runs ``kernels``."""

    def __init__(self, source: TopicPartition, rows_max: int, bytes_max: int, kernels: ModuleType) -> None:
        self._source, self._kernels = source, kernels
        self._constants = ConstantColumns(source, rows_max)
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._crc = crc32_address()
        self._start_batch(bytes_max)

    def _start_batch(self, value_bytes: int) -> None:
        """Fresh column buffers: the last ones belong to the batch now."""
        rows = self._rows_max
        self._state = np.zeros(self._kernels.STATE_SIZE, dtype=np.int64)
        self._offsets, self._ids, self._times = (room(rows, np.int64) for _ in range(3))
        self._timed, self._attributed = room(rows, np.uint8), room(rows, np.uint8)
        self._attribute_ends, self._value_ends = room(rows + 1, np.int32), room(rows + 1, np.int32)
        self._attribute_ends[0] = self._value_ends[0] = 0
        self._attributes, self._values = room(value_bytes, np.uint8), room(value_bytes, np.uint8)

    def decode(self, data: bytes, base_offset: int) -> Iterator[pa.RecordBatch]:
        """Take in a run; see ``RunDecoder``."""
        run = np.frombuffer(data, dtype=np.uint8)
        k = self._kernels
        self._state[k.POSITION] = 0
        while (status := self._run_kernel(run, base_offset)) != k.DONE:
            position = int(self._state[k.POSITION])
            if status != k.FULL:
                raise CorruptFrame(str(self._source), base_offset + position, self._reason(status))
            needed = int(self._state[k.NEEDED])
            if self._state[k.ROW] > 0:
                yield self._take()
            self._start_batch(max(needed, self._bytes_max))
            self._state[k.POSITION] = position

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside; see ``RunDecoder``."""
        if self._state[self._kernels.ROW] > 0:
            yield self._take()
            self._start_batch(self._bytes_max)

    def _run_kernel(self, run: np.ndarray[Any, Any], base_offset: int) -> int:
        status: int = self._kernels.decode_frames(
            run, base_offset, self._crc, self._kernels.CRC_TABLES, self._state,
            self._offsets, self._ids, self._times, self._timed,
            self._attribute_ends, self._attributed, self._attributes, self._value_ends, self._values,
        )  # fmt: skip
        return status

    def _reason(self, status: int) -> str:
        return {
            self._kernels.BAD_LENGTH: "the body length is negative or runs past the data",
            self._kernels.BAD_CHECKSUM: "the checksum does not match the body",
            self._kernels.BAD_ATTRIBUTE: "the flag announces an attribute that does not fit into the body",
        }[status]

    def _take(self) -> pa.RecordBatch:
        k, state = self._kernels, self._state
        rows = int(state[k.ROW])
        times = _array(
            pa.timestamp("us", tz="UTC"), rows, _bitmap(self._timed, rows, state[k.WITHOUT_TIME]), self._times
        )
        values = _array(pa.binary(), rows, None, self._value_ends, self._values[: state[k.VALUE_BYTES]])
        return self._constants.batch(
            _array(pa.int64(), rows, None, self._offsets),
            _array(pa.int64(), rows, None, self._ids),
            times,
            self._attribute_column(rows),
            values,
        )

    def _attribute_column(self, rows: int) -> pa.Array:
        k, state = self._kernels, self._state
        without = int(state[k.WITHOUT_ATTRIBUTE])
        if without == rows:
            return pa.nulls(rows, pa.string())
        validity = _bitmap(self._attributed, rows, without)
        attributes = self._attributes[: state[k.ATTRIBUTE_BYTES]]
        column = _array(pa.string(), rows, validity, self._attribute_ends, attributes)
        return valid_utf8(column) if state[k.NON_ASCII] else column


def _array(arrow_type: pa.DataType, rows: int, validity: pa.Buffer | None, *data: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, rows, [validity, *(pa.py_buffer(part) for part in data)])


def _bitmap(present: np.ndarray[Any, Any], rows: int, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(present[:rows], bitorder="little")) if nulls else None


def valid_utf8(column: pa.Array) -> pa.Array:
    """The strings of ``column``, with U+FFFD where their bytes are not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts = [
            None if raw is None else raw.decode("utf-8", "replace") for raw in column.cast(pa.binary()).to_pylist()
        ]
        return pa.array(texts, type=pa.string())
    return column
