"""How long it takes to plan a query over 1,000 partitions, and how many round trips to the brokers it waits for.

    python benchmarks/planning.py [--runs 5] [--scale 1] [--json FILE]

The brokers are real: one with all partitions, then several with several topics each. Measured are Spark's calls of a
source before its first task: of a stream the first offset, the end of the first micro-batch and its tasks, with and
without limits; of a batch its tasks, plain, from a time on, and more than there are partitions. Each run has new
connections, like a new query. The peer is a limit of one second; less is better.

Round trips: the same over a network whose round trips take longer by a known time; the extra seconds, divided by that
time. Through Spark: the tasks of a batch read, and ``count`` of an empty one, each also beside a Python source without
any request.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bare_peer import far
from figures import Figure, Report, arguments, medians
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from stage import running_broker, spark

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.spark_version import ReadLimit, ReadMaxBytes, ReadMaxRows

LIMIT_S = 1.0
DELAY_S = 0.02
MESSAGES = 100
"""Approximate number of messages of a partition; no two neighbours have the same."""


@dataclass(frozen=True)
class Layout:
    """``brokers`` brokers with ``topics`` topics of ``partitions`` partitions each."""

    brokers: int
    topics: int
    partitions: int

    @property
    def count(self) -> int:
        return self.brokers * self.topics * self.partitions

    @property
    def names(self) -> list[str]:
        return [f"plan-{number}" for number in range(self.topics)]

    def __str__(self) -> str:
        return f"{self.count:,} partitions of {self.brokers} broker" + "s" * (self.brokers > 1)


LAYOUTS = (Layout(1, 1, 1000), Layout(4, 5, 50))


def fill(address: Address, layout: Layout) -> None:
    """Put messages into every partition."""
    message = Message(bytes(100))
    blocks = [encode_block([message] * (MESSAGES + extra)) for extra in range(7)]
    session = Session.connect(address)
    writer = BatchWriter(session, layout.names[0])
    for number in range(layout.topics * layout.partitions):
        topic, index = divmod(number, layout.partitions)
        writer.write(index, *blocks[number % len(blocks)], topic=layout.names[topic])
    writer.flush()
    session.close()


@contextmanager
def brokers(layout: Layout) -> Iterator[list[Address]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
        running = [
            stack.enter_context(running_broker(folder / str(broker_id), layout.partitions, broker_id))
            for broker_id in range(layout.brokers)
        ]
        for broker in running:
            fill(broker.address, layout)
        yield [broker.address for broker in running]


@dataclass(frozen=True)
class Query:
    """A read whose planning is measured; ``limit`` is what Spark passes to a stream, ``None`` = it is a batch."""

    name: str
    options: dict[str, str]
    limit: ReadLimit | None = None
    tasks_min: int = 1

    def plan(self, options: dict[str, str]) -> int:
        """Plan it with new connections; return the number of tasks."""
        pool = SessionPool()
        try:
            tasks = self._tasks(options | self.options, pool)
        finally:
            pool.close()
        assert len(tasks) >= self.tasks_min, f"{self.name}: {len(tasks)} tasks"
        return len(tasks)

    def _tasks(self, options: dict[str, str], pool: SessionPool) -> Sequence[InputPartition]:
        if self.limit is None:
            return BatchReader(MetaQSource(parse_source_options(options, Use.BATCH_READ), pool)).partitions()
        reader = StreamReader(MetaQSource(parse_source_options(options, Use.STREAM_READ), pool))
        start = reader.initialOffset()
        return reader.partitions(start, reader.latestOffset(start, self.limit))


def queries(count: int) -> list[Query]:
    """Return the queries over ``count`` partitions."""
    earliest = {"startingOffsets": "earliest"}
    past = {"startingTimestamp": "2020-01-01T00:00:00Z"}
    return [
        Query("stream", earliest, ReadMaxBytes(1 << 30)),
        Query("stream, maxBytesPerTrigger", earliest, ReadMaxBytes(count * 2000)),
        Query("stream, maxOffsetsPerTrigger", earliest, ReadMaxRows(count * 10)),
        Query("stream, from a time on", past, ReadMaxBytes(1 << 30)),
        Query("batch", {}),
        Query("batch, from a time on", past),
        Query("batch, twice the tasks", {"minPartitions": str(2 * count)}, tasks_min=2 * count),
    ]


def options_of(addresses: Sequence[Address], layout: Layout) -> dict[str, str]:
    return {"brokers": ",".join(map(str, addresses)), "subscribe": ",".join(layout.names)}


def report_planning(report: Report, layout: Layout, addresses: Sequence[Address], runs: int) -> None:
    """Add each query's seconds and round trips."""
    directly = options_of(addresses, layout)
    with ExitStack() as stack:
        # The relay is used without a delay, too, so that its own cost does not count as round trips.
        near, there = (
            options_of([stack.enter_context(far(address, delay_s)) for address in addresses], layout)
            for delay_s in (0, DELAY_S)
        )
        for query in queries(layout.count):
            seconds, near_s, far_s = medians([partial(query.plan, each) for each in (directly, near, there)], runs)
            name = f"plan, {layout}, {query.name}"
            report.add(Figure(name, "s", seconds, LIMIT_S, "limit", better="less", aim=1.0))
            trips = max(0.0, far_s - near_s) / DELAY_S
            report.add(Figure(f"{name}, round trips", "round trips", trips, layout.brokers, "brokers", better="less"))


