"""What ``spark_read.py`` and ``spark_write.py`` share: a broker process, a session, runs in turn, a table."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
PARTITIONS = 2
TOPIC = "bench"


class Case(NamedTuple):
    """So many messages of so many payload bytes."""

    payload_bytes: int
    rows: int


CASES = (Case(100, 4_000_000), Case(1000, 1_000_000))


def arguments(doc: str | None) -> argparse.Namespace:
    """The options that both benchmarks take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each side, in turn (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows (default 1)")
    return parser.parse_args()


@contextmanager
def broker() -> Iterator[str]:
    """A broker process on a free port; yields its address."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        command = [sys.executable, "-m", "metaq_broker.cli", "dev", folder, "--port", "0", "--log-level", "error"]
        process = subprocess.Popen([*command, "--partitions", str(PARTITIONS)], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            ready = re.search(r" ready on (\S+),", process.stdout.readline())
            assert ready is not None, "the broker did not start"
            yield ready[1]
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def spark() -> Iterator[SparkSession]:
    """A session with two task slots, and this interpreter for its workers."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
    session = (
        SparkSession.builder.master(f"local[{PARTITIONS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


def seconds(action: Callable[[], None]) -> float:
    """How long ``action`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def medians(subject: Callable[[], None], ceiling: Callable[[], None], runs: int) -> tuple[float, float]:
    """Median seconds of both, run in turn after one unmeasured run of each."""
    times = [(seconds(subject), seconds(ceiling)) for _ in range(runs + 1)][1:]
    return statistics.median(mine for mine, _ in times), statistics.median(bound for _, bound in times)


def print_head(subject: str, ceiling: str) -> None:
    """The head of the table, in Markdown."""
    print(f"| payload | rows | {subject} s | M rows/s | MB/s | {ceiling} s | M rows/s | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)


def print_row(case: Case, subject_s: float, ceiling_s: float) -> None:
    """One row; ``ratio`` is the subject's speed in terms of the ceiling's, from the same run."""
    megarows, megabytes = case.rows / 1e6, case.rows * case.payload_bytes / 1e6
    print(
        f"| {case.payload_bytes} B | {megarows:.2f} M | {subject_s:.2f} | {megarows / subject_s:.2f} "
        f"| {megabytes / subject_s:.0f} | {ceiling_s:.2f} | {megarows / ceiling_s:.2f} | {ceiling_s / subject_s:.2f} |",
        flush=True,
    )
