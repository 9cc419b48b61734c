"""How fast a batch write through ``format("metaq")`` is, beside what Spark lets any Python data sink do.

    python benchmarks/spark_write.py [--runs 5] [--scale 1]

The ceiling is a sink that counts the rows of its Arrow batches and drops them. Both get the same rows from ``range``,
in turn, in one session. The broker makes every acknowledged block durable before it answers, and runs on the same
machine: what it costs is part of the figure. The ratio carries over to other machines only as far as their disks are
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from spark_bench import CASES, TOPIC, Case, arguments, broker, medians, print_head, print_row, spark


@dataclass
class Dropped(WriterCommitMessage):
    rows: int


class DropWriter(DataSourceArrowWriter):
    """Looks at nothing but the number of rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        return Dropped(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class DropSink(DataSource):
    """``format("drop")``."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:
        return DropWriter()


def frame_of(session: SparkSession, case: Case) -> DataFrame:
    """``case.rows`` payloads, made by the JVM as they are asked for."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    return session.range(case.rows, numPartitions=2).selectExpr(value)


def write(frame: DataFrame, form: str, **options: str) -> None:
    frame.write.format(form).mode("append").options(**options).save()


def main() -> None:
    given = arguments(__doc__)
    with broker() as address, spark() as session:
        session.dataSource.register(DropSink)
        print_head("metaq", "ceiling")
        for case in (Case(case.payload_bytes, int(case.rows * given.scale / 2)) for case in CASES):
            frame, topic = frame_of(session, case), f"{TOPIC}-{case.payload_bytes}"
            subject = partial(write, frame, "metaq", brokers=address, topic=topic)
            print_row(case, *medians(subject, partial(write, frame, "drop"), given.runs))


if __name__ == "__main__":
    main()
