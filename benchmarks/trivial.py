"""The least that a source and a sink in Python cost: the peers that small batches are compared with.

``trivial`` makes its rows from nothing and drops what it is given. ``tail`` reads a growing file of equal records:
its newest offset is the file's size. ``arrivals`` is a sink that tells by datagram when each row got there.

Python workers import this module; ``spark_bench.importable_by_workers`` lets them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    """``rows`` rows a batch, in so many tasks; none at all, ever, if that is 0."""

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
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as teller:
            for batch in iterator:
                now_ns = time.monotonic_ns()
                for value in batch.column(0).to_pylist():
                    teller.sendto(ARRIVAL.pack(int.from_bytes(value[:8]), now_ns), ("127.0.0.1", self._port))
                count += batch.num_rows
        return Dropped(count)


class Arrivals(DataSource):
    """``format("arrivals")``. Option: ``port``, where datagrams go."""

    @classmethod
    def name(cls) -> str:
        return "arrivals"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrivalsWriter:
        return ArrivalsWriter(int(self.options["port"]))
