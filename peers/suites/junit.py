"""Runs tests with JUnit's console, which knows JUnit 3, 4 and 5."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from peers.isolation import in_one_of_its_own
from peers.jvm import OPENED, ends_with_us
from peers.maven import cache, fetched
from peers.suites.results import Outcome, Result, Results, failed, merged, parse_report

CONSOLE: Final = "org.junit.platform:junit-platform-console-standalone:1.11.4"
LAUNCHER: Final = "org.junit.platform.console.ConsoleLauncher"
ENDED_WELL: Final = (0, 1)
"""Exit statuses of the console: all passed, some failed."""


@dataclass(frozen=True, slots=True)
class TestRun:
    """How to run the tests of a suite: class path, system properties, JUnit's settings, and a limit of time for all.

    ``alone``: in a network namespace, which concurrent tests with fixed ports need.
    """

    __test__ = False

    console: Path
    class_path: Sequence[str]
    folder: Path
    deadline_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def run(self, classes: Sequence[str], again: int = 1) -> Results:
        """Run the tests of the classes; repeat failed ones up to ``again`` times, as the suites' own builds do."""
        parts = [self._run([option for each in classes for option in ("--select-class", each)], classes)]
        for _ in range(again):
            missed = [name for name in failed(merged(parts)) if "." in name]  # not classes that did not end
            if missed:
                parts.append(self._run(self._selected(missed, classes), classes))
        return merged(parts)

    def _selected(self, tests: Sequence[str], classes: Sequence[str]) -> list[str]:
        """Return the options that select tests by name."""
        full = {each.rpartition(".")[2]: each for each in classes}
        names = (test.split(".", 1) for test in tests)
        return [word for short, method in names for word in ("--select-method", f"{full[short]}#{method}")]

    def _run(self, selected: Sequence[str], classes: Sequence[str]) -> Results:
        with tempfile.TemporaryDirectory(dir=self.folder) as reports:
            command = ["java", "-Xmx1g", *OPENED, f"-Duser.home={self.folder}"]
            command += [f"-D{key}={value}" for key, value in self.properties.items()]
            command += ["-cp", ":".join([*self.class_path, str(self.console)]), LAUNCHER]
            command += ["execute", "--disable-banner", "--details=tree", f"--reports-dir={reports}", *selected]
            command += [word for key, value in self.settings.items() for word in ("--config", f"{key}={value}")]
            command = [*ends_with_us(), *(in_one_of_its_own(command) if self.alone else command)]
            status: int | None = None
            with (self.folder / "junit.log").open("ab") as log, contextlib.suppress(subprocess.TimeoutExpired):
                status = subprocess.run(
                    command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, timeout=self.deadline_s
                ).returncode
            results = merged([parse_report(file.read_text()) for file in sorted(Path(reports).glob("TEST-*.xml"))])
        if status not in ENDED_WELL and not results:
            why = f"no end within {self.deadline_s:.0f} s" if status is None else f"JUnit ended with {status}"
            return {each.rpartition(".")[2]: Result(Outcome.FAILED, why) for each in classes}
        return results


def console() -> Path:
    """Return JUnit's console; fetch it if necessary.

    Raises:
        Unavailable: There is no Maven, or it could not fetch it.
    """
    (jar,) = fetched("JUnit's console", cache() / "junit-console", [CONSOLE]).glob("*.jar")
    return jar
