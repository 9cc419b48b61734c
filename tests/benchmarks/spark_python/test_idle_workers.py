"""What Spark's daemons print while benchmarks print tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stage

FAILS = """
import traceback
try:
    raise {error}
except Exception:
    traceback.print_exc()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("error", "program", "last_line"),
    [
        ("BrokenPipeError('closed')", "pyspark.daemon", []),
        ("BrokenPipeError('closed')", "another", ["BrokenPipeError: closed"]),
        ("ValueError('wrong')", "pyspark.daemon", ["ValueError: wrong"]),
    ],
)
def test_only_an_idle_worker_that_spark_ended_is_left_out(
    error: str, program: str, last_line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    stage.importable_by_workers()
    path = os.environ["PYTHONPATH"]
    assert str(Path(stage.__file__).parent) in path.split(os.pathsep)
    command = [sys.executable, "-c", FAILS.format(error=error), program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1:] == last_line
