"""How fast ``format("metaq")`` writes: beside a sink that does nothing, and exactly once beside at least once.

python benchmarks/spark_write.py write [--network] [--runs 5] [--scale 1] [--json FILE]
python benchmarks/spark_write.py exactly-once [--runs 5] [--scale 1] [--json FILE]
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from bare_peer import listening, store_blocks
from ceilings import Dropped, TrivialWriter
from figures import Figure, Report, alternating, arguments, medians, run_part, seconds
from machine import pages_given_back
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from stage import TOPIC, Case, broker, spark

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.net.loopback import disable_pacing
from metaq.net.transport import Timeouts
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts, branch_limits
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.columns.blocks import EncodedBlock, of_block
from metaq_spark.options.table import Use

# ---- write

ABOUT_WRITE: Final = """\
How fast writes through ``format("metaq")`` are, beside what Spark lets any Python data sink do.

Batch writes of messages of two sizes and streaming writes (one micro-batch) of the smaller ones, at least once, with
one task slot and with two. The ceiling is a sink that counts the rows of its Arrow batches and drops them. With
``--network``, batch writes stand beside a sink that only sends as many bytes to a bare server on the same cores, which
writes and syncs them: the difference to that one is the cost of this project. All get the same rows, made by the JVM,
in turn, in one session. The broker makes every acknowledged block durable before it answers, and runs on the same
machine: what it and the disk cost is part of the figure. Pages that are on the disk are given back to the system
meanwhile (see ``machine.pages_given_back``). A stream's time is what Spark's own progress reports for its micro-batch,
without the start of the query. The ratio carries over to other machines only as far as their disks are alike.
"""

CASES: Final = (Case(100, 2_500_000), Case(1000, 500_000))
AIMS: Final = {100: 0.70, 1000: None}
PEER: Final = "Arrow sink that drops its rows"
BARE: Final = "sink that sends to a bare server"
BLOCK_BYTES: Final = 1 << 20
"""Bytes of one send to the bare server."""

TASKS: Final = 2


class DropWriter(DataSourceArrowWriter):
    """Counts the rows and drops them. With a ``server``, it sends as many bytes as messages would have."""

    def __init__(self, server: Address | None, payload_bytes: int) -> None:
        self._server, self._frame_bytes = server, HEADER_BYTES + payload_bytes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        if self._server is None:
            return Dropped(sum(batch.num_rows for batch in iterator))
        rows, sent, block = 0, 0, bytes(BLOCK_BYTES)
        with socket.create_connection((self._server.host, self._server.port)) as connection:
            disable_pacing(connection)  # as the connector does
            for batch in iterator:
                rows += batch.num_rows
                while rows * self._frame_bytes - sent >= BLOCK_BYTES:
                    connection.sendall(block)
                    sent += BLOCK_BYTES
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass  # an answer follows each sync
        return Dropped(rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class DropSink(DataSource):
    """``format("drop")``; options ``server`` and ``payloadBytes``, both optional."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:
        server = self.options.get("server")
        return DropWriter(Address.parse(server) if server else None, int(self.options.get("payloadbytes", 0)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TrivialWriter:
        return TrivialWriter()


def payloads(number: str, case: Case) -> str:
    """Return a column of distinct payloads, as SQL; ``number`` is a column of numbers."""
    return f"cast(lpad(string({number}), {case.payload_bytes}, '0123456789abcdef') as binary) value"


def frame_of(session: SparkSession, case: Case) -> DataFrame:
    """Return ``case.rows`` payloads, which the JVM makes when they are read."""
    return session.range(case.rows, numPartitions=TASKS).selectExpr(payloads("id", case))


def stream_of(session: SparkSession, case: Case) -> DataFrame:
    """Return the same as a stream with all rows in its first micro-batch."""
    source = session.readStream.format("rate-micro-batch").option("numPartitions", TASKS)
    return source.option("rowsPerBatch", case.rows).load().selectExpr(payloads("value", case))


def write(frame: DataFrame, form: str, **options: str) -> None:
    frame.write.format(form).mode("append").options(**options).save()


def write_stream(frame: DataFrame, form: str, rows: int, **options: str) -> float:
    """Return the seconds of the one micro-batch with all ``rows``."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        started = frame.writeStream.format(form).options(**options).option("checkpointLocation", folder)
        query = started.trigger(availableNow=True).start()
        query.awaitTermination()
        (batch,) = [progress for progress in query.recentProgress if progress.numInputRows]
    assert batch.numInputRows == rows
    return float(batch.durationMs["triggerExecution"]) / 1000


def rates(case: Case, sides: Sequence[Callable[[], float]], runs: int) -> list[float]:
    """Return million rows a second of each side, which returns its seconds."""
    return [case.rows / 1e6 / time_s for time_s in alternating(sides, runs)]


def measure(report: Report, session: SparkSession, address: str, cases: Sequence[Case], slots: int, runs: int) -> None:
    """Compare batch and stream writes with their ceiling."""
    for case in cases:
        frame, topic = frame_of(session, case), f"{TOPIC}-{case.payload_bytes}"
        forms = [partial(write, frame, "metaq", brokers=address, topic=topic), partial(write, frame, "drop")]
        measured, floor = rates(case, [partial(seconds, form) for form in forms], runs)
        name = f"write, {size_of(case)}, local[{slots}]"
        report.add(Figure(name, "M rows/s", measured, floor, PEER, aim=AIMS[case.payload_bytes]))
    case, rows = cases[0], stream_of(session, cases[0])
    ours = partial(write_stream, rows, "metaq", case.rows, brokers=address, topic=TOPIC)
    measured, floor = rates(case, [ours, partial(write_stream, rows, "drop", case.rows)], runs)
    name = f"stream write, {size_of(case)}, local[{slots}]"
    report.add(Figure(name, "M rows/s", measured, floor, PEER, aim=AIMS[case.payload_bytes]))


def network(
    report: Report, session: SparkSession, address: str, bare: str, cases: Sequence[Case], slots: int, runs: int
) -> None:
    """Compare batch writes; ``bare`` is the address of a server that only writes and syncs."""
    for case in cases:
        frame, topic = frame_of(session, case), f"{TOPIC}-{case.payload_bytes}"
        forms = (
            partial(write, frame, "metaq", brokers=address, topic=topic),
            partial(write, frame, "drop", server=bare, payloadBytes=str(case.payload_bytes)),
            partial(write, frame, "drop"),
        )
        sent, storing, ceiling = rates(case, [partial(seconds, form) for form in forms], runs)
        name = f"{size_of(case)}, local[{slots}]"
        for figure in (
            Figure(f"write over the network, {name}", "M rows/s", sent, ceiling, PEER),
            Figure(f"write over the network, {name}, beside storing alone", "M rows/s", sent, storing, BARE),
            Figure(f"storing alone, {name}", "M rows/s", storing, ceiling, PEER),
        ):
            report.add(figure)


def size_of(case: Case) -> str:
    return f"{case.payload_bytes // 1000} KB" if case.payload_bytes >= 1000 else f"{case.payload_bytes} B"


@contextmanager
def bare_server() -> Iterator[str]:
    """Run a server that writes received bytes to a file for each connection, and syncs it; yield its address."""
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder,
        pages_given_back(Path(folder)),
        listening(store_blocks, Path(folder), BLOCK_BYTES) as (host, port),
    ):
        yield f"{host}:{port}"


def main_write(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_WRITE)
    parser.add_argument("--network", action="store_true", help="beside a sink that only stores, instead")
    given = parser.parse_args(words)
    cases = [Case(case.payload_bytes, int(case.rows * given.scale)) for case in CASES]
    title = "Writing, beside storing alone" if given.network else "Writing, at least once"
    with Report(title, given.json) as report, ExitStack() as stack:
        bare = stack.enter_context(bare_server()) if given.network else None
        for slots in (1, 2):
            with broker(for_writes=True) as address, spark(False, slots) as session:
                session.dataSource.register(DropSink)
                if bare is None:
                    measure(report, session, address, cases, slots, given.runs)
                else:
                    network(report, session, address, bare, cases, slots, given.runs)


# ---- exactly-once

ABOUT_EXACTLY_ONCE: Final = """\
How fast writes with ``delivery=exactly_once`` are, beside the same writes at least once.

Batch writes of messages of two sizes, with one task slot and with two. Both sides write the same rows, made by the JVM,
to the same broker, in turn, in one session; pages of the partitions' files go back to the system meanwhile (see
``machine.pages_given_back``). Exactly once, every message is made durable twice: in the journal when its
task has finished, and in its partition when the write is decided. The last figures say how long the driver's part of a
write takes: from the moment when every task has prepared its branches until all messages can be read.
"""

ONCE_CASES: Final = (Case(100, 2_000_000), Case(1000, 500_000))
ONCE_AIM: Final = 0.6
AT_LEAST_ONCE: Final = "at least once"
COMMIT_MIB: Final = (1, 64)
"""Sizes of writes whose commit is measured without Spark."""


def once_frame(session: SparkSession, case: Case, slots: int) -> DataFrame:
    """Return ``case.rows`` payloads, which the JVM makes when they are read, one task for each slot."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    return session.range(case.rows, numPartitions=slots).selectExpr(value)


def write_with(frame: DataFrame, address: str, delivery: str) -> None:
    """One batch write of all rows."""
    options = {"brokers": address, "topic": TOPIC, "delivery": delivery}
    frame.write.format("metaq").mode("append").options(**options).save()


def measure_writes(report: Report, address: str, cases: Sequence[Case], runs: int, slots: int) -> None:
    """Add one figure for each case, in rows a second."""
    with spark(slots=slots) as session:
        for case in cases:
            frame = once_frame(session, case, slots)
            ways = [partial(write_with, frame, address, delivery) for delivery in ("exactly_once", "at_least_once")]
            once_s, least_s = medians(ways, runs)
            name = f"exactly-once write, {case.payload_bytes} B, local[{slots}]"
            rows = case.rows / 1e6
            report.add(Figure(name, "M rows/s", rows / once_s, rows / least_s, AT_LEAST_ONCE, aim=ONCE_AIM))


def commit_ms(address: str, mebibytes: int) -> Callable[[], float]:
    """Return a function that writes ``mebibytes`` from one task and returns the milliseconds of the driver's part."""
    options = parse_sink_options({"brokers": address, "topic": TOPIC, "delivery": "exactly_once"}, Use.BATCH_WRITE)
    sessions = RetryingSessions(options, SessionPool(Timeouts(5.0, 60.0)))
    data, count = encode_block([Message(bytes(100))] * (BLOCK_BYTES // 120))
    block = EncodedBlock(memoryview(data), count, of_block(data))
    broker_address = Address.parse(address)

    def run() -> float:
        plan = plan_transaction(options, False, sessions)
        assert plan.batch is not None
        puts = TransactionalPuts(TaskAttempt(plan.batch, 0, 0), branch_limits(options, plan.timeout_s_max), sessions)
        for number in range(mebibytes):
            puts.put(TopicPartition(TOPIC, Partition(0, number % 2)), broker_address, block)
        branches = puts.finish()
        coordinator, batch = Coordinator(plan.participants, sessions), plan.batch
        took_s = seconds(lambda: coordinator.finish(batch, branches))
        coordinator.end(batch)
        return took_s * 1000

    return run


def measure_commits(report: Report, address: str, runs: int) -> None:
    """Add how long the driver's part takes, for writes of several sizes."""
    for mebibytes in COMMIT_MIB:
        run = commit_ms(address, mebibytes)
        times = sorted(run() for _ in range(runs + 1))
        name = f"exactly-once commit, {mebibytes} MiB of 100 B"
        report.add(Figure(name, "ms", times[len(times) // 2], better="less"))


def main_exactly_once(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = arguments(ABOUT_EXACTLY_ONCE).parse_args(words)
    cases = [Case(case.payload_bytes, int(case.rows * given.scale)) for case in ONCE_CASES]
    with broker(for_writes=True) as address, Report("Exactly-once writes", given.json) as report:
        for slots in (1, 2):
            measure_writes(report, address, cases, given.runs, slots)
        measure_commits(report, address, given.runs)


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "write": main_write,
    "exactly-once": main_exactly_once,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
