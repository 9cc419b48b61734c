"""What ``make test`` leaves out, ``make test-long`` runs, and continuous integration calls both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG = "tests/examples/test_pipeline_example.py"
"""A file whose tests are all marked ``long``; others beside it are not."""


def test_ci_runs_both() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    assert {"test", "test-long"} <= set(re.findall(r"^ *make ([\w-]+)$", run, re.MULTILINE))


def collected(*arguments: str, **environment: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--numprocesses", "0", "-p", "no:cacheprovider"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("METAQ_", "PYTEST_"))}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^(\S+\.py)(?:::|: \d)", done.stdout, re.MULTILINE))


def files(folder: str) -> set[str]:
    return {f"{folder}/{path.name}" for path in (ROOT / folder).glob("test_*.py")}


@pytest.mark.long
@pytest.mark.process
def test_what_is_left_out_is_run_by_the_other() -> None:
    usual = collected("tests/examples")
    long = collected("-m", "long", "tests/examples", METAQ_LONG_TESTS="1")
    assert (LONG in usual, LONG in long) == (False, True)
    assert usual | long == files("tests/examples")
    assert collected(LONG) == {LONG}
