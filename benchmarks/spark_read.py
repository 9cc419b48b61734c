"""Measures reads through ``format("metaq")``, beside the fastest possible Python data source in Spark.

    python benchmarks/spark_read.py [--network] [--runs 5] [--scale 1] [--json FILE]

Batch reads and streaming reads (one micro-batch) of all columns, of messages of two sizes, with one task slot and with
two; then choices of columns of the smaller messages, beside all columns and beside the ceiling of the same choice.

The ceiling is ``ceilings.CeilingSource``: the same Arrow batches, types, rows and number of tasks, nothing behind them.
The broker runs on the same machine and uses the same cores. With ``--network``, batch reads of all columns also stand
beside a second ceiling, which receives as many bytes from a bare server on these cores: the difference to that one is
the cost of this project.

All write to ``noop``, alternately, in one session. Checksums are verified. A stream's time is what Spark's own progress
reports for its micro-batch, with planning and both logs, without the start of the query. The ratio holds on other
machines, the times do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bare_peer import listening, serve_slices
from ceilings import REQUEST, SLICE_BYTES, CeilingSource
from figures import Figure, Report, alternating, arguments, seconds
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from stage import PARTITIONS, TOPIC, Case, broker, spark

from metaq_spark.columns.row_layout import COLUMN_TYPES

CASES: Final = (Case(100, 2_000_000), Case(1000, 600_000))
AIMS: Final = {100: 0.80, 1000: 0.85}
ALL: Final = ",".join(COLUMN_TYPES)
CHOICES: Final = {"value": 1.3, "offset": None}
"""Columns to read in comparison with all of them, and the wanted ratio of speed."""

SLOTS: Final = (1, 2)
"""Number of slots of a session, each with one task."""

SLICES: Final = 256
"""Slices in the bare server's file, of ``SLICE_BYTES`` each: more than a cache of the processor holds."""

Run = Callable[[], float]
Reader = DataFrameReader | DataStreamReader


def fill(session: SparkSession, address: str, case: Case) -> None:
    """Put ``case.rows`` messages of different content into a topic of their own, evenly over its partitions."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    rows = session.range(case.rows, numPartitions=2).selectExpr(value, f"int(id % {PARTITIONS}) partition")
    rows.write.format("metaq").mode("append").options(brokers=address, topic=topic_of(case)).save()


def topic_of(case: Case) -> str:
    return f"{TOPIC}-{case.payload_bytes}"


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def stream_to_noop(frame: DataFrame, rows: int) -> float:
    """Return the seconds of the one micro-batch with all ``rows``."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()
        (batch,) = [progress for progress in query.recentProgress if progress.numInputRows]
    assert batch.numInputRows == rows
    return float(batch.durationMs["triggerExecution"]) / 1000


class Reads:
    """The reads of one session, and the ceiling of each."""

    def __init__(self, session: SparkSession, address: str, slots: int) -> None:
        self._session, self._address, self.slots = session, address, slots

    def batch(self, case: Case, columns: str) -> tuple[Run, Run]:
        """Return a batch read of the connector and of the ceiling, checked to have all rows."""
        pair = [self._metaq(self._session.read, case, columns), self._ceiling(self._session.read, case, columns)]
        assert [frame.count() for frame in pair] == [case.rows] * 2
        metaq, ceiling = (partial(seconds, partial(to_noop, frame)) for frame in pair)
        return metaq, ceiling

    def stream(self, case: Case, columns: str) -> tuple[Run, Run]:
        """Return the same as a stream from the earliest message on."""
        reader = self._session.readStream
        pair = (
            self._metaq(reader, case, columns, startingOffsets="earliest", maxBytesPerTrigger="100g"),
            self._ceiling(reader, case, columns),
        )
        metaq, ceiling = (partial(stream_to_noop, frame, case.rows) for frame in pair)
        return metaq, ceiling

    def receiving(self, case: Case, server: str) -> Run:
        """Return the ceiling of all columns that receives as many bytes."""
        return partial(seconds, partial(to_noop, self._ceiling(self._session.read, case, ALL, server=server)))

    def _metaq(self, reader: Reader, case: Case, columns: str, **more: str) -> DataFrame:
        return (
            reader.format("metaq")
            .options(brokers=self._address, subscribe=topic_of(case), columns=columns, **more)
            .load()
        )

    def _ceiling(self, reader: Reader, case: Case, columns: str, **more: str) -> DataFrame:
        return (
            reader.format("ceiling")
            .options(rows=case.rows, payloadBytes=case.payload_bytes, tasks=PARTITIONS, columns=columns, **more)
            .load()
        )


