"""Results of tests on two sides, and how they differ from the expected ones. Pure: values in, values out."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

MESSAGE_CHARACTERS: Final = 160


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one test, and why it failed."""

    outcome: Outcome
    why: str = ""


Results = dict[str, Result]
"""By the test's name, ``Class.method``."""


@dataclass(frozen=True, slots=True)
class Exceptions:
    """Tests that are known to fail: for each side, names and reasons."""

    failing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, side: str) -> Mapping[str, str]:
        """Return names and reasons of the tests that fail on a side."""
        return self.failing.get(side, {})


def read_exceptions(file: Path) -> dict[str, Exceptions]:
    """Read the named exceptions by suite: ``[suite.side]`` with lines ``"Class.method" = "reason"``."""
    return {suite: Exceptions(sides) for suite, sides in tomllib.loads(file.read_text()).items()}


def parse_report(text: str) -> Results:
    """Return the results in a JUnit report, in the XML that all of its runners write."""
    results: Results = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = case.get("classname", "").rpartition(".")[2] + "." + case.get("name", "").removesuffix("()")
        result = Result(Outcome.PASSED)
        for child in case:
            if child.tag in ("failure", "error"):
                said = " ".join((child.get("message") or child.get("type") or child.text or "").split())
                result = Result(Outcome.FAILED, said[:MESSAGE_CHARACTERS])
            elif child.tag == "skipped":
                result = Result(Outcome.SKIPPED)
        results[name] = result
    return results


def count(results: Results, outcome: Outcome) -> int:
    return sum(each.outcome is outcome for each in results.values())


def failed(results: Results) -> list[str]:
    return sorted(name for name, each in results.items() if each.outcome is Outcome.FAILED)


def surprises(suite: str, side: str, results: Results, expected: Mapping[str, str]) -> list[str]:
    """Return a sentence for each test with an unexpected outcome."""
    found = [
        f"{suite}, {side}: {name} failed and is no named exception: {results[name].why}"
        for name in failed(results)
        if name not in expected
    ]
    for name in expected:
        if name not in results:
            found.append(f"{suite}, {side}: {name} is a named exception and did not run")
        elif results[name].outcome is not Outcome.FAILED:
            found.append(f"{suite}, {side}: {name} is a named exception and {results[name].outcome.value}")
    return found


def table(suite: str, sides: Mapping[str, Results], exceptions: Exceptions) -> list[str]:
    """Return the lines for a suite: passed tests on each side, and the named exceptions with their reasons."""
    original, *others = sides
    lines = [f"{suite}: {sum(each.outcome is not Outcome.SKIPPED for each in sides[original].values())} tests"]
    for side, results in sides.items():
        numbers = ", ".join(f"{count(results, each)} {each.value}" for each in Outcome)
        lines.append(f"  {side:28} {numbers}")
    for side in others:
        both = _passed(sides[original]) & _passed(sides[side])
        lines.append(f"  passed on {original}: {count(sides[original], Outcome.PASSED)}, and on {side}: {len(both)}")
    for side in sides:
        lines += [f"  {side}: {name}: {reason}" for name, reason in sorted(exceptions.of(side).items())]
    return lines


def _passed(results: Results) -> set[str]:
    return {name for name, each in results.items() if each.outcome is Outcome.PASSED}


def merged(parts: Sequence[Results]) -> Results:
    """Return the results of several runs; of a repeated test, the last one."""
    return {name: result for part in parts for name, result in part.items()}
