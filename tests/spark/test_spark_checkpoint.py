"""Queries that are stopped, moved by the command, and started again: exactly the rows that should come, do come."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_spark import Topic, run_to_end
from pyspark.sql import DataFrame

from metaq_spark.cli import main

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

FRAME_BYTES = 22
"""Every message here has two bytes of payload."""

Run = Callable[[], list[list[str]]]


@pytest.fixture
def command(topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs ``metaq-spark checkpoint VERB`` on the test's checkpoint and returns its answer, or its complaint."""

    def checkpoint(verb: str, *arguments: str) -> Any:
        brokers = [] if verb == "undo" else ["--brokers", topic.servers]
        status = main(["checkpoint", verb, str(tmp_path / "checkpoint"), "--json", *brokers, *arguments])
        out, err = capsys.readouterr()
        return json.loads(out) if status == 0 else err

    return checkpoint


def batches_of(frame: DataFrame, folder: Path, mode: str = "append") -> list[list[str]]:
    """Run to the end of what is there; the values of every batch that had rows, sorted."""
    seen: list[list[str]] = []
    writer = (
        frame.writeStream.outputMode(mode)
        .foreachBatch(lambda rows, _: seen.append(sorted(row.value for row in rows.collect())))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    assert run_to_end(writer).awaitTermination(120)
    return [values for values in seen if values]


@pytest.fixture
def run(topic: Topic, tmp_path: Path) -> Run:
    """Runs a query that takes two messages a batch."""
    topic.put(*[f"m{n}" for n in range(6)])
    frame = topic.stream(maxBytesPerTrigger=str(2 * FRAME_BYTES)).selectExpr("cast(value as string) value")
    return lambda: batches_of(frame, tmp_path)


def test_back_forward_and_undone(run: Run, topic: Topic, command: Callable[..., Any], tmp_path: Path) -> None:
    assert run() == [["m0", "m1"], ["m2", "m3"], ["m4", "m5"]]
    offsets = tmp_path / "checkpoint" / "offsets"
    before = {file.name: file.read_bytes() for file in offsets.iterdir()}

    # Back to a message, in the form of startingOffsets; a dry run first, which changes nothing.
    third = json.dumps({topic.name: {"3-0": 2 * FRAME_BYTES}})
    assert command("move", "--to", third)["partitions"][0]["read_again_bytes"] == 4 * FRAME_BYTES
    assert {file.name: file.read_bytes() for file in offsets.iterdir()} == before
    moved = command("move", "--to", third, "--yes")
    assert (moved["done"], moved["batch"]) == (True, 3)
    assert "moved already" in command("move", "--to", "latest", "--yes")
    assert run() == [["m2", "m3"], ["m4", "m5"]]

    # Forward over what is not wanted; only what comes after it is read.
    topic.put("m6", "m7")
    assert command("move", "--to", "latest", "--yes")["partitions"][0]["skipped_bytes"] == 2 * FRAME_BYTES
    topic.put("m8")
    assert run() == [["m8"]]

    # A move that is undone leaves the folder as it was.
    before = {file.name: file.read_bytes() for file in offsets.iterdir()}
    assert command("move", "--to", "earliest", "--yes")["done"]
    assert command("undo", "--yes")["done"]
    assert {file.name: file.read_bytes() for file in offsets.iterdir()} == before
    assert "nothing to undo" in command("undo", "--yes")
    assert run() == []

    # To where a batch ended.
    assert command("move", "--to-batch", "0", "--yes")["done"]
    assert run() == [["m2", "m3"], ["m4", "m5"], ["m6", "m7"], ["m8"]]
    shown = command("show")
    assert (shown["planned_batch"], shown["sources"][0]["partitions"][0]["lag_messages"]) == (None, 0)


@pytest.mark.long
def test_to_a_time_and_a_new_partition_unharmed(
    run: Run, topic: Topic, command: Callable[..., Any], tmp_path: Path
) -> None:
    run()
    born_ms = {row.value.decode(): row.timestamp for row in topic.read().select("value", "timestamp").collect()}
    topic.put("n0", partition=1)
    since = born_ms["m0"].isoformat() + "Z"
    assert [row["to"] for row in command("move", "--to-time", since, "--yes")["partitions"]] == [0]
    assert sorted(itertools.chain(*run())) == [*[f"m{n}" for n in range(6)], "n0"]
    later_ms = str(int(time.time() * 1000) + 3_600_000)
    topic.put("m9")
    assert {row["partition"] for row in command("move", "--to-time", later_ms, "--yes")["partitions"]} == {"3-0", "3-1"}
    assert run() == []  # no message is that new: at the end


@pytest.mark.long
def test_an_unfinished_batch_is_not_moved_over_by_accident(
    run: Run, topic: Topic, command: Callable[..., Any], tmp_path: Path
) -> None:
    run()
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()  # as if the driver had died after the batch was written, before Spark noted it
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    assert command("show")["planned_batch"] == 2
    assert "batch 2 is planned and not committed" in command("move", "--to", "latest", "--yes")
    moved = command("move", "--to-batch", "0", "--abandon-planned", "--yes")
    assert (moved["batch"], moved["abandoned_batch"]) == (3, 2)
    assert run() == [["m2", "m3"], ["m4", "m5"]]
    assert not (commits / "2").exists()


@pytest.mark.long
def test_a_stateful_query_keeps_its_state(topic: Topic, command: Callable[..., Any], tmp_path: Path) -> None:
    topic.put("m0", "m1", "m0")
    counted = topic.stream().selectExpr("cast(value as string) value").groupBy("value").count()
    counts = counted.selectExpr("value || count as value")
    assert batches_of(counts, tmp_path, "update") == [["m02", "m11"]]
    assert "stateful" in command("move", "--to", "earliest", "--yes")
    assert command("move", "--to", "earliest", "--keep-state", "--yes")["stateful"]
    assert batches_of(counts, tmp_path, "update") == [["m04", "m12"]]
    topic.put("m1")
    assert command("move", "--to", "latest", "--keep-state", "--yes")["done"]
    topic.put("m0")
    assert batches_of(counts, tmp_path, "update") == [["m05"]]


@pytest.mark.long
def test_sinks_with_a_log_of_batches_go_on(topic: Topic, command: Callable[..., Any], tmp_path: Path) -> None:
    """A file sink compacts its log every tenth batch and fails if one is missing; exactly-once refuses an old id."""
    topic.put(*[f"m{n}" for n in range(4)])
    frame = topic.stream(maxBytesPerTrigger=str(FRAME_BYTES)).selectExpr("cast(value as string) value")
    for _ in range(3):
        topic.drain(frame, tmp_path)
        assert command("move", "--to-batch", "0", "--yes")["done"]
    topic.drain(frame, tmp_path)
    files = topic.spark.read.parquet(str(tmp_path / "rows"))
    assert sorted(row.value for row in files.collect()) == ["m0", *["m1"] * 4, *["m2"] * 4, *["m3"] * 4]
    assert len(os.listdir(tmp_path / "checkpoint" / "commits")) > 20  # with their checksums: more than ten batches


@pytest.mark.long
def test_an_exactly_once_sink_goes_on(topic: Topic, command: Callable[..., Any], tmp_path: Path) -> None:
    topic.put("m0", "m1", "m2")
    target = topic.named(topic.name + "-target")

    def copy() -> list[str]:
        rows = topic.stream(maxBytesPerTrigger=str(FRAME_BYTES)).select("value")
        assert target.append_all(rows, tmp_path, delivery="exactly_once").awaitTermination(120)
        return target.stored()

    assert copy() == ["m0", "m1", "m2"]
    assert command("move", "--to-batch", "0", "--yes")["done"]
    assert copy() == ["m0", "m1", "m1", "m2", "m2"]
    assert command("move", "--to", "latest", "--yes")["done"]
    assert copy() == ["m0", "m1", "m1", "m2", "m2"]
