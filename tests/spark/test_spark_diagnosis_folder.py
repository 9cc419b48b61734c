"""Rules of ``metaq-spark diagnose`` about the checkpoint and the first batch, each made true with the checkpoint of a
real query."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import run_command
from diagnosed_query import DiagnosedQuery, ended, sentence_of
from examples import rarely
from fix_broker import RunningBroker, wait_until
from pyspark.sql import DataFrame, SparkSession

from metaq_spark.cli import main
from metaq_spark.diagnosis.diagnosis import Watch, diagnose
from metaq_spark.spark_version import AVAILABLE_NOW

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

FIRST_BATCH_S = 60
"""A first batch is long from here on."""


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


def read_to_end(query: DiagnosedQuery, **options: str) -> None:
    ended(query.start(query.stream(**options), availableNow=True))


def forget(file: Path) -> None:
    """Remove a file of a checkpoint, and that of its checksum."""
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def newest_batch(folder: Path) -> int:
    return max((int(file.name) for file in folder.glob("[0-9]*")), default=-1)


@pytest.mark.long
def test_a_query_that_has_just_started(query: DiagnosedQuery, dev_broker: RunningBroker) -> None:
    """B14: its broker takes a while to say where the topic begins."""
    query.put("1")
    frame = query.stream(requestTimeoutMs="90000")
    os.kill(dev_broker.process.pid, signal.SIGSTOP)
    try:
        query.start(frame)
        found = query.expect("working", "B14")
    finally:
        os.kill(dev_broker.process.pid, signal.SIGCONT)
    assert "is preparing its first batch" in found.sentence, found.text()
    assert found.missing == ()
    query.expect("idle", "A1")


@pytest.mark.long
def test_a_first_batch_that_holds_everything(query: DiagnosedQuery) -> None:
    """B9"""
    go_on = threading.Event()

    def slow(frame: DataFrame, batch: int) -> None:
        frame.count()
        go_on.wait(3 * FIRST_BATCH_S)

    query.put(*["message of some length"] * 100)
    query.start(query.stream(), slow)
    try:
        found = query.expect("working", "B9")
    finally:
        go_on.set()
    assert "it may hold everything that was there, up to 4." in found.sentence, found.text()
    assert "start again with maxBytesPerTrigger" in found.advice


def test_a_query_that_was_moved(query: DiagnosedQuery) -> None:
    """B13"""
    query.put("1", "2", "3")
    read_to_end(query)
    query.expect("idle", "A1")
    move = ("checkpoint", "move", query.checkpoint, "--brokers", query.broker, "--to", "earliest", "--yes")
    status, _, error = run_command(main, *move)
    assert (status, error) == (0, "")
    found = query.expect("waiting", "B13")
    assert "was moved by batch 1, which has not run yet" in found.sentence, found.text()
    without_reports = diagnose(query.checkpoint, options=query.reach, sample_s=0)
    assert (str(without_reports.verdict), without_reports.rule) == ("waiting", "B13"), without_reports.text()
    read_to_end(query)
    if not AVAILABLE_NOW.present:  # the run ends behind the batch of the move
        read_to_end(query)
    query.expect("idle", "A1")


@pytest.mark.long
def test_a_query_that_keeps_up(query: DiagnosedQuery) -> None:
    """C12: what waits, waits for the next batch."""
    with query.flooded("message"):
        query.start(query.stream(), processingTime="4 seconds")
        found = query.expect("working", "C12")
    assert "behind" in found.sentence, found.text()


@pytest.mark.long
def test_a_function_that_reads_nothing(query: DiagnosedQuery) -> None:
    """D7"""
    query.put("1")
    query.start(query.stream(), lambda frame, batch: None)
    found = query.expect("idle", "D7")
    assert "The function of foreachBatch has read no rows of batch 0" in found.sentence, found.text()


@pytest.mark.long
def test_a_folder_that_was_copied_while_the_query_ran(query: DiagnosedQuery, tmp_path: Path) -> None:
    """F2: its commits first, as copying does that goes by the names of folders; the query goes on meanwhile."""
    query.put("0")
    running = query.start(query.stream())
    query.expect("idle", "A1")
    copied = tmp_path / "copied"
    shutil.copytree(query.checkpoint / "commits", copied / "commits")
    for batch in (1, 2):
        query.put(str(batch))
        wait_until(lambda least=batch: newest_batch(query.checkpoint / "commits") >= least, "the batch is done")
    for name in ("metadata", "offsets"):
        part = query.checkpoint / name
        (shutil.copytree if part.is_dir() else shutil.copy)(part, copied / name)
    running.stop()
    watch = Watch(copied, options=query.reach)
    wait_until(lambda: watch.look().rule == "F2", "the copy is old enough to be no batch that runs")
    found = watch.look()
    assert str(found.verdict) == "unknown", found.text()
    assert found.sentence.startswith("2 batches are planned and not committed"), found.text()


@pytest.mark.long
def test_a_query_that_was_started_with_another_topic(query: DiagnosedQuery) -> None:
    """F3"""
    query.put("1")
    query.put("1", topic="bills")
    read_to_end(query)
    query.expect("idle", "A1")
    read_to_end(query, subscribe="bills")
    found = query.expect_among("failed", "F3", subscribe="bills")
    said = sentence_of(found, "F3")
    assert said == "The checkpoint has positions of orders, and the query subscribes to bills.", found.text()


@pytest.mark.parametrize("part", [*rarely("offsets"), "commits"])
def test_a_file_that_a_crash_of_the_machine_has_emptied(query: DiagnosedQuery, part: str) -> None:
    """F4: Spark cannot go on with it; with the advice it can."""
    for number in range(3):
        query.put(str(number))
        read_to_end(query)
    newest = query.checkpoint / part / "2"
    if part == "offsets":  # the batch was planned and not done yet
        forget(query.checkpoint / "commits" / "2")
    newest.write_bytes(b"")
    found = query.expect("failed", "F4")
    assert f"The file {part}/2 is empty" in found.sentence, found.text()
    assert f"move {part}/2 and its .crc file out of the folder" in found.advice
    again = query.start(query.stream(), availableNow=True)
    ended(again)
    assert again.exception() is not None
    forget(newest)
    read_to_end(query)
    query.expect("idle", "A1")


@pytest.mark.long
def test_reports_of_another_query(query: DiagnosedQuery, tmp_path: Path) -> None:
    """F5, U0: somebody has started the program with another checkpointLocation."""
    query.put("1")
    read_to_end(query)
    query.expect("idle", "A1")
    query.wait_reported_end()  # or it would be reported to the other listener
    other = DiagnosedQuery(query.spark, query.broker, tmp_path / "other")
    with other.listening():
        read_to_end(other)
        other.wait_reported_end()
    query.put("2")
    found = diagnose(query.checkpoint, options=query.reach, progress=other.reports, sample_s=0)
    assert "the checkpoint is of query" in sentence_of(found, "F5"), found.text()
    an_hour_ago = time.time() - 3600
    for file in query.checkpoint.rglob("*"):
        os.utime(file, (an_hour_ago, an_hour_ago))
    alone = diagnose(query.checkpoint, sample_s=0)
    assert (str(alone.verdict), alone.rule) == ("unknown", "U0"), alone.text()
