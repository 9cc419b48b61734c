"""How reads, writes and streaming queries scale with the number of partitions and the size of messages.

python benchmarks/scaling.py scaling [--runs 3] [--scale 1] [--json FILE]
python benchmarks/scaling.py many-partitions [--runs 5] [--scale 1] [--json FILE]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from ceilings import CeilingSource
from figures import Figure, Report, arguments, medians, run_part
from machine import below, running
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_read import to_noop
from spark_write import DropSink, frame_of, write
from stage import PARTITIONS, TOPIC, Case, RunningBroker, broker, running_broker, spark

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message
from metaq_spark.columns.row_layout import COLUMN_TYPES

# ---- scaling

ABOUT_SCALING: Final = """\
Reads and writes through Spark over 1 to 64 partitions, and of messages of 100 B to 100 KB.

The same bytes of payload at every point, two task slots, the broker on the same cores. Over more partitions, messages
are of 100 B; every partition is a task of the read, while the two tasks of the write take the partitions in turn. Each
point stands beside its ceiling from the same run, in turn: a source that hands out the same Arrow batch again and again
with the same columns and the same number of tasks, a sink that counts rows and drops them. Read the ratios along a row
of points: they are what scaling costs.
"""

PAYLOAD_BYTES = 100_000_000
"""Of each point."""

COUNTS = (1, 4, 16, 64)
SIZES = (100, 1000, 10_000, 100_000)
SMALL = SIZES[0]
COLUMNS = ",".join(COLUMN_TYPES)


def case_of(payload_bytes: int, scale: float) -> Case:
    """Return the messages of a point: as many of that size as it has; at least one for each partition."""
    return Case(payload_bytes, max(max(COUNTS), int(PAYLOAD_BYTES * scale) // payload_bytes))


class Points:
    """Measures one point after the other, with a broker whose topics have ``partitions`` partitions."""

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


def main_scaling(words: Sequence[str] | None = None) -> None:
    given = arguments(ABOUT_SCALING, runs=3).parse_args(words)
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


# ---- many-partitions

ABOUT_MANY_PARTITIONS: Final = """\
What a streaming query over many partitions costs: while nothing comes, and when one message comes.

One topic with 4,000 partitions and a message in each, one query that begins at their ends. Idle: CPU seconds a second
of the process that plans, of the JVM and of the broker (beyond what it takes without a query), over ten seconds in
which nothing happens; the limit is 0.05 of a core for all of them. Then one message is put, the trigger with its row is
waited for, and so on ``--runs`` times: the median of Spark's own ``triggerExecution`` beside a limit of 0.3 s, and
beside the same query over one partition. ``--scale`` multiplies the number of partitions. Needs Linux.
"""

STREAM_PARTITIONS = 4000
IDLE_S = 10.0
SETTLE_S = 3.0
"""Seconds between the start of a query, or a trigger, and the measurement."""

IDLE_LIMIT_CORES = 0.05
TRIGGER_LIMIT_S = 0.3
DEADLINE_S = 60.0


def put_each(address: Address, indices: Sequence[int]) -> None:
    """Put a message into each partition."""
    session = Session.connect(address)
    writer = BatchWriter(session, TOPIC)
    block = encode_block([Message(bytes(100))])
    for index in indices:
        writer.write(index, *block)
    writer.flush()
    session.close()


@contextmanager
def streaming(session: SparkSession, broker: RunningBroker) -> Iterator[StreamingQuery]:
    """Start a query and wait until it has found nothing to do."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as checkpoint:
        rows = session.readStream.format("metaq").option("brokers", str(broker.address)).option("subscribe", TOPIC)
        query = rows.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        try:
            yield query
        finally:
            query.stop()


def idle_cores(broker: RunningBroker) -> dict[str, float]:
    """Return the CPU seconds a second of each kind of process while the query is idle."""

    def used() -> dict[str, float]:
        found = {"planning": 0.0, "JVM": 0.0, "broker": 0.0}
        for stat in below(os.getpid(), running()):
            kind = "broker" if stat.pid == broker.pid else "JVM" if stat.name == "java" else "planning"
            found[kind] += stat.cpu_s
        return found

    before, start = used(), time.perf_counter()
    time.sleep(IDLE_S)
    after, lasted = used(), time.perf_counter() - start
    return {kind: (after[kind] - before[kind]) / lasted for kind in after}


def triggers_s(query: StreamingQuery, broker: RunningBroker, count: int, runs: int) -> list[float]:
    """Return the duration, according to Spark, of each trigger that read one new message."""
    took_s = []
    for run in range(runs + 1):  # the first is not counted
        known = {each.batchId for each in query.recentProgress if each.numInputRows}
        put_each(broker.address, [run * 7919 % count])
        end = time.monotonic() + DEADLINE_S
        while not (new := [p for p in query.recentProgress if p.numInputRows and p.batchId not in known]):
            if time.monotonic() > end:
                raise SystemExit("the message did not reach the query")
            time.sleep(0.05)
        took_s.append(new[0].durationMs["triggerExecution"] / 1000)
        time.sleep(0.5)
    return took_s[1:]


def measure_stream(session: SparkSession, count: int, runs: int) -> tuple[dict[str, float], float]:
    """Return idle cores by kind of process, and the median trigger in seconds, with ``count`` partitions."""
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder,
        running_broker(Path(folder) / "broker", count) as broker,
    ):
        put_each(broker.address, range(count))
        time.sleep(SETTLE_S)
        alone = idle_cores(broker)["broker"]
        with streaming(session, broker) as query:
            time.sleep(SETTLE_S)
            cores = idle_cores(broker)
            cores["broker"] = max(0.0, cores["broker"] - alone)
            return cores, statistics.median(triggers_s(query, broker, count, runs))


def main_many_partitions(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if one is over its limit."""
    options = arguments(ABOUT_MANY_PARTITIONS).parse_args(given)
    count = max(1, int(STREAM_PARTITIONS * options.scale))
    with Report("A stream over many partitions", options.json) as report, spark(unix_socket=False) as session:
        _, single_s = measure_stream(session, 1, options.runs)
        cores, trigger_s = measure_stream(session, count, options.runs)
        name = f"stream over {count:,} partitions"
        idle = sum(cores.values())
        report.add(Figure(f"{name}, idle", "cores", idle, IDLE_LIMIT_CORES, "limit", "less", 1.0))
        for kind, used in cores.items():
            report.add(Figure(f"{name}, idle, {kind}", "cores", used, better="less"))
        report.add(Figure(f"{name}, trigger with a row", "s", trigger_s, TRIGGER_LIMIT_S, "limit", "less", 1.0))
        one = f"{name}, trigger with a row beside one partition"
        report.add(Figure(one, "s", trigger_s, single_s, "one partition", better="less"))
    return int(any(figure.met is False for figure in report.figures))


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "scaling": main_scaling,
    "many-partitions": main_many_partitions,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
