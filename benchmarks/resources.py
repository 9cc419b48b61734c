"""Measures CPU seconds and memory per GB that is read or written through Spark, and the memory of a single task.

python benchmarks/resources.py per-gigabyte [--runs 3] [--scale 1] [--json FILE] python benchmarks/resources.py
read-memory [--runs 3] [--scale 1] [--json FILE] [--gib 1]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ceilings import CeilingSource
from figures import Figure, Report, arguments, run_part
from machine import ProcessStat, below, peak_bytes, running
from pyspark.sql import SparkSession
from spark_read import to_noop
from spark_write import DropSink, frame_of, write
from stage import PARTITIONS, TOPIC, Case, RunningBroker, broker, running_broker, spark

from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message, OffsetRange, Partition, TopicPartition
from metaq_spark.columns.row_layout import COLUMN_TYPES

# ---- per-gigabyte

ABOUT_PER_GIGABYTE: Final = """\
What a GB costs that is read or written through Spark: CPU seconds of each process, and memory at the peak.

CPU seconds are user and system of the broker, of the JVM and of the Python processes that the JVM started (workers, and
what plans), for a GB (10^9 bytes) of payload. Beside it, from the same run in turn, the ceilings of ``spark_read.py``
and ``spark_write.py``: a source that hands out the same Arrow batch again and again, a sink that drops what it gets;
their JVM and their Python, for they have no broker. Other work on the machine disturbs CPU seconds less than times.

Peak memory is the most resident memory (``VmHWM``) of that Python process that had most, and of the broker; of one run,
in processes that have done nothing before. Needs Linux.
"""

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
        """The payload in GB."""
        return self.case.rows * self.case.payload_bytes / 1e9

    @property
    def topic(self) -> str:
        return f"{TOPIC}-{self.case.payload_bytes}"

    def fill(self, session: SparkSession, address: str) -> None:
        """Write the messages to read, evenly over the partitions."""
        spread = f"int(monotonically_increasing_id() % {PARTITIONS}) partition"
        write(frame_of(session, self.case).selectExpr("value", spread), "metaq", brokers=address, topic=self.topic)

    def ours(self, session: SparkSession, address: str) -> Action:
        """Return the work through the connector."""
        if self.kind == "write":
            topic = f"{self.topic}-written"
            return partial(write, frame_of(session, self.case), "metaq", brokers=address, topic=topic)
        options = {"brokers": address, "subscribe": self.topic, "columns": COLUMNS}
        return partial(to_noop, session.read.format("metaq").options(**options).load())

    def ceiling(self, session: SparkSession, _address: str) -> Action:
        """Return the work with the cheapest possible source or sink."""
        if self.kind == "write":
            return partial(write, frame_of(session, self.case), DropSink.name())
        size = {"rows": self.case.rows, "payloadBytes": self.case.payload_bytes}
        source = session.read.format(CeilingSource.name()).options(**size, tasks=PARTITIONS, columns=COLUMNS)
        return partial(to_noop, source.load())


@dataclass(frozen=True)
class CpuSeconds:
    """CPU seconds of each kind of process."""

    broker: float
    jvm: float
    python: float


class Processes:
    """The broker, the JVM that this process has started, and the Python processes below it."""

    def __init__(self, broker: int, session: SparkSession) -> None:
        self._broker = broker
        self._jvm: int = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def cpu_of(self, action: Action) -> CpuSeconds:
        before = self._cpu()
        action()
        return CpuSeconds(*(b - a for a, b in zip(astuple(before), astuple(self._cpu()), strict=True)))

    def python(self) -> list[ProcessStat]:
        """Return the current Python processes."""
        return [stat for stat in below(self._jvm, running()) if stat.name.startswith("python")]

    def _cpu(self) -> CpuSeconds:
        found = running()
        return CpuSeconds(found[self._broker].cpu_s, found[self._jvm].cpu_s, sum(each.cpu_s for each in self.python()))


@contextmanager
def stage(folder: Path) -> Iterator[tuple[SparkSession, RunningBroker]]:
    """Start a session and a broker on ``folder``, with new processes except for the JVM."""
    with running_broker(folder, PARTITIONS) as broker, spark(unix_socket=False) as session:
        for source in (CeilingSource, DropSink):
            session.dataSource.register(source)
        yield session, broker


def compare(processes: Processes, actions: Sequence[Action], runs: int) -> list[CpuSeconds]:
    """Return the medians of each action, alternating, after one unmeasured run of each."""
    rounds = [[processes.cpu_of(action) for action in actions] for _ in range(runs + 1)][1:]
    return [median_of(uses) for uses in zip(*rounds, strict=True)]


def median_of(uses: Sequence[CpuSeconds]) -> CpuSeconds:
    return CpuSeconds(*map(statistics.median, zip(*map(astuple, uses), strict=True)))


def report_cpu(report: Report, folder: Path, works: Sequence[Work], runs: int) -> None:
    """Add the CPU seconds of each work, in one session."""
    with stage(folder) as (session, broker):
        processes, address = Processes(broker.pid, session), str(broker.address)
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
    """Add the peaks of each work, each in new processes."""
    for work in works:
        peaks: list[tuple[float, float]] = []
        for action_of in (work.ours, work.ceiling):
            with stage(folder) as (session, broker):
                action_of(session, str(broker.address))()
                python = max(peak_bytes(each.pid) for each in Processes(broker.pid, session).python())
                peaks.append((python / MIB, peak_bytes(broker.pid) / MIB))
        (python_peak, broker_peak), (bound, idle) = peaks
        name = f"{work}, peak memory of"
        report.add(Figure(f"{name} a Python worker", "MiB", python_peak, bound, "ceiling", "less"))
        report.add(Figure(f"{name} the broker", "MiB", broker_peak, idle, "idle broker", "less"))


def main_per_gigabyte(words: Sequence[str] | None = None) -> None:
    given = arguments(ABOUT_PER_GIGABYTE, runs=3).parse_args(words)
    cases = [Case(case.payload_bytes, max(1000, int(case.rows * given.scale))) for case in CASES]
    works = [Work(kind, case) for case in cases for kind in ("read", "write")]
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name, Report("CPU and memory", given.json) as report:
        report_cpu(report, Path(name) / "broker", works, given.runs)
        report_memory(report, Path(name) / "broker", works)


# ---- read-memory

ABOUT_READ_MEMORY: Final = """\
How much memory a task of a read takes, and that it does not grow with the bytes that it reads.

