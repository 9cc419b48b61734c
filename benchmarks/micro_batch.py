"""Measures a small micro-batch, and a query with nothing to do, beside the cheapest possible Python source.

    python benchmarks/micro_batch.py [--others] [--rows 1000] [--batches 8] [--runs 5] [--json FILE]

Each figure is of a streaming query whose micro-batches all have the same number of rows and follow each other as fast
as they can: milliseconds of ``triggerExecution`` (planning, the batch itself, offset log and commit log) from Spark's
own progress. The connector and its peer run alternately, in blocks of a few batches, after one block of each that does
not count; a figure is the median of the medians of the blocks. The peer uses nothing of this project: ``trivial ->
trivial`` makes its rows in Python and drops them there. The number after ``metaq`` counts the topic's partitions.

How many requests a micro-batch of these queries sends to the broker, and how many round trips it waits for, is counted
by a relay in front of the broker, in blocks of their own.

With ``--others``: exactly once, without the Unix socket between Spark and Python, and idle queries. These poll their
source about every 12 ms. The cost of one is the CPU seconds of the JVM, its Python processes and the broker, as a share
of one core.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from bare_peer import counting
from ceilings import Trivial
from figures import Figure, Report, alternating, arguments
from machine import cpu_s
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from stage import broker, spark

from metaq.model import Address

WARM_UP_BATCHES = 2
PARTITION_COUNTS = (1, 100)
IDLE_S = 2.0
PEER = "trivial -> trivial"

Source = Callable[[], DataFrame]
Sink = Callable[[DataFrame], DataStreamWriter]


@dataclass(frozen=True)
class Query:
    """``name`` is the figure's, ``aim`` its greatest ratio to the peer."""

    name: str
    source: Source
    sink: Sink
    aim: float | None = None


class Bench:
    """The sources and the sinks, and the cost of a query of one of each in milliseconds."""

    def __init__(self, session: SparkSession, brokers: dict[int, str], given: argparse.Namespace) -> None:
        self._session, self._brokers = session, brokers
        self._rows, self._batches = given.rows, given.batches
        self._numbers = count()
        session.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        session.dataSource.register(Trivial)

    def trivial(self, rows: int | None = None) -> DataFrame:
        return self._session.readStream.format("trivial").option("rows", self._rows if rows is None else rows).load()

    def metaq(self, partitions: int, start: str = "earliest", broker: str | None = None) -> DataFrame:
        options = {"subscribe": "filled", "startingOffsets": start, "columns": "value"}
        brokers = broker or self._brokers[partitions]
        reader = self._session.readStream.format("metaq").options(brokers=brokers, **options)
        return reader.option("maxOffsetsPerTrigger", self._rows).load()

    def fill(self, partitions: int) -> None:
        """Put enough messages for a block, evenly over the partitions of topic ``filled``."""
        rows = self._session.range(self._rows * (self._batches + WARM_UP_BATCHES + 8), numPartitions=1)
        rows = rows.selectExpr("cast(lpad(string(id), 100, '0') as binary) value", f"int(id % {partitions}) partition")
        writer = rows.write.format("metaq").mode("append")
        writer.options(brokers=self._brokers[partitions], topic="filled").save()

    def drop(self, rows: DataFrame) -> DataStreamWriter:
        return rows.writeStream.format("trivial")

    def to(self, partitions: int, **options: str) -> Sink:
        def write(rows: DataFrame) -> DataStreamWriter:
            writer = rows.writeStream.format("metaq").options(brokers=self._brokers[partitions], topic="out")
            return writer.options(**options)

        return write

    def block(self, query: Query) -> float:
        """Run a query for a block; return the median of its full batches without the first ones."""
        with self._started(query) as running_query:
            while running_query.isActive and len(self._full(running_query)) < self._batches + WARM_UP_BATCHES:
                running_query.awaitTermination(0.05)  # type: ignore[arg-type]  # Spark takes fractions
            if (failure := running_query.exception()) is not None:
                raise failure
            return statistics.median(self._full(running_query)[WARM_UP_BATCHES:])

    def _full(self, query: StreamingQuery) -> list[float]:
        return [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows >= self._rows]

    def asked(self, partitions: int, **options: str) -> tuple[float, float]:
        """Return the requests and the round trips of a full micro-batch, without the first ones."""
        with counting(Address.parse(self._brokers[partitions])) as (address, counts):
            source = partial(self.metaq, partitions, broker=str(address))
            sink = self.to(partitions, brokers=str(address), **options)
            with self._started(Query("", source, sink)) as running_query:
                found = []
                for batches in (WARM_UP_BATCHES, WARM_UP_BATCHES + self._batches):
                    while running_query.isActive and len(self._full(running_query)) < batches:
                        running_query.awaitTermination(0.01)  # type: ignore[arg-type]  # as above
                    found.append((len(self._full(running_query)), counts.requests, counts.round_trips))
            if (failure := running_query.exception()) is not None:
                raise failure
        before, after = found
        batches, asked, waited = (now - then for now, then in zip(after, before, strict=True))
        return asked / batches, waited / batches

    def idle_cpu(self, query: Query) -> float:
        """Return the per cent of a core that an idle query takes."""
        with self._started(query) as idle:
            idle.processAllAvailable()
            time.sleep(IDLE_S / 2)
            before_s, start_s = cpu_s(), time.monotonic()
            time.sleep(IDLE_S)
            return 100 * (cpu_s() - before_s) / (time.monotonic() - start_s)

    @contextmanager
    def _started(self, query: Query) -> Iterator[StreamingQuery]:
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            writer = query.sink(query.source()).option(
                "checkpointLocation", str(Path(folder) / str(next(self._numbers)))
            )
            started = writer.start()
            try:
                yield started
            finally:
                started.stop()


