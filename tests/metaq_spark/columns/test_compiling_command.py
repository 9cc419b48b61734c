"""``metaq-spark compile``: after it, no process compiles anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

READ_AND_COUNT = """
from metaq.model import Message, Partition, TopicPartition
from metaq.formats.frames import encode_body, encode_frame
from metaq_spark.columns import kernels
from metaq_spark.columns.decode import RunDecoder
from metaq_spark.columns.engine import ColumnEngine

run = b"".join(encode_frame(7, *encode_body(Message(b"x", attribute))) for attribute in (None, "a", "b"))
decoder = RunDecoder(TopicPartition("t", Partition(0, 0)), engine=ColumnEngine(0))
for lent in (run, memoryview(bytearray(run))):
    assert [batch.num_rows for batch in (*decoder.decode(lent, 0), *decoder.flush())] == [3]
print(sum(kernels.decode_frames.stats.cache_misses.values()), sum(kernels.decode_frames.stats.cache_hits.values()))
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def compile_in(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "metaq_spark.cli", "compile", **variables)


@pytest.mark.long
@pytest.mark.slow
def test_what_is_compiled_once_is_found_by_the_next_process(tmp_path: Path) -> None:
    first, again = compile_in(tmp_path), compile_in(tmp_path)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout.startswith("Compiled ")
    assert "found 0 compiled, in " in first.stdout
    assert f"kept in {tmp_path}" in first.stdout
    assert "Compiled 0 loops, found " in again.stdout
    reader = run(tmp_path, "-c", READ_AND_COUNT)
    assert (reader.stdout.split(), reader.stderr) == (["0", "1"], "")


@pytest.mark.process
def test_without_numba_it_says_so_and_fails(tmp_path: Path) -> None:
    done = compile_in(tmp_path, METAQ_SPARK_NO_NUMBA="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "metaq-spark: numba cannot be used; messages are handled in plain Python\n"