Fills one partition of a real broker, then reads it in a process that does what a Python worker of Spark does for one
task, batch by batch. The peak of its resident memory at the end stands beside that after the first GiB, or after the
first quarter if there is less than four GiB: the ratio should be close to 1 whatever is read.
"""

GIB = 1 << 30
PAYLOAD_BYTES = 1000
RUNS = 3
AIM = 1.1
BLOCK_MESSAGES = 4000
"""Messages of one put, about 4 MB."""


def fill(address: Address, size: int) -> int:
    """Put at least ``size`` bytes of messages into partition 0; return its end."""
    block, count = encode_block(Message(os.urandom(PAYLOAD_BYTES)) for _ in range(BLOCK_MESSAGES))
    session = Session.connect(address)
    end = 0
    while end < size:
        end = put_batch(session, TOPIC, 0, block, count).offset + len(block)
    session.close()
    return end


def read(address: Address, first: int, end: int) -> None:
    """Run the task: read everything, and print the peak before, after ``first`` bytes, at the end, and the seconds."""
    from metaq_spark.backends.metaq.options import parse_source_options
    from metaq_spark.backends.metaq.partition_reader import RangePartition, read_partition
    from metaq_spark.options.table import Use

    options = parse_source_options({"brokers": str(address), "subscribe": TOPIC}, Use.BATCH_READ)
    source = TopicPartition(TOPIC, Partition(0, 0))
    before, began = peak_bytes(os.getpid()), time.perf_counter()
    early = 0
    for batch in read_partition(RangePartition(source, address, OffsetRange(0, end)), options):
        if not early and batch["offset"][-1].as_py() >= first:
            early = peak_bytes(os.getpid())
    print(before, early, peak_bytes(os.getpid()), time.perf_counter() - began)


def measure(address: Address, first: int, end: int) -> list[float]:
    """Return the output of ``read`` in a process of its own."""
    command = [sys.executable, __file__, "read-memory", "--task", str(address), str(first), str(end)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(figure) for figure in done.stdout.split()]


def main_read_memory(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_READ_MEMORY, RUNS)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB to read at scale 1 (default 1)")
    parser.add_argument("--task", nargs=3, metavar=("BROKER", "FIRST", "END"), help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.task:
        read(Address.parse(given.task[0]), *map(int, given.task[1:]))
        return
    with broker() as text, Report("Memory of a task that reads", given.json) as report:
        address = Address.parse(text)
        end = fill(address, int(given.gib * given.scale * GIB))
        first = min(GIB, end // 4)
        runs = [measure(address, first, end) for _ in range(given.runs)]
        before, early, peak, seconds = (statistics.median(each) for each in zip(*runs, strict=True))
        report.add(Figure("task's memory: before the first row", "MiB", before / 2**20, better="less"))
        early_name = f"after {first / GIB:.2g} of {end / GIB:.2g} GiB"
        report.add(Figure("task's memory: peak", "MiB", peak / 2**20, early / 2**20, early_name, "less", AIM))
        report.add(Figure("task's speed meanwhile", "MB/s", end / 1e6 / seconds))


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "per-gigabyte": main_per_gigabyte,
    "read-memory": main_read_memory,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
