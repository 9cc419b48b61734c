"""Decodes runs of frames of one partition into record batches of Spark's exact types.

A decoder gathers rows over several runs and returns a batch when it is full, so small runs do not produce small
batches. The compiled and the plain decoder return the same rows; ``engine`` chooses between them. Unselected columns
are neither copied nor allocated, but every frame is checked.

In an attribute that is not valid UTF-8 each invalid byte sequence is replaced by U+FFFD, because Spark's strings must
be UTF-8 and one odd attribute should not block a partition. The payload is never changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.errors import CorruptFrame
from metaq.formats.message_types import OFFSET_BYTES
from metaq.formats.native_crc import crc32_address
from metaq.model import Buffer, TopicPartition
from metaq_spark.columns.batches import BatchMaker
from metaq_spark.columns.engine import ColumnEngine, shared_engine
from metaq_spark.columns.plain import PlainDecoder
from metaq_spark.columns.row_layout import RowLayout, message_layout
from metaq_spark.columns.text import text_of

ROWS_MAX: Final = 32768
"""Limit on rows of a batch."""

BYTES_MAX: Final = 4 << 20
"""Payload bytes of a batch; a single larger message becomes a separate batch."""


Batches = Generator[pa.RecordBatch, None, int]
"""Batches, and in the end how many bytes were decoded."""


class RunDecoder:
    """Decodes the runs of one partition into record batches. Switches to the compiled loops when ``engine`` says so."""

    def __init__(
        self,
        source: TopicPartition,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        engine: ColumnEngine | None = None,
        layout: RowLayout | None = None,
        types: tuple[str, ...] | None = None,
        end: int = 0,
    ) -> None:
        """``end``: the offset after the last byte of the task, 0 if it is unknown."""
        self._end = end
        self._maker = BatchMaker(source, layout or message_layout(), types)
        self._limits, self._engine = (rows_max, bytes_max), engine or shared_engine()
        self._decoder: PlainDecoder | CompiledDecoder = PlainDecoder(self._maker, *self._limits)

    def decode(self, data: Buffer, base_offset: int, *, may_be_cut: bool = False) -> Batches:
        """Decode the whole frames of a run that starts at ``base_offset``; yield full batches.

        Returns the number of bytes consumed: all, unless the last frame ``may_be_cut``, or its length is invalid, which
        the caller must check. ``data`` is not used any more after the last batch was taken.

        Raises:
            CorruptFrame: A checksum is wrong, or a frame is cut that must not be. Earlier rows are kept, and the
                decoder can continue after the frame.
        """
        full = self._move_on(len(data), self._end - base_offset)
        decoded = self._decoder.decode(data, base_offset, may_be_cut=may_be_cut)
        return decoded if full is None else _behind(full, decoded)

    def decode_addressed(self, data: bytes) -> Batches:
        """The same for frames that each have their own offset in front, as an int64.

        Raises:
            CorruptFrame: As ``decode``.
        """
        full = self._move_on(len(data))
        decoded = self._decoder.decode_addressed(data)
        return decoded if full is None else _behind(full, decoded)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows still inside, if any."""
        return self._decoder.flush()

    def _move_on(self, byte_count: int, task_bytes_left: int = 0) -> Iterator[pa.RecordBatch] | None:
        """Switch to the compiled decoder when it is time; return the remaining batches of the plain one."""
        if isinstance(self._decoder, CompiledDecoder):
            return None
        kernels = self._engine.kernels_for(byte_count, task_bytes_left)
        if kernels is None:
            return None
        full = self._decoder.flush()
        self._decoder = CompiledDecoder(self._maker, *self._limits, kernels)
        return full


def _behind(full: Iterator[pa.RecordBatch], decoded: Batches) -> Batches:
    yield from full
    return (yield from decoded)


def _bytes_of(data: Buffer) -> np.ndarray[Any, Any]:
    """Return a read-only view of ``data``: numba compiles a version for each kind of array."""
    run = np.frombuffer(data, dtype=np.uint8)
    run.flags.writeable = False
    return run


