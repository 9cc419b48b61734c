"""One run of the Spark driver: a child process in a session of its own, controlled by lines and watched by threads."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults.exactly_once import query
from faults.exactly_once.planned_kills import Delivery
from faults.exactly_once.processes import members, signal_all, task_workers

ROOT: Final = Path(__file__).parents[2]
TRIGGER_BYTES: Final = 4000
"""Size of one micro-batch: some 30 messages."""

_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Drained:
    """A driver has copied all input."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A driver's query has failed, and the driver waits for the command to start it again."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The Python process of a driver has ended with this status."""

    number: int
    status: int


@dataclass(frozen=True, slots=True)
class Job:
    """The settings that all runs of the driver share. ``sink`` are further options of the sink."""

    brokers: str
    folder: Path
    delivery: Delivery
    sink: Mapping[str, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def batches(self) -> int:
        """Number of micro-batches that Spark has recorded as committed."""
        commits = self.checkpoint / "commits"
        return sum(1 for file in commits.iterdir() if file.name.isdigit()) if commits.is_dir() else 0

    def settings(self) -> str:
        named = {"delivery": self.delivery.value} if self.delivery is Delivery.EXACTLY_ONCE else {}
        return json.dumps(
            {
                "brokers": self.brokers,
                "checkpoint": str(self.checkpoint),
                "trigger_bytes": TRIGGER_BYTES,
                "sink": {**named, **self.sink},
            }
        )


class SparkDriver:
    """A running driver. ``events`` gets ``Drained``, ``Failed`` and, once, ``Ended``."""

    def __init__(self, job: Job, number: int, events: queue.Queue[object]) -> None:
        self.number = number
        self.log = job.folder / f"driver-{number}.log"
        self._events = events
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, query.__file__, job.settings()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self.session = self._process.pid
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._wait, daemon=True).start()

    def again(self) -> None:
        """Start the query again, to copy the new input."""
        self._write("again\n")

    def finish(self) -> None:
        """Let it end with status 0; it must be drained."""
        self._write("")

    def kill(self) -> None:
        """Kill the driver's Python and its JVM with SIGKILL. Spark's workers end when they notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.session, signal.SIGKILL)
        self._process.wait()

    def suspend(self) -> None:
        """Suspend all its processes; their connections stay open."""
        signal_all(members(self.session), signal.SIGSTOP)

    def resume(self) -> None:
        signal_all(members(self.session), signal.SIGCONT)

    def workers(self) -> list[int]:
        """Return the pids of its Python workers."""
        return task_workers(self.session)

    def sweep(self, patience_s: float) -> None:
        """Wait until all its processes have ended; kill processes that take longer than ``patience_s``."""
        end = time.monotonic() + patience_s
        while left := members(self.session):
            if time.monotonic() > end:
                signal_all(left, signal.SIGKILL)
            time.sleep(_POLL_S)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of its log, without the frames of Java tracebacks."""
        described = (line for line in self.log.read_text(errors="replace").splitlines() if not line.startswith("\tat "))
        return "\n".join(list(described)[-lines:])

    def _write(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # it has just died; an Ended event follows
            if line:
                stdin.write(line)
                stdin.flush()
            else:
                stdin.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                if line.strip() == query.DRAINED:
                    self._events.put(Drained(self.number))
                elif line.startswith(query.FAILED):
                    self._events.put(Failed(self.number, line.removeprefix(query.FAILED).strip()))

    def _wait(self) -> None:
        status = self._process.wait()
        self._write("")
        self._events.put(Ended(self.number, status))
