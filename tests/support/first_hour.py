"""Does what README.md asks for in the first hour, line by line in a fresh clone, and prints how long each line takes.

Prints for each line its seconds, and the seconds of processors: on a machine that does other work, too, the second
figure is the one to compare.

    python tests/support/first_hour.py FOLDER [README.zh-CN.md]

FOLDER must not exist. Needs what the page says that it needs, the ports of ``metaq-broker dev``, and 3 GB of disk.
Leaves out lines that are no part of the first hour: the tests, the cluster, figures. Stops at the first line that
fails, with what it printed.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 120.0
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

INSTALL: Final = ("make demo", "make wheel", "-m venv env", "pip install")
BROKER: Final = "metaq-broker dev metaq-data"
USE: Final = ("spark-submit", "metaq-spark diagnose")
DASHBOARD: Final = "--dashboard"


def processor_s() -> float:
    """Seconds of processors that children have used which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Page:
    """The shell lines and the program of a page."""

    def __init__(self, path: Path) -> None:
        blocks: list[tuple[str, str]] = BLOCK.findall(path.read_text(encoding="utf-8"))
        lines = [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]
        self.lines = [re.sub(r"\s{2,}#.*", "", line) for line in lines]
        self.program = next(block for kind, block in blocks if kind == "python")

    def line(self, words: str) -> str:
        """The first line that has these words."""
        return next(line for line in self.lines if words in line)


class Hour:
    """A fresh clone of the project in ``clone``."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        clone.parent.mkdir(parents=True)
        self.run(f"git clone --quiet {ROOT} {clone}", "git clone", clone.parent)

    def command(self, line: str) -> list[str]:
        """``line`` in a shell in which the environment is active, once there is one."""
        return ["bash", "-c", f"[ ! -e env ] || . env/bin/activate; {line}"]

    def run(self, line: str, shown: str = "", folder: Path | None = None) -> None:
        began, used = time.monotonic(), processor_s()
        done = subprocess.run(
            self.command(line),
            cwd=folder or self.clone,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.report(shown or line, began, processor_s() - used)
        if done.returncode:
            sys.exit(f"{line}\n{done.stdout}")

    def report(self, line: str, began: float, used: float | None = None) -> None:
        processors = " " * 10 if used is None else f"{used:8.1f} s"
        print(f"{time.monotonic() - began:8.1f} s {processors}  {line}", flush=True)

    @contextmanager
    def running(self, line: str, words: str) -> Iterator[None]:
        """Keep ``line`` running once it has printed ``words``; end it as Ctrl-C does."""
        began, log = time.monotonic(), self.clone / "running.log"
        command = self.command(f"exec {line}")
        with (
            log.open("w") as out,
            subprocess.Popen(command, cwd=self.clone, stdout=out, stderr=subprocess.STDOUT) as process,
        ):
            try:
                while words not in log.read_text():
                    if process.poll() is not None or time.monotonic() - began > READY_S:
                        sys.exit(f"{line}\n{log.read_text()}")
                    time.sleep(0.05)
                self.report(line, began)
                yield
            finally:
                process.send_signal(signal.SIGINT)


def main(folder: str, name: str = "README.md") -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    hour = Hour(Path(folder).resolve() / "metaq")
    page = Page(hour.clone / name)
    for words in INSTALL:
        hour.run(page.line(words))
    (hour.clone / "first.py").write_text(page.program, encoding="utf-8")
    with hour.running(page.line(BROKER), " ready on "):
        hour.run("python first.py")
        for words in USE:
            hour.run(page.line(words))
    with hour.running(page.line(DASHBOARD), "http://"):
        pass
    hour.report("together", began, processor_s())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
