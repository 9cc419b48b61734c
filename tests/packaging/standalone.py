"""A standalone Spark cluster on the loopback interface: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from fix_broker import wait_until

SPARK_HOME = Path(pyspark.__path__[0])
START_DEADLINE_S = 60.0
SUBMIT_DEADLINE_S = 200.0
WORKER_COUNT = 2


@dataclass(frozen=True)
class Cluster:
    """``folder`` has the logs, and the work folders of the workers."""

    master: str
    folder: Path

    def submit(self, python: Path, arguments: Sequence[str | Path], variables: Mapping[str, str], cwd: Path) -> str:
        """Run ``spark-submit`` in ``cwd`` with ``python`` on both sides; return what the program printed."""
        command = [SPARK_HOME / "bin" / "spark-submit", "--master", self.master, *arguments]
        environment = {
            **_environment(),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            **variables,
        }
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=SUBMIT_DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        return done.stdout


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Start the processes, wait until both workers are registered, and end them all."""
    with ExitStack() as processes:
        log = folder / "master.log"
        processes.enter_context(_daemon("master.Master", ["--port", "0"], log))
        [master] = _wait_for(log, r"Starting Spark master at (spark://\S+)", 1)
        for number in range(WORKER_COUNT):
            arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), master]
            worker_log = folder / f"worker-{number}.log"
            processes.enter_context(_daemon("worker.Worker", ["--port", "0", *arguments], worker_log))
        _wait_for(log, r"Registering worker (\S+)", WORKER_COUNT)
        yield Cluster(master, folder)


@contextmanager
def _daemon(name: str, arguments: Sequence[str], log_path: Path) -> Iterator[None]:
    command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    with open(log_path, "w") as log:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments], env=_environment(), stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _environment() -> dict[str, str]:
    """As a node without this project has it. SPARK_LOCAL_IP keeps also the web pages on the loopback interface."""
    hidden = ("PYTHONPATH", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}"
    return environment | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(SPARK_HOME)}


def _wait_for(log: Path, words: str, count: int) -> list[str]:
    """The matches of ``words`` in a log, once there are ``count``."""
    wait_until(lambda: len(re.findall(words, log.read_text())) >= count, f"{words!r} in {log}", START_DEADLINE_S)
    return re.findall(words, log.read_text())
