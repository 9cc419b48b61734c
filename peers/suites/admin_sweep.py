"""Runs every command of mqadmin, of 4.9.7 and of 5.5.0, on RocketMQ of the same release and on this project's broker.

A command's verdict is its outcome: the error that it reported, or none. On the original, a refused command counts as
skipped; its answer is what the other side must give, too.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from peers.jvm import OPENED, ends_with_us
from peers.rocketmq.jars import release
from peers.rocketmq.programs import QUICK
from peers.rocketmq.servers import write_logging
from peers.suites.admin_commands import COMMANDS
from peers.suites.filled_server import filled, served
from peers.suites.results import Outcome, Result, Results

PATIENCE_MS: Final = 30_000
TRIES: Final = 3
"""Attempts for a command that ran into a deadline of its own, as on a busy machine."""
COMPILE_DEADLINE_S: Final = 120
NAMES_DEADLINE_S: Final = 120
SOURCE: Final = Path(__file__).with_name("java") / "admin" / "AdminSweep.java"
WORKED: Final = "worked"

LATE: Final = "Remoting"
"""In the names of exceptions for a missing answer."""

_LOGGED: Final = re.compile(r"^\d\d:\d\d:\d\d\.\d+ .*$", re.MULTILINE)
_COMPLAINTS: Final = (
    re.compile(r"CODE: (-?\d+)"),
    re.compile(r"(Remoting\w+Exception)"),
    re.compile(r"((?:\w+\.)+\w*(?:Exception|Error))\b"),
    re.compile(r"(usage: mqadmin)"),
    re.compile(r"(\w+[^\n]* failed[^\n]*)", re.IGNORECASE),
)


def compare(version: str, ours: bool) -> Results:
    """Return the results of a release's sweep on one side."""
    original = verdicts(version, ours=False)
    if not ours:
        return {name: _on_original(verdict) for name, verdict in original.items()}
    return {
        name: Result(Outcome.PASSED)
        if verdict == original[name]
        else Result(Outcome.FAILED, f"{original[name]} on the real one, {verdict} on ours")
        for name, verdict in verdicts(version, ours=True).items()
    }


def _on_original(verdict: str) -> Result:
    return Result(Outcome.PASSED) if verdict.startswith(WORKED) else Result(Outcome.SKIPPED, verdict)


def verdict_of(state: str, said: str) -> str:
    """Return the outcome of a command from its output."""
    said = _LOGGED.sub("", said)
    for pattern in _COMPLAINTS:
        if found := pattern.search(said):
            return found[1].rpartition(".")[2]
    return WORKED if state == "ended" else f"{WORKED}, went on"


@cache
def verdicts(version: str, ours: bool) -> Mapping[str, str]:
    """Return the verdict of each command of a release's tool on one side; computed once."""
    with TemporaryDirectory(prefix="metaq-admin-") as folder:
        return _sweep(version, ours, Path(folder))


def _sweep(version: str, ours: bool, folder: Path) -> dict[str, str]:
    found = {}
    with served(version, ours, folder) as (name_server, broker), ExitStack() as clients:
        words_of = filled(name_server, broker, folder, clients)
        tool = clients.enter_context(_Tool(version, folder))
        require_all(version, tool.names())
        for line in COMMANDS[version]:
            name, *words = line.split()
            words = [word.format(**words_of) for word in words]
            for _ in range(TRIES):
                found[name] = verdict_of(*tool.run([name.partition("#")[0], *words, "-n", name_server]))
                if LATE not in found[name]:
                    break
    return found


def require_all(version: str, names: Collection[str]) -> None:
    """Check that the sweep has the commands of the tool, which are ``names``, and no others.

    Raises:
        ValueError: It has not.
    """
    swept = {line.split()[0].partition("#")[0] for line in COMMANDS[version]}
    if swept != set(names):
        wanting, unknown = sorted(set(names) - swept), sorted(swept - set(names))
        raise ValueError(f"commands of mqadmin {version}: not in the sweep: {wanting}; not in the tool: {unknown}")


class _Tool:
    """The tool as a process that runs one command after the other; started again if a command ends the process."""

    def __init__(self, version: str, folder: Path) -> None:
        self._folder = folder / "tool"
        self._folder.mkdir()
        write_logging(self._folder)
        path = f"{release(version).lib}/*"
        command = ["javac", "-nowarn", "-cp", path, "-d", str(self._folder / "classes"), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_DEADLINE_S)
        home = [f"-Drocketmq.home.dir={self._folder}", f"-Duser.home={self._folder}"]
        self._command = [*ends_with_us(), "java", *QUICK, *OPENED, *home, "-Drocketmq.client.logUseSlf4j=true"]
        self._command += ["-cp", f"{self._folder}/classes:{path}", "suites.AdminSweep"]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Tool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def names(self) -> list[str]:
        """Return the names of the tool's commands."""
        command = [*self._command, "names"]
        return subprocess.run(
            command, cwd=self._folder, check=True, capture_output=True, text=True, timeout=NAMES_DEADLINE_S
        ).stdout.split()

    def run(self, words: Sequence[str]) -> tuple[str, str]:
        """Return the state after a command, and its output."""
        if self._process is None:
            with (self._folder / "log").open("a") as log:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(
                    [*self._command, str(PATIENCE_MS)],
                    cwd=self._folder, stdin=pipe, stdout=pipe, stderr=log, text=True,
                )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        state, _, said = self._process.stdout.readline().partition("\t")
        if not state:
            self._process.communicate()
            self._process = None
            return "ended", "the process ended"
        return state, base64.b64decode(said).decode(errors="replace")
