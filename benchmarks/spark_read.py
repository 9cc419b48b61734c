"""How fast a batch read through ``format("metaq")`` is, beside what Spark lets any Python data source do.

    python benchmarks/spark_read.py [--runs 5] [--scale 1]

The ceiling is a source that hands out the same Arrow batch again and again: the same columns, types, rows and number of
tasks, and no broker, no decoding, no checksum behind it. Both write to ``noop``, in turn, in one session; the broker
runs on the same machine and takes its share of the same cores. The ratio carries over to other machines, the times do
not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from spark_bench import CASES, PARTITIONS, TOPIC, Case, arguments, broker, medians, print_head, print_row, spark

from metaq_spark.columns.decode import BYTES_MAX, ROWS_MAX
from metaq_spark.columns.schema import ARROW_SCHEMA, READ_DDL


def ceiling_batch(payload_bytes: int) -> pa.RecordBatch:
    """A batch as the connector makes them, by content and by size."""
    rows = min(ROWS_MAX, BYTES_MAX // payload_bytes)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([TOPIC] * rows, pa.string()),
            pa.array([0] * rows, pa.int32()),
            pa.array([1] * rows, pa.int32()),
            pa.array(range(0, rows * 120, 120), pa.int64()),
            pa.array(range(rows), pa.int64()),
            pa.array(range(rows), pa.timestamp("us", tz="UTC")),
            pa.nulls(rows, pa.string()),
            pa.array([os.urandom(payload_bytes) for _ in range(rows)], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )


class CeilingReader(DataSourceReader):
    """Hands out ``rows`` rows over all tasks."""

    def __init__(self, rows: int, payload_bytes: int) -> None:
        self.rows, self.payload_bytes = rows, payload_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, left = ceiling_batch(self.payload_bytes), partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class CeilingSource(DataSource):
    """``format("ceiling")``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return READ_DDL

    def reader(self, schema: StructType) -> CeilingReader:
        return CeilingReader(int(self.options["rows"]), int(self.options["payloadbytes"]))


def fill(session: SparkSession, address: str, case: Case) -> None:
    """Put ``case.rows`` messages of different content into a topic of their own, evenly over its partitions."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    rows = session.range(case.rows, numPartitions=2).selectExpr(value, f"int(id % {PARTITIONS}) partition")
    rows.write.format("metaq").mode("append").options(brokers=address, topic=topic_of(case)).save()


def topic_of(case: Case) -> str:
    return f"{TOPIC}-{case.payload_bytes}"


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    given = arguments(__doc__)
    with broker() as address, spark() as session:
        session.dataSource.register(CeilingSource)
        print_head("metaq", "ceiling")
        for case in (Case(case.payload_bytes, int(case.rows * given.scale)) for case in CASES):
            fill(session, address, case)
            metaq = session.read.format("metaq").options(brokers=address, subscribe=topic_of(case)).load()
            bound = session.read.format("ceiling").options(rows=case.rows, payloadBytes=case.payload_bytes).load()
            assert metaq.count() == bound.count() == case.rows
            print_row(case, *medians(partial(to_noop, metaq), partial(to_noop, bound), given.runs))


if __name__ == "__main__":
    main()
