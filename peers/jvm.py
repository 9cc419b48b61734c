"""A Java server as a process: started on a port that it keeps, awaited, stopped, killed, started again."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

START_DEADLINE_S: Final = 180.0
STOP_DEADLINE_S: Final = 30.0
POLL_S: Final = 0.1
LOG_TAIL: Final = 3000

OPENED: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("sun.nio.ch", "java.nio", "jdk.internal.ref", "java.lang", "java.util")
)
SMALL: Final = ("-Xmx384m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a server of a test: most of its time is its start, so the optimising compiler does not help."""

FAST: Final = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
"""Options for a server that is measured."""


class JavaServer:
    """One server. Its log is in ``folder``; ``command`` is the arguments of ``java``; ``ready`` says when it answers.
    """

    def __init__(self, name: str, folder: Path, port: int, command: Sequence[str], ready: Callable[[], bool]) -> None:
        self.name = name
        self.folder = folder
        self.port = port
        self._command = [*ends_with_us(), "java", *command]
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped or killed since."""
        return self._process is not None

    @property
    def log(self) -> str:
        """What it has written to its standard output and error."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; with the end of its log.
        """
        if self._process is not None:
            raise RuntimeError(f"{self.name} runs already")
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_DEADLINE_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.name} did not get ready:\n{self.log[-LOG_TAIL:]}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Terminate it and wait; kill it if it does not end."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def ends_with_us() -> Sequence[str]:
    """Return a prefix for a command, so that its process is killed when this one ends (Linux)."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def fresh(folder: Path) -> Path:
    """Create an empty folder, or empty an existing one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
