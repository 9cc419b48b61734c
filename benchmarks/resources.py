"""What a GB costs that is read or written through Spark: CPU seconds of each process, and memory at the peak.

    python benchmarks/resources.py [--runs 3] [--scale 1] [--json FILE]

CPU seconds are user and system of the broker, of the JVM and of the Python processes that the JVM started (workers, and
what plans), for a GB (10^9 bytes) of payload. Beside it, from the same run in turn, the ceilings of ``spark_read.py``
and ``spark_write.py``: a source that hands out the same Arrow batch again and again, a sink that drops what it gets;
their JVM and their Python, for they have no broker. Other work on the machine disturbs CPU seconds less than times.

Peak memory is the most resident memory (``VmHWM``) of that Python process that had most, and of the broker; of one run,
in processes that have done nothing before. Needs Linux.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from broker_process import RunningBroker, running_broker
from figures import Figure, Report, arguments
from processes import ProcessStat, below, peak_bytes, running
from pyspark.sql import SparkSession
from source_ceiling import CeilingSource
from spark_bench import PARTITIONS, TOPIC, Case, importable_by_workers, spark
from spark_read import to_noop
from spark_write import DropSink, frame_of, write

from metaq_spark.source.row_layout import COLUMN_TYPES

CASES = (Case(100, 2_000_000), Case(1000, 300_000))
COLUMNS = ",".join(COLUMN_TYPES)
MIB = 1 << 20
Action = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """Reading or writing the messages of ``case``."""

    kind: str
    case: Case

    def __str__(self) -> str:
        return f"{self.kind}, {self.case.payload_bytes} B"

    @property
    def gigabytes(self) -> float:
        """Payload."""
        return self.case.rows * self.case.payload_bytes / 1e9

    @property
    def topic(self) -> str:
        """To read from."""
        return f"{TOPIC}-{self.case.payload_bytes}"

    def fill(self, session: SparkSession, address: str) -> None:
        """Write what is to be read, evenly over the partitions."""
        spread = f"int(monotonically_increasing_id() % {PARTITIONS}) partition"
        write(frame_of(session, self.case).selectExpr("value", spread), "metaq", brokers=address, topic=self.topic)

    def ours(self, session: SparkSession, address: str) -> Action:
        """Do it through the connector."""
        if self.kind == "write":
            topic = f"{self.topic}-written"
            return partial(write, frame_of(session, self.case), "metaq", brokers=address, topic=topic)
        options = {"brokers": address, "subscribe": self.topic, "columns": COLUMNS}
        return partial(to_noop, session.read.format("metaq").options(**options).load())

    def ceiling(self, session: SparkSession, _address: str) -> Action:
        """Do as little as Spark allows."""
        if self.kind == "write":
            return partial(write, frame_of(session, self.case), DropSink.name())
        size = {"rows": self.case.rows, "payloadBytes": self.case.payload_bytes}
        source = session.read.format(CeilingSource.name()).options(**size, tasks=PARTITIONS, columns=COLUMNS)
        return partial(to_noop, source.load())


@dataclass(frozen=True)
class CpuSeconds:
    """Of each kind of process."""

    broker: float
    jvm: float
    python: float


class Processes:
    """The broker, the JVM that this process has started, and the Python processes below it."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        (self._jvm,) = [stat.pid for stat in below(os.getpid(), running()) if stat.name == "java"]

    def cpu_of(self, action: Action) -> CpuSeconds:
        """What ``action`` takes."""
        before = self._cpu()
        action()
        return CpuSeconds(*(b - a for a, b in zip(astuple(before), astuple(self._cpu()), strict=True)))

    def python(self) -> list[ProcessStat]:
        """The Python processes as they are now."""
        return [stat for stat in below(self._jvm, running()) if stat.name.startswith("python")]

    def _cpu(self) -> CpuSeconds:
        found = running()
        return CpuSeconds(found[self._broker].cpu_s, found[self._jvm].cpu_s, sum(each.cpu_s for each in self.python()))


@contextmanager
def stage(folder: Path) -> Iterator[tuple[SparkSession, RunningBroker]]:
    """A session and a broker on ``folder``, both with processes of their own but for the JVM."""
    with running_broker(folder, PARTITIONS) as broker, spark(unix_socket=False) as session:
        for source in (CeilingSource, DropSink):
            session.dataSource.register(source)
        yield session, broker


def compare(processes: Processes, actions: Sequence[Action], runs: int) -> list[CpuSeconds]:
    """Medians of each action, in turn, after one unmeasured run of each."""
    rounds = [[processes.cpu_of(action) for action in actions] for _ in range(runs + 1)][1:]
    return [median_of(uses) for uses in zip(*rounds, strict=True)]


def median_of(uses: Sequence[CpuSeconds]) -> CpuSeconds:
    """The median for each kind of process."""
    return CpuSeconds(*map(statistics.median, zip(*map(astuple, uses), strict=True)))


def report_cpu(report: Report, folder: Path, works: Sequence[Work], runs: int) -> None:
    """CPU seconds of each work, in one session."""
    with stage(folder) as (session, broker):
        processes, address = Processes(broker.pid), str(broker.address)
        for work in works:
            if work.kind == "read":
                work.fill(session, address)
            uses = compare(processes, [work.ours(session, address), work.ceiling(session, address)], runs)
            ours, bound = (CpuSeconds(*(seconds / work.gigabytes for seconds in astuple(use))) for use in uses)

            def add(what: str, mine: float, peer: float | None, work: Work = work) -> None:
                report.add(Figure(f"{work}, {what}", "CPU s/GB", mine, peer, "ceiling" if peer else "", "less"))

            add("CPU", sum(astuple(ours)), bound.jvm + bound.python)
            add("CPU of Python", ours.python, bound.python)
            add("CPU of the JVM", ours.jvm, bound.jvm)
            add("CPU of the broker", ours.broker, None)


def report_memory(report: Report, folder: Path, works: Sequence[Work]) -> None:
    """Peaks of each work, each in processes of its own."""
    for work in works:
        peaks: list[tuple[float, float]] = []
        for action_of in (work.ours, work.ceiling):
            with stage(folder) as (session, broker):
                action_of(session, str(broker.address))()
                python = max(peak_bytes(each.pid) for each in Processes(broker.pid).python())
                peaks.append((python / MIB, peak_bytes(broker.pid) / MIB))
        (python_peak, broker_peak), (bound, idle) = peaks
        name = f"{work}, peak memory of"
        report.add(Figure(f"{name} a Python worker", "MiB", python_peak, bound, "ceiling", "less"))
        report.add(Figure(f"{name} the broker", "MiB", broker_peak, idle, "idle broker", "less"))


def main() -> None:
    given = arguments(__doc__, runs=3).parse_args()
    importable_by_workers()
    cases = [Case(case.payload_bytes, max(1000, int(case.rows * given.scale))) for case in CASES]
    works = [Work(kind, case) for case in cases for kind in ("read", "write")]
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name, Report("CPU and memory", given.json) as report:
        report_cpu(report, Path(name) / "broker", works, given.runs)
        report_memory(report, Path(name) / "broker", works)


if __name__ == "__main__":
    main()