def all_columns(report: Report, reads: Reads, case: Case, runs: int) -> None:
    """Compare batch and stream with their ceilings."""
    batch, ceiling, stream, stream_ceiling = alternating([*reads.batch(case, ALL), *reads.stream(case, ALL)], runs)
    of, aim = f"all columns, {case.payload_bytes} B, local[{reads.slots}]", AIMS[case.payload_bytes]
    report.add(speed(f"read, {of}", case, batch, ceiling, "ceiling", aim))
    report.add(speed(f"stream read, {of}", case, stream, stream_ceiling, "ceiling", aim))


def network(report: Report, reads: Reads, case: Case, server: str, runs: int) -> None:
    """Compare batch reads with the ceiling, and with receiving as many bytes."""
    sent, ceiling, receiving = alternating([*reads.batch(case, ALL), reads.receiving(case, server)], runs)
    of = f"all columns, {case.payload_bytes} B, local[{reads.slots}]"
    report.add(speed(f"read over the network, {of}", case, sent, ceiling, "ceiling", None))
    report.add(speed(f"read over the network, {of}, beside receiving alone", case, sent, receiving, "receiving", None))
    report.add(speed(f"receiving alone, {of}", case, receiving, ceiling, "ceiling", None))


def choices(report: Report, reads: Reads, case: Case, runs: int) -> None:
    """Measure reads of fewer columns."""
    whole, _ = reads.batch(case, ALL)
    for columns, aim in CHOICES.items():
        all_s, mine, ceiling = alternating([whole, *reads.batch(case, columns)], runs)
        name = f"read, columns={columns}, {case.payload_bytes} B, local[{reads.slots}]"
        report.add(speed(f"{name}, beside all columns", case, mine, all_s, "all columns", aim))
        report.add(speed(name, case, mine, ceiling, "ceiling", None))


def speed(name: str, case: Case, mine_s: float, peer_s: float, peer: str, aim: float | None) -> Figure:
    return Figure(name, "M rows/s", case.rows / 1e6 / mine_s, case.rows / 1e6 / peer_s, peer, aim=aim)


@contextmanager
def bare_server() -> Iterator[str]:
    """Run a server that answers each request of the ceiling with the next slice of a file; yield its address."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        file = Path(folder) / "slices"
        file.write_bytes(Random(1).randbytes(SLICE_BYTES) * SLICES)
        with listening(serve_slices, file, len(REQUEST), SLICE_BYTES) as (host, port):
            yield f"{host}:{port}"


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", action="store_true", help="beside a source that receives as many bytes, instead")
    given = parser.parse_args(words)
    cases = [Case(case.payload_bytes, int(case.rows * given.scale)) for case in CASES]
    title = "Reading over the network" if given.network else "Reading"
    with Report(title, given.json) as report, broker() as address, ExitStack() as stack:
        server = stack.enter_context(bare_server()) if given.network else None
        for slots in SLOTS:
            with spark(unix_socket=False, slots=slots) as session:
                session.dataSource.register(CeilingSource)
                reads = Reads(session, address, slots)
                for case in cases:
                    if slots == SLOTS[0]:
                        fill(session, address, case)
                    if server is not None:
                        network(report, reads, case, server, given.runs)
                    else:
                        all_columns(report, reads, case, given.runs)
                if server is None:
                    choices(report, reads, cases[0], given.runs)


if __name__ == "__main__":
    main()
