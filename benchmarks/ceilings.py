"""The ceilings: sources and sinks in Python that cost as little as Spark allows.

``ceiling`` returns the same Arrow batch repeatedly, with the columns, types, batch size, rows and number of tasks of
the read that it is compared with, without a broker, decoding or checksums; as a batch and as a stream. With the option
``server`` it first receives, and drops, as many bytes as the messages would have, from a server that only does
``sendfile``: the cost of any source whose rows arrive over the network.

``trivial`` makes its rows without input and drops rows that it gets. ``tail`` reads a growing file of equal records:
its newest offset is the file's size. ``arrivals`` is a sink that reports by datagram when each row arrived.

Python workers import this module (``stage.importable_by_workers``): a worker makes a batch once and keeps it, so no
task has to make it again.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from metaq.formats.frames import HEADER_BYTES
from metaq.model import Address
from metaq_spark.columns.decode import BYTES_MAX, ROWS_MAX
from metaq_spark.columns.row_layout import message_layout
from metaq_spark.columns.schema import ARROW_SCHEMA

REQUEST: Final = b"get bench spark 0 1000000000 1048576 1000\r\n"
"""It has the length of the connector's get; its contents are not read."""

SLICE_BYTES: Final = 1 << 20
"""Bytes of the answer to one request."""


@cache
def ceiling_batch(payload_bytes: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return a batch with the connector's contents and size."""
    rows = max(1, min(ROWS_MAX, BYTES_MAX // payload_bytes))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["bench"] * rows, pa.string()),
            pa.array([0] * rows, pa.int32()),
            pa.array([1] * rows, pa.int32()),
            pa.array(range(0, rows * 120, 120), pa.int64()),
            pa.array(range(rows), pa.int64()),
            pa.array(range(rows), pa.timestamp("us", tz="UTC")),
            pa.nulls(rows, pa.string()),
            pa.array([os.urandom(payload_bytes) for _ in range(rows)], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    ).select(columns)


class CeilingReader(DataSourceReader):
    """Returns ``rows`` rows over ``tasks`` tasks. With a ``server``, their bytes are received from it first."""

    def __init__(
        self, rows: int, payload_bytes: int, tasks: int, columns: tuple[str, ...], server: Address | None = None
    ) -> None:
        self.rows, self.payload_bytes, self.tasks, self.columns = rows, payload_bytes, tasks, columns
        self._server = server

    def partitions(self) -> list[InputPartition]:
        marks = [self.rows * number // self.tasks for number in range(self.tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(marks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, left = ceiling_batch(self.payload_bytes, self.columns), partition.value
        with ExitStack() as stack:
            received = stack.enter_context(Received(self._server)) if self._server else None
            while left > 0:
                rows = min(left, batch.num_rows)
                if received is not None:
                    received.take(rows * (HEADER_BYTES + self.payload_bytes))
                yield batch.slice(0, rows)
                left -= rows


class Received:
    """Receives from a ``bare_peer.serve_slices`` like the connector: in parts of a fixed size, one request ahead."""

    def __init__(self, server: Address) -> None:
        self._connection = socket.create_connection((server.host, server.port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(SLICE_BYTES))
        self._left = 0
        self._connection.sendall(REQUEST)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def take(self, byte_count: int) -> None:
        """Receive this many bytes and drop them."""
        while byte_count:
            if not self._left:
                self._connection.sendall(REQUEST)
                self._left = SLICE_BYTES
            taken = self._connection.recv_into(self._buffer, min(self._left, byte_count))
            assert taken, "the server closed the connection"
            self._left -= taken
            byte_count -= taken


class CeilingStreamReader(DataSourceStreamReader):
    """The same rows as one micro-batch."""

    def __init__(self, reader: CeilingReader) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # the old form
        return {"row": self._reader.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


class CeilingSource(DataSource):
    """``format("ceiling")``; options ``rows``, ``payloadBytes``, ``tasks``, ``columns`` and, if wanted, ``server``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return message_layout(self._columns).ddl

    def reader(self, schema: StructType) -> CeilingReader:
        rows, payload_bytes, tasks = (int(self.options[name]) for name in ("rows", "payloadbytes", "tasks"))
        server = self.options.get("server")
        return CeilingReader(rows, payload_bytes, tasks, self._columns, Address.parse(server) if server else None)

    def streamReader(self, schema: StructType) -> CeilingStreamReader:
        return CeilingStreamReader(self.reader(schema))

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(self.options["columns"].split(","))


SCHEMA = pa.schema([("value", pa.binary())])
PAYLOAD_BYTES = 100
ARRIVAL = struct.Struct(">qq")
"""A message of ``arrivals``: when the row was sent, as its first 8 bytes say, and when it arrived; monotonic ns."""


def rows_of(values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values}, SCHEMA)


@dataclass
class Dropped(WriterCommitMessage):
    rows: int


class TrivialStreamReader(DataSourceStreamReader):
    """``rows`` rows a batch, in ``tasks`` tasks; 0 rows: never a batch."""

    def __init__(self, rows: int, tasks: int) -> None:
        self._rows, self._tasks, self._next = rows, tasks, 0

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # the old form
        self._next += self._rows
        return {"at": self._next}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield rows_of([b"x" * PAYLOAD_BYTES] * partition.value)


class TrivialReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield rows_of([b"x" * PAYLOAD_BYTES] * partition.value)


class TrivialWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        return Dropped(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class Trivial(DataSource):
    """``format("trivial")``. Options: ``rows``, ``tasks``."""

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> TrivialReader:
        return TrivialReader(int(self.options["rows"]))

    def streamReader(self, schema: StructType) -> TrivialStreamReader:
        return TrivialStreamReader(int(self.options["rows"]), int(self.options.get("tasks", 1)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TrivialWriter:
        return TrivialWriter()


class TailReader(DataSourceStreamReader):
    def __init__(self, file: Path) -> None:
        self._file = file

    def initialOffset(self) -> dict[str, int]:
        return self.latestOffset()

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # the old form
        return {"at": self._file.stat().st_size}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        with self._file.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        yield rows_of([data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)])


class Tail(DataSource):
    """``format("tail")``. Option: ``path``, of a file of records of ``PAYLOAD_BYTES``."""

    @classmethod
    def name(cls) -> str:
        return "tail"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> TailReader:
        return TailReader(Path(self.options["path"]))


class ArrivalsWriter(TrivialWriter):
    def __init__(self, port: int) -> None:
        self._port = port

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        count = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for batch in iterator:
                now_ns = time.monotonic_ns()
                for value in batch.column(0).to_pylist():
                    sender.sendto(ARRIVAL.pack(int.from_bytes(value[:8]), now_ns), ("127.0.0.1", self._port))
                count += batch.num_rows
        return Dropped(count)


class Arrivals(DataSource):
    """``format("arrivals")``. Option: ``port``, where datagrams go."""

    @classmethod
    def name(cls) -> str:
        return "arrivals"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrivalsWriter:
        return ArrivalsWriter(int(self.options["port"]))
