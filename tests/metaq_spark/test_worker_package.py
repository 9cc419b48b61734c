"""What Spark ships to its workers says so where they lack the package, and arrives whole where they have it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from metaq_harness import Harness
from pyspark import cloudpickle

from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.sink.writers import SinkBatchWriter, StreamWriter
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import RefusedStream, StreamReader
from metaq_spark.worker_package import MISSING, ShippedToWorkers, why_not_found

LOAD = "import pickle, sys; pickle.loads(open(sys.argv[1], 'rb').read())"


def reader() -> BatchReader:
    return BatchReader(MetaQSource(Harness().options(Use.BATCH_READ)))


@pytest.mark.parametrize("kind", [BatchReader, StreamReader, RefusedStream, SinkBatchWriter, StreamWriter])
def test_it_is_in_everything_that_tasks_get(kind: type) -> None:
    assert issubclass(kind, ShippedToWorkers)


@pytest.mark.parametrize("pickled", [pickle.dumps, cloudpickle.dumps])
def test_it_arrives_as_it_was(pickled: object) -> None:
    sent = reader()
    arrived = pickle.loads(pickled(sent))  # type: ignore[operator]
    assert type(arrived) is BatchReader
    assert arrived._source.options == sent._source.options


@pytest.mark.process
def test_why_a_format_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert why_not_found() is None
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    assert why_not_found() == (
        f"the Python that Spark starts, {bare}, cannot import metaq-spark (ModuleNotFoundError: No module named "
        "'pyspark_metaq'); let PYSPARK_PYTHON name an interpreter that has it"
    )
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    assert (why_not_found() or "").startswith("the Python that Spark starts, no-such-python, cannot be run: No such")


@pytest.mark.process
def test_a_python_without_the_package_says_so(tmp_path: Path) -> None:
    file = tmp_path / "reader"
    file.write_bytes(cloudpickle.dumps(reader()))
    command = [sys.executable, "-I", "-S", "-c", LOAD, str(file)]  # without its packages
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {MISSING % sys.executable}"
