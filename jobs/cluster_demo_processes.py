"""The processes of the cluster demo: each is started, awaited, and stopped in any case.

Each has a session of its own: Ctrl-C would reach every process of the terminal's session, and these must be stopped in
order. Each writes its output to a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from demo_stage import StageFailed, signals_deferred

START_DEADLINE_S, STOP_DEADLINE_S, POLL_INTERVAL_S = 60.0, 20.0, 0.05
LOG_CHARACTERS_SHOWN = 3000


class Process:
    """One process with its log; created by ``Processes.start``."""

    def __init__(self, name: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.name, self._log, self._process = name, log, process

    def status(self) -> int | None:
        """The exit status; ``None`` while it runs."""
        return self._process.poll()

    def said(self) -> str:
        """Return its standard output and standard error so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, happened: Callable[[], bool], what: str, deadline_s: float = START_DEADLINE_S) -> None:
        """Return when ``happened()``; ``what`` names the event for people.

        Raises:
            StageFailed: The process has ended, or it takes longer than ``deadline_s``.
        """
        end_s = time.monotonic() + deadline_s
        while not happened():
            status = self.status()
            if status is not None:
                raise StageFailed(f"{self.name} has ended with status {status}, before {what}{self.end_of_log()}")
            if time.monotonic() > end_s:
                raise StageFailed(f"{self.name}: waited {deadline_s:g} s in vain for: {what}{self.end_of_log()}")
            time.sleep(POLL_INTERVAL_S)

    def wait(self, deadline_s: float) -> int:
        """Return the exit status, once it has ended.

        Raises:
            StageFailed: It takes longer than ``deadline_s``.
        """
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise StageFailed(f"{self.name}: still running after {deadline_s:g} s{self.end_of_log()}") from None

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_DEADLINE_S)

    def stop(self) -> None:
        """Terminate it; then kill it and all processes that it started."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_DEADLINE_S)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end_of_log(self) -> str:
        """Return the end of its log, to be appended to an error message."""
        return f"; the end of its log:\n{self.said()[-LOG_CHARACTERS_SHOWN:]}"


class Processes:
    """All processes of the demo, with their logs in ``folder``. Leaving the block stops them, the last one first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._environment = _environment(self.temporary)
        self._started: list[Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.stop()

    def start(self, name: str, command: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> Process:
        """Start a command, with ``variables`` added to its environment, without waiting.

        Raises:
            StageFailed: There is no such program.
        """
        log = self.folder / f"{len(self._started)}-{name.replace(' ', '-')}.log"
        environment = {**self._environment, **(variables or {})}
        with log.open("wb") as output, signals_deferred():
            process = Process(name, log, _start(name, command, self.folder, environment, output))
            self._started.append(process)
        return process


def _start(
    name: str, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise StageFailed(f"{name} cannot be started: {error}") from error


def _environment(temporary: Path) -> dict[str, str]:
    """Return this environment without variables of another Spark, and with one folder for all temporary files."""
    hidden = ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    java = f'{kept.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={temporary}"'.strip()
    return kept | {"TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": java, "SPARK_LOCAL_DIRS": str(temporary)}
