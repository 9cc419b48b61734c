"""The environment of the demo: a broker process, a Spark session and a folder for both, removed when the demo ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metaq.model import Address

ROOT = Path(__file__).resolve().parents[1]
READY = re.compile(r"metaq-broker \S+ ready on (\S+), ")
FOR_ROCKETMQ = re.compile(r"RocketMQ clients: (\S+) ")
DASHBOARD = re.compile(r"HTTP and dashboard: (\S+)")
START_DEADLINE_S = STOP_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Addresses:
    """The addresses of the broker for the clients of each system. For RocketMQ's it is name server and broker.

    ``dashboard`` is the URL of its dashboard, if it has one.
    """

    metaq: Address
    rocketmq: Address
    dashboard: str | None = None


class StageFailed(Exception):
    """The broker did not start; the text has its output."""


class Interrupted(KeyboardInterrupt):
    """The demo was stopped by the signal ``number``. On a KeyboardInterrupt, py4j ends its call cleanly."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def obey_signals() -> None:
    """Let Ctrl-C and SIGTERM raise ``Interrupted`` once: later signals do not interrupt the clean-up."""

    def interrupt(number: int, _: object) -> None:
        _on_signals(signal.SIG_IGN)
        raise Interrupted(number)

    _on_signals(interrupt)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise ``Interrupted`` at the end of the block, not inside."""
    received: list[int] = []
    _on_signals(lambda number, _: received.append(number))
    try:
        yield
    finally:
        obey_signals()
    if received:
        raise Interrupted(received[0])


def _on_signals(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    for each in SIGNALS:
        signal.signal(each, handler)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end with all its contents."""
    folder = Path(tempfile.mkdtemp(prefix="metaq-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_broker(folder: Path, partitions: int, dashboard: bool = False) -> Iterator[Addresses]:
    """Run a broker on free ports, with its messages in ``folder``; with ``dashboard``, pages for a browser, too.

    It has a session of its own: Ctrl-C reaches every process of the terminal's session, and this one must be stopped
    last.

    Raises:
        StageFailed: It ended, or was not ready in time.
    """
    command = [sys.executable, "-m", "metaq_broker.cli", "dev", str(folder / "data"), "--port", "0"]
    command += ["--partitions", str(partitions), "--log-level", "warning"]
    if dashboard:
        command.append("--dashboard")
    log = folder / "broker.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):
        try:
            yield _addresses_of(process, log, dashboard)
        finally:
            _stop(process)


def _addresses_of(process: subprocess.Popen[str], log: Path, dashboard: bool) -> Addresses:
    assert process.stdout is not None
    found: list[str] = []
    for line in (READY, FOR_ROCKETMQ, *([DASHBOARD] if dashboard else [])):
        readable, _, _ = select.select([process.stdout], [], [], START_DEADLINE_S) if not found else (True, [], [])
        said = process.stdout.readline() if readable else ""
        match = line.match(said)
        if match is None:
            raise StageFailed(f"the broker did not start: {said}{log.read_text()}")
        found.append(match[1])
    metaq, rocketmq, *url = found
    return Addresses(Address.parse(metaq), Address.parse(rocketmq), url[0] if url else None)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()


@contextlib.contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Yield a local session with two cores and the settings of ``spark-conf/``; its log is ``folder/spark.log``."""
    os.environ["SPARK_CONF_DIR"] = str(ROOT / "spark-conf")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("metaq-demo")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    with contextlib.ExitStack() as stopping:
        settings_of_spark: dict[str, bool | float | int | str | None] = {**settings}
        # A JVM whose start is interrupted may never end.
        with signals_deferred(), _standard_error_in(folder / "spark.log"):
            session = builder.config(map=settings_of_spark).getOrCreate()
            stopping.callback(_stop_spark, session)
        session.sparkContext.addPyFile(str(ROOT / "jobs" / "lines_to_topic.py"))
        yield session


def _stop_spark(session: SparkSession) -> None:
    """Stop the session and wait for its JVM, which otherwise ends some seconds after this process."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(STOP_DEADLINE_S)


@contextlib.contextmanager
def _standard_error_in(file: Path) -> Iterator[None]:
    """Let processes that are started in the block write their standard error to ``file``."""
    with file.open("w") as log:
        ours = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(ours, 2)
            os.close(ours)
