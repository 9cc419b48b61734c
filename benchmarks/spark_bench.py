"""What the benchmarks with Spark share: a broker process, a session, the size of a case."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from broker_process import started
from pages import pages_given_back
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
PARTITIONS = 2
TOPIC = "bench"


class Case(NamedTuple):
    """So many messages of so many payload bytes."""

    payload_bytes: int
    rows: int


@contextmanager
def broker(partitions: int = PARTITIONS, *, for_writes: bool = False) -> Iterator[str]:
    """A broker process on a free port, with so many partitions of each topic; yields its address.

    ``for_writes``: what it has written to partitions is not kept in memory; see ``pages``. The journal is: the broker
    reads it again soon, so that no system would give up its pages first.
    """
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
        options = ("--port", "0", "--partitions", str(partitions), "--log-level", "error")
        with started("dev", folder, *options) as running, _pages(folder, for_writes):
            yield str(running.address)


def _pages(folder: str, given_back: bool) -> AbstractContextManager[None]:
    return pages_given_back(Path(folder), f"**/{TOPIC}-*/*") if given_back else nullcontext()


def importable_by_workers() -> None:
    """Let the Python workers of a session that is yet to be made import what is in this folder."""
    here, before = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    if here not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, before)))


@contextmanager
def spark(unix_socket: bool = True, slots: int = PARTITIONS) -> Iterator[SparkSession]:
    """A session with so many task slots, and this interpreter for its workers.

    With ``unix_socket`` micro-batches are faster by a few milliseconds, throughput is the same, and Spark prints a
    traceback (BrokenPipeError in daemon.py) for each Python worker that it ends because it was idle for a minute.
    """
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
    session = (
        SparkSession.builder.master(f"local[{slots}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", str(unix_socket).lower())
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    # What goes wrong reaches the program as an exception; what else is logged, above all the pages about each query
    # that was stopped in the middle of a batch, would bury the table.
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