class SilentReader(DataSourceReader):
    """A given number of partitions, without rows."""

    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter(())


class SilentSource(DataSource):
    """``format("silent")``: the cheapest possible planning of a Python source."""

    @classmethod
    def name(cls) -> str:
        return "silent"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> SilentReader:
        return SilentReader(int(self.options["count"]))


def nothing_of(layout: Layout, addresses: Sequence[Address]) -> dict[str, str]:
    """Return options that begin at the end of every partition."""
    pool = SessionPool()
    reader = StreamReader(MetaQSource(parse_source_options(options_of(addresses, layout), Use.STREAM_READ), pool))
    ends = reader.initialOffset()["topics"]  # latest
    pool.close()
    return {"startingOffsets": json.dumps(ends), "endingOffsets": json.dumps(ends)}


def report_spark(
    report: Report, session: SparkSession, layout: Layout, addresses: Sequence[Address], runs: int
) -> None:
    """Measure through Spark, with a Python process that plans and, for ``count``, one that runs the tasks."""
    given = options_of(addresses, layout)

    def read(**options: str) -> DataFrame:
        return session.read.format("metaq").options(**given, **options).load()

    def silent(count: int) -> DataFrame:
        return session.read.format("silent").options(count=count).load()

    empty = nothing_of(layout, addresses)
    assert read(**empty).count() == 0
    pairs: dict[str, Sequence[Callable[[], Any]]] = {
        # including ``load``: Spark caches the tasks of a frame that it has planned once
        "tasks of a batch in Spark": (
            lambda: read(minBytesPerPartition="1").rdd.getNumPartitions(),
            lambda: silent(layout.count).rdd.getNumPartitions(),
        ),
        "count of an empty batch in Spark": (lambda: read(**empty).count(), lambda: silent(1).count()),
    }
    for name, actions in pairs.items():
        ours, bare = medians(actions, runs)
        full = f"plan, {layout}, {name}"
        report.add(Figure(full, "s", ours, LIMIT_S, "limit", better="less", aim=1.0))
        report.add(Figure(f"{full}, beside a source that asks nobody", "s", ours, bare, "silent source", better="less"))


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(__doc__).parse_args(words)
    with Report("Planning over 1,000 partitions", given.json) as report, spark(unix_socket=False) as session:
        session.dataSource.register(SilentSource)
        for layout in LAYOUTS:
            scaled = Layout(layout.brokers, layout.topics, max(1, int(layout.partitions * given.scale)))
            with brokers(scaled) as addresses:
                report_planning(report, scaled, addresses, given.runs)
                report_spark(report, session, scaled, addresses, given.runs)


if __name__ == "__main__":
    main()
