"""How long the first row takes: of a fresh query in a fresh session, and what imports and compiled loops are of that.

    python benchmarks/start_up.py [--runs 3] [--json FILE]

Every measurement is a process of its own. The first row: a session that has run a query of the JVM alone, then
``load().first()`` on a topic with one message. It includes the start of the Python processes in which Spark plans, the
lookup of the format and the first Python worker. The peer, registered by hand, makes its row from nothing;
``registered`` does the same with ours, and so leaves out the lookup. All run in turn.

The imports are those of the process that plans a read, beside the same process without us; CPU seconds. The compiled
loops are loaded, from an empty cache and from one that is filled, and called once; beside them, the import of numba.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from figures import Figure, Report, arguments, in_turn
from pyspark.sql import DataFrame, SparkSession
from spark_bench import TOPIC, broker, importable_by_workers, spark
from trivial import Trivial

from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message

PLANNER = "import pyspark.sql.worker.plan_data_source_read"
OURS = "import pyspark_metaq, metaq_spark.source.stream_reader, metaq_spark.source.batch_reader"
LOOPS = "from metaq_spark.columns.compiling import compile_kernels; assert compile_kernels().folder"
NUMBA = "import numba"

TIMED = """
import time, {before}
start = time.{clock}()
{program}
print(time.{clock}() - start)
"""


def first_row(source: str, address: str) -> float:
    """Run in a process of its own: seconds to the first row."""
    importable_by_workers()
    with spark() as session:
        session.range(1000).selectExpr("sum(id)").collect()
        rows = SOURCES[source](session, address)
        start = time.perf_counter()
        assert rows().first() is not None
        return time.perf_counter() - start


def trivial(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    session.dataSource.register(Trivial)
    return lambda: session.read.format("trivial").option("rows", 1).load()


def metaq(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    return lambda: session.read.format("metaq").option("brokers", address).option("subscribe", TOPIC).load()


def registered(session: SparkSession, address: str) -> Callable[[], DataFrame]:
    from metaq_spark.datasource import MetaQDataSource

    session.dataSource.register(MetaQDataSource)
    return metaq(session, address)


SOURCES: Mapping[str, Callable[[SparkSession, str], Callable[[], DataFrame]]] = {
    "trivial": trivial,
    "metaq": metaq,
    "registered": registered,
}


def seconds_of(command: Sequence[str], **variables: str) -> float:
    """The number in the last line that a process prints."""
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=True,
    )
    return float(done.stdout.split()[-1])


def program(text: str, before: str = "sys", clock: str = "perf_counter") -> list[str]:
    return ["-c", TIMED.format(before=before, clock=clock, program=text)]


def first_rows(given: argparse.Namespace, report: Report) -> None:
    """Three sides, each in fresh processes."""
    with broker(1) as address, ExitStack() as stack:
        pool = SessionPool()
        stack.callback(pool.close)
        Producer(FixedDirectory([Address.parse(address)], pool), pool).put(TOPIC, Message(b"first"))
        sides = [lambda side=side: seconds_of([__file__, "--side", side, "--brokers", address]) for side in SOURCES]
        peer, ours, known = in_turn(sides, given.runs, unmeasured=0)
    for name, value in (("", ours), (", registered by hand", known)):
        figure = f"first row of a fresh query in a fresh session{name}"
        report.add(Figure(figure, "s", value, peer, "trivial source", better="less"))


def imports(given: argparse.Namespace, report: Report) -> None:
    sides = [program(f"{PLANNER}\n{OURS}", clock="process_time"), program(PLANNER, clock="process_time")]
    ours, peer = in_turn([partial(seconds_of, side) for side in sides], given.runs, unmeasured=0)
    report.add(Figure("imports of the process that plans", "CPU s", ours, peer, "without ours", better="less"))


def loops(given: argparse.Namespace, report: Report) -> None:
    """Cold and warm in one folder, which is a new one for each run."""
    cold: list[float] = []
    warm: list[float] = []
    peer: list[float] = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            for taken in (cold, warm):
                taken.append(seconds_of(program(LOOPS, "pyarrow, numpy"), NUMBA_CACHE_DIR=folder))
        peer.append(seconds_of(program(NUMBA, "pyarrow, numpy")))
    numba_s = statistics.median(peer)
    for name, values in (("an empty", cold), ("a filled", warm)):
        figure = f"compiled loops ready, from {name} cache"
        report.add(Figure(figure, "s", statistics.median(values), numba_s, "import numba", better="less"))


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument("--side", choices=SOURCES, help=argparse.SUPPRESS)
    parser.add_argument("--brokers", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is not None:
        print(first_row(given.side, given.brokers))
        return
    with Report("Start-up", given.json) as report:
        imports(given, report)
        loops(given, report)
        first_rows(given, report)


if __name__ == "__main__":
    main()
