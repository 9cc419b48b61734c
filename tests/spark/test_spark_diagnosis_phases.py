"""Rules of ``metaq-spark diagnose`` about where the time of batches goes, each made true with a real query that falls
behind, or whose lag stays the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery, sentence_of
from fix_broker import RunningBroker
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from slow_link import slow_link

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

MESSAGES = ["message"] * 20
FEW = {"maxOffsetsPerTrigger": "10"}
"""Less than what arrives while a batch runs."""
BEHIND = "falling behind"
TASKS = 20


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


@pytest.fixture
def many_tasks(spark: SparkSession) -> Iterator[None]:
    """A session as users have it who have not set the number of shuffle partitions."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, TASKS)
    yield
    spark.conf.set(name, str(before))


def test_a_broker_that_is_far_away(query: DiagnosedQuery, dev_broker: RunningBroker) -> None:
    """C1"""
    with slow_link(dev_broker.address, delay_s=0.2) as far, query.flooded(*MESSAGES):
        query.start(query.stream(brokers=str(far), **FEW))
        found = query.expect(BEHIND, "C1")
    assert "of a batch's time is asking for offsets" in found.sentence, found.text()
    assert "brokers answer faster" in found.advice


def test_batches_smaller_than_what_their_checkpoint_costs(query: DiagnosedQuery) -> None:
    """C2"""
    with query.flooded(*MESSAGES):
        query.start(query.stream(**FEW))
        found = query.expect(BEHIND, "C2")
    assert "of a batch's time is writing the checkpoint" in found.sentence, found.text()
    assert "make batches larger" in found.advice


def test_a_plan_that_is_large(query: DiagnosedQuery) -> None:
    """C3"""
    frame = query.stream(**FEW)
    for step in range(25):
        frame = frame.select("*", *((f.length("value") + step).alias(f"c{step}_{number}") for number in range(10)))
    with query.flooded(*MESSAGES):
        query.start(frame)
        found = query.expect_among(BEHIND, "C3")
    assert "of a batch's time is planning" in sentence_of(found, "C3"), found.text()


def test_a_state_that_takes_long(query: DiagnosedQuery) -> None:
    """C5"""
    rows = query.stream(**FEW).selectExpr("explode(sequence(1, 10000)) AS number", "offset")
    with query.flooded(*MESSAGES):
        query.start(rows.dropDuplicates())
        found = query.expect_among(BEHIND, "C5")
    assert "is updating and saving the state" in sentence_of(found, "C5"), found.text()


@pytest.mark.usefixtures("many_tasks")
def test_more_tasks_than_rows(query: DiagnosedQuery) -> None:
    """C6"""
    with query.flooded(*MESSAGES):
        query.start(query.stream(**FEW).groupBy("value").count(), mode="update")
        found = query.expect_among(BEHIND, "C6")
    assert f"A batch has {TASKS} shuffle partitions" in sentence_of(found, "C6"), found.text()


def test_batches_that_cost_the_same_whatever_is_in_them(query: DiagnosedQuery) -> None:
    """C7: as many bytes in each, of short messages or of long ones."""
    with query.flooded(*["short"] * 200, *["long" * 100] * 20):
        query.start(query.stream(maxBytesPerTrigger="2000"))
        found = query.expect_among(BEHIND, "C7")
    assert "of it is a fixed cost" in sentence_of(found, "C7"), found.text()


def test_a_limit_that_holds_a_query_back(query: DiagnosedQuery) -> None:
    """C9"""
    with query.flooded(*MESSAGES):
        query.start(query.stream(**FEW), processingTime="3 seconds")
        found = query.expect_among(BEHIND, "C9")
    assert "Each of the last 4 batches had " in sentence_of(found, "C9"), found.text()
    assert "a limit, which allows" in sentence_of(found, "C9")


def test_a_query_that_keeps_its_distance(query: DiagnosedQuery) -> None:
    """C13: for each batch that is done, as many messages come as it had."""
    query.put(*["message"] * 300)
    stop = threading.Event()

    def put_what_was_read() -> None:
        done = 0
        while not stop.wait(0.05):
            commits = [int(file.name) for file in (query.checkpoint / "commits").glob("[0-9]*")]
            while max(commits, default=-1) >= done:
                query.put(*["message"] * 10)
                done += 1

    producer = threading.Thread(target=put_what_was_read)
    producer.start()
    try:
        query.start(query.stream(**FEW), processingTime="1 second")
        found = query.expect_among("working", "C13")
    finally:
        stop.set()
        producer.join()
    assert "behind" in sentence_of(found, "C13"), found.text()
