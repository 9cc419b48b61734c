"""Reads and writes through Spark over 1 to 64 partitions, and of messages of 100 B to 100 KB.

    python benchmarks/scaling.py [--runs 3] [--scale 1] [--json FILE]

The same bytes of payload at every point, two task slots, the broker on the same cores. Over more partitions, messages
are of 100 B; every partition is a task of the read, while the two tasks of the write take the partitions in turn. Each
point stands beside its ceiling from the same run, in turn: a source that hands out the same Arrow batch again and again
with the same columns and the same number of tasks, a sink that counts rows and drops them. Read the ratios along a row
of points: they are what scaling costs.
"""

from __future__ import annotations

from functools import partial

from figures import Figure, Report, arguments, medians
from pyspark.sql import DataFrame, SparkSession
from source_ceiling import CeilingSource
from spark_bench import PARTITIONS, TOPIC, Case, broker, importable_by_workers, spark
from spark_read import to_noop
from spark_write import DropSink, frame_of, write

from metaq_spark.source.row_layout import COLUMN_TYPES

PAYLOAD_BYTES = 100_000_000
"""Of each point."""

COUNTS = (1, 4, 16, 64)
SIZES = (100, 1000, 10_000, 100_000)
SMALL = SIZES[0]
COLUMNS = ",".join(COLUMN_TYPES)


def case_of(payload_bytes: int, scale: float) -> Case:
    """As many messages of that size as a point has; at least one for each partition."""
    return Case(payload_bytes, max(max(COUNTS), int(PAYLOAD_BYTES * scale) // payload_bytes))


class Points:
    """Measures one point after the other, against a broker whose topics have so many ``partitions``."""

    def __init__(self, report: Report, session: SparkSession, runs: int, address: str, partitions: int) -> None:
        self._report, self._session, self._runs = report, session, runs
        self._address, self._partitions = address, partitions

    def measure(self, point: str, case: Case) -> None:
        """Write ``case`` and read it, under the name ``point``."""
        self._read(point, case)
        self._write(point, case)

    def _read(self, point: str, case: Case) -> None:
        topic = f"{TOPIC}-read-{case.payload_bytes}"
        even = frame_of(self._session, case).selectExpr(
            "value", f"int(monotonically_increasing_id() % {self._partitions}) partition"
        )
        write(even, "metaq", brokers=self._address, topic=topic)
        given = {"brokers": self._address, "subscribe": topic, "columns": COLUMNS}
        metaq = self._session.read.format("metaq").options(**given).load()
        bound = self._session.read.format(CeilingSource.name()).options(
            rows=case.rows, payloadBytes=case.payload_bytes, tasks=metaq.rdd.getNumPartitions(), columns=COLUMNS
        )
        self._compare(f"read, {point}", case, metaq, bound.load())

    def _compare(self, name: str, case: Case, metaq: DataFrame, bound: DataFrame) -> None:
        assert metaq.count() == case.rows
        self._add(name, case, medians([partial(to_noop, metaq), partial(to_noop, bound)], self._runs))

    def _write(self, point: str, case: Case) -> None:
        frame = frame_of(self._session, case)
        ours = partial(write, frame, "metaq", brokers=self._address, topic=f"{TOPIC}-written-{case.payload_bytes}")
        self._add(f"write, {point}", case, medians([ours, partial(write, frame, "drop")], self._runs))

    def _add(self, name: str, case: Case, seconds: list[float]) -> None:
        megabytes = case.rows * case.payload_bytes / 1e6
        ours, ceiling = (megabytes / each for each in seconds)
        self._report.add(Figure(name, "MB/s", ours, ceiling, "ceiling"))


def main() -> None:
    given = arguments(__doc__, runs=3).parse_args()
    importable_by_workers()
    with Report("Scaling over partitions and sizes of messages", given.json) as report, spark(False) as session:
        for source in (CeilingSource, DropSink):
            session.dataSource.register(source)
        for count in COUNTS:
            with broker(count) as address:
                point = f"{count} partition" + "s" * (count > 1)
                Points(report, session, given.runs, address, count).measure(point, case_of(SMALL, given.scale))
        with broker() as address:
            points = Points(report, session, given.runs, address, PARTITIONS)
            for size in SIZES:
                points.measure(f"{size} B", case_of(size, given.scale))


if __name__ == "__main__":
    main()