def small_batches(bench: Bench, given: argparse.Namespace, report: Report) -> None:
    queries = [Query(PEER, bench.trivial, bench.drop)]
    for n, aim in zip(PARTITION_COUNTS, (1.15, 1.3), strict=True):
        queries.append(Query(f"metaq {n} -> metaq {n}", partial_source(bench, n), bench.to(n), aim))
    compare(bench, given, report, queries)


def requests(bench: Bench, given: argparse.Namespace, report: Report, **options: str) -> None:
    """Add what a micro-batch asks the broker, at each number of partitions."""
    for n in PARTITION_COUNTS:
        name = f"micro-batch of {given.rows:,} rows, metaq {n} -> metaq {n}{', exactly once' if options else ''}"
        for unit, value in zip(("requests", "round trips"), bench.asked(n, **options), strict=True):
            report.add(Figure(f"{name}, {unit}", unit, value, better="less"))


def exactly_once(bench: Bench, given: argparse.Namespace, report: Report) -> None:
    queries = [Query(PEER, bench.trivial, bench.drop)]
    for n in PARTITION_COUNTS:
        sink = bench.to(n, delivery="exactly_once")
        queries.append(Query(f"metaq {n} -> metaq {n}, exactly once", partial_source(bench, n), sink))
    compare(bench, given, report, queries)


def compare(bench: Bench, given: argparse.Namespace, report: Report, queries: Sequence[Query]) -> None:
    """Add the figures of all queries beside the first one's."""
    peer_ms, *ours_ms = alternating([partial(bench.block, query) for query in queries], given.runs)
    for query, ours in zip(queries[1:], ours_ms, strict=True):
        report.add(figure(given, query.name, ours, peer_ms, PEER, query.aim))


def partial_source(bench: Bench, partitions: int) -> Source:
    return lambda: bench.metaq(partitions)


def over_tcp(bench: Bench, given: argparse.Namespace, report: Report, unix_ms: float) -> None:
    """Measure without the Unix socket between the JVM and Python."""
    queries = [Query(PEER, bench.trivial, bench.drop), Query("", partial_source(bench, 1), bench.to(1))]
    peer_ms, ours_ms = alternating([partial(bench.block, query) for query in queries], min(given.runs, 3))
    report.add(figure(given, "metaq 1 -> metaq 1, TCP to Python", ours_ms, peer_ms, f"{PEER}, TCP to Python"))
    report.add(figure(given, "metaq 1 -> metaq 1, Unix socket to Python", unix_ms, ours_ms, "TCP to Python"))


def idle(bench: Bench, given: argparse.Namespace, report: Report) -> None:
    queries = [
        Query("trivial", lambda: bench.trivial(rows=0), bench.drop),
        *(Query("metaq", partial(bench.metaq, n, start="latest"), bench.to(n)) for n in PARTITION_COUNTS),
    ]
    peer, *ours = alternating([partial(bench.idle_cpu, query) for query in queries], min(given.runs, 3), unmeasured=0)
    for n, share in zip(PARTITION_COUNTS, ours, strict=True):
        name = f"idle query, metaq {n} -> metaq {n}"
        report.add(Figure(name, "% of a core", share, peer, f"idle {PEER}", better="less"))


def figure(
    given: argparse.Namespace, name: str, ours: float, peer: float, peer_name: str, aim: float | None = None
) -> Figure:
    return Figure(f"micro-batch of {given.rows:,} rows, {name}", "ms", ours, peer, peer_name, better="less", aim=aim)


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batches", type=int, default=8, help="measured micro-batches of a block (default 8)")
    parser.add_argument("--others", action="store_true", help="exactly once, TCP to Python and idle queries instead")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a micro-batch (default 1000)")
    given = parser.parse_args(words)
    given.batches = max(2, round(given.batches * given.scale))
    with ExitStack() as stack:
        title = (
            "Small micro-batches exactly once, over TCP, and idle queries" if given.others else "Small micro-batches"
        )
        report = stack.enter_context(Report(title, given.json))
        brokers = {n: stack.enter_context(broker(n)) for n in PARTITION_COUNTS}
        with spark() as session:
            bench = Bench(session, brokers, given)
            for n in PARTITION_COUNTS:
                bench.fill(n)
            if not given.others:
                small_batches(bench, given, report)
                requests(bench, given, report)
                return
            exactly_once(bench, given, report)
            requests(bench, given, report, delivery="exactly_once")
            idle(bench, given, report)
            query = Query("", partial_source(bench, 1), bench.to(1))
            (unix_ms,) = alternating([partial(bench.block, query)], min(given.runs, 3))
        with spark(unix_socket=False) as session:
            over_tcp(Bench(session, brokers, given), given, report, unix_ms)


if __name__ == "__main__":
    main()