class CompiledDecoder:
    def __init__(self, maker: BatchMaker, rows_max: int, bytes_max: int, kernels: ModuleType) -> None:
        self._maker, self._kernels = maker, kernels
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._crc = crc32_address()
        self._start_batch(bytes_max)

    def _start_batch(self, value_bytes: int) -> None:
        """Allocate new column buffers: the previous ones belong to the batch. Buffers of unneeded columns have length
        0.
        """
        self._state = np.zeros(self._kernels.STATE_SIZE, dtype=np.int64)
        self._offsets = self._column("offset", np.int64)
        self._ids = self._column("message_id", np.int64)
        self._times, self._timed = self._column("timestamp", np.int64), self._column("timestamp", np.uint8)
        self._attribute_ends, self._attributed = self._ends("attribute"), self._column("attribute", np.uint8)
        self._attributes = self._column("attribute", np.uint8, value_bytes)
        self._value_ends, self._values = self._ends("value"), self._column("value", np.uint8, value_bytes)

    def _column(self, name: str, dtype: type[np.generic], count: int | None = None) -> np.ndarray[Any, Any]:
        return np.empty((self._rows_max if count is None else count) if name in self._maker.needed else 0, dtype)

    def _ends(self, name: str) -> np.ndarray[Any, Any]:
        ends = self._column(name, np.int32, self._rows_max + 1)
        ends[:1] = 0
        return ends

    def decode(self, data: Buffer, base_offset: int, *, may_be_cut: bool = False, address_bytes: int = 0) -> Batches:
        """Decode a run; see ``RunDecoder``. ``address_bytes``: size of an offset in front of each frame."""
        run, k = _bytes_of(data), self._kernels
        self._state[k.POSITION] = 0
        while (status := self._run_kernel(run, base_offset, address_bytes)) != k.DONE:
            position = int(self._state[k.POSITION])
            if status == k.BAD_LENGTH and may_be_cut:
                return position
            if status != k.FULL:
                address = run[position : position + address_bytes].tobytes()
                offset = int.from_bytes(address) if address else base_offset + position
                raise CorruptFrame(str(self._maker.source), offset, self._reason(status))
            needed = int(self._state[k.NEEDED])
            if (batch := self._batch()) is not None:
                yield batch
            self._start_batch(max(needed, self._bytes_max))
            self._state[k.POSITION] = position
        return len(run)

    def decode_addressed(self, data: bytes) -> Batches:
        return self.decode(data, 0, address_bytes=OFFSET_BYTES)

    def flush(self) -> Iterator[pa.RecordBatch]:
        if self._state[self._kernels.ROW] > 0:
            if (batch := self._batch()) is not None:
                yield batch
            self._start_batch(self._bytes_max)

    def _run_kernel(self, run: np.ndarray[Any, Any], base_offset: int, address_bytes: int) -> int:
        status: int = self._kernels.decode_frames(
            run, base_offset, address_bytes, self._rows_max, self._crc, self._kernels.CRC_TABLES, self._state,
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

    def _batch(self) -> pa.RecordBatch | None:
        """Return the batch of the rows gathered; ``None`` if there are none, or none that is wanted."""
        k, state, needed = self._kernels, self._state, self._maker.needed
        if not (rows := int(state[k.ROW])):
            return None
        columns: dict[str, pa.Array] = {}
        if "offset" in needed:
            columns["offset"] = _array(pa.int64(), rows, None, self._offsets)
        if "message_id" in needed:
            columns["message_id"] = _array(pa.int64(), rows, None, self._ids)
        if "timestamp" in needed:
            validity = _bitmap(self._timed, rows, state[k.WITHOUT_TIME])
            columns["timestamp"] = _array(pa.timestamp("us", tz="UTC"), rows, validity, self._times)
        if "attribute" in needed:
            columns["attribute"] = self._attribute_column(rows)
        if "value" in needed:
            values = self._values[: state[k.VALUE_BYTES]]
            columns["value"] = _array(pa.binary(), rows, None, self._value_ends, values)
        return self._maker.batch(rows, columns)

    def _attribute_column(self, rows: int) -> pa.Array:
        k, state = self._kernels, self._state
        without = int(state[k.WITHOUT_ATTRIBUTE])
        if without == rows:
            return pa.nulls(rows, pa.string())
        validity = _bitmap(self._attributed, rows, without)
        attributes = self._attributes[: state[k.ATTRIBUTE_BYTES]]
        if not state[k.NON_ASCII]:
            return _array(pa.string(), rows, validity, self._attribute_ends, attributes)
        return text_of(_array(pa.binary(), rows, validity, self._attribute_ends, attributes))


def _array(arrow_type: pa.DataType, rows: int, validity: pa.Buffer | None, *data: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, rows, [validity, *(pa.py_buffer(part) for part in data)])


def _bitmap(present: np.ndarray[Any, Any], rows: int, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(present[:rows], bitorder="little")) if nulls else None
