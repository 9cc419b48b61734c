"""The rules of ``metaq-spark diagnose``, each made true with a real query and a real broker."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery, ended
from fix_broker import RunningBroker, StartBroker, wait_until
from pyspark.sql import DataFrame, SparkSession

from metaq_spark.diagnosis.diagnosis import diagnose

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

RUNS_S = 90.0


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


class SlowSink:
    """Blocks each batch, from a number on, until it is told to go on."""

    def __init__(self, from_batch: int = 0) -> None:
        self._from, self._passes = from_batch, threading.Semaphore(0)
        self._open = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        frame.count()
        if batch >= self._from and not self._open:
            self._passes.acquire(timeout=RUNS_S)

    def let_one_go(self) -> None:
        self._passes.release()

    def let_all_go(self) -> None:
        self._open = True
        self._passes.release()


def test_idle_is_not_stopped(query: DiagnosedQuery) -> None:
    """A1: the producer has stopped."""
    query.put("1", "2")
    running = query.start(query.stream())
    query.expect("idle", "A1")  # the driver may not have reported yet
    wait_until(lambda: "Waiting for data" in str(query.look().figures["evidence"]["S"]), "a status", RUNS_S)
    found = query.expect("idle", "A1")
    assert "has read its one partition to the end" in found.sentence
    assert "ago, in orders/0-0" in found.sentence
    assert found.figures["driver"] == "alive"
    from_driver = diagnose(query.checkpoint, options={"brokers": query.broker}, query=running, sample_s=0)
    assert (from_driver.verdict, from_driver.rule) == ("idle", "A1")
    running.stop()
    wait_until(lambda: "No driver runs" in query.look().sentence, "the end of the run is reported", RUNS_S)


@pytest.mark.long
def test_a_partition_that_assign_leaves_out(query: DiagnosedQuery) -> None:
    """A2"""
    query.put("1")
    query.start(query.stream(assign='{"orders": ["0-0"]}'))
    query.expect("idle", "A1")
    query.put("2", "3", partition=1)
    found = query.expect("idle", "A2")
    assert "Add 0-1 to the option assign" in found.advice


@pytest.mark.long
def test_a_filter_that_matches_nothing(query: DiagnosedQuery) -> None:
    """A4"""
    query.put("0", attribute="paid")
    query.start(query.stream(messageTypes="Paid"))
    for number in range(4):
        query.expect("idle", "A1" if number < 3 else "A4", messageTypes="Paid")
        query.put(str(number), attribute="paid")
    found = query.expect("idle", "A4", messageTypes="Paid")
    assert "'paid'" in found.sentence
    assert "selects 'Paid'" in found.sentence


@pytest.mark.long
def test_a_batch_that_is_stuck_in_the_sink_and_is_skewed(query: DiagnosedQuery) -> None:
    """B1, B2, B6"""
    sink = SlowSink(from_batch=1)
    query.put("1")
    query.put("1", partition=1)
    query.start(query.stream(), sink)
    query.expect("idle", "A1")
    query.put("2")
    query.put("2", partition=1)
    query.expect("working", "B1")
    query.expect("stuck", "B2")
    query.put("x" * 5000)  # both wait for the end of this batch, so that the next one has both
    query.put("3", partition=1)
    sink.let_one_go()
    skewed = query.expect("stuck", "B6")
    assert "orders/0-0 has" in skewed.sentence
    sink.let_all_go()


@pytest.mark.long
def test_a_trigger_that_is_due_later_and_one_that_has_ended(query: DiagnosedQuery) -> None:
    """B3, B11"""
    query.put("1")
    running = query.start(query.stream(), processingTime="1 hour")
    query.expect("idle", "A1")
    query.put("2")
    found = query.expect("waiting", "B3")
    assert "every 60 min" in found.sentence
    assert "due at" in found.sentence
    running.stop()
    gone = query.expect("gone", "B11")
    assert "ended without an error" in gone.sentence
    query.start(query.stream(), availableNow=True).awaitTermination(120)
    query.expect("idle", "A1")
    query.put("3")
    query.expect("waiting", "B3")


@pytest.mark.long
def test_a_frozen_broker(query: DiagnosedQuery, dev_broker: RunningBroker) -> None:
    """B4, B7, G5"""
    sink = SlowSink(from_batch=1)
    query.put("1")
    query.start(query.stream(requestTimeoutMs="90000"), sink)
    query.expect("idle", "A1")
    os.kill(dev_broker.process.pid, signal.SIGSTOP)
    try:
        found = query.expect("stuck", "B4")
        assert str(dev_broker.address) in found.sentence
        without = diagnose(query.checkpoint, options={"brokers": query.broker, "requestTimeoutMs": "1000"}, sample_s=0)
        assert (without.verdict, without.rule) == ("unknown", "G5"), without.text()
    finally:
        os.kill(dev_broker.process.pid, signal.SIGCONT)
    query.expect("idle", "A1")
    query.put("2")
    query.expect("working", "B1")
    os.kill(dev_broker.process.pid, signal.SIGSTOP)
    try:
        query.expect("stuck", "B7")
    finally:
        os.kill(dev_broker.process.pid, signal.SIGCONT)
        sink.let_all_go()


def test_a_query_that_fails_again_and_again(query: DiagnosedQuery) -> None:
    """B12, B8"""

    def fail(frame: DataFrame, batch: int) -> None:
        frame.count()
        if batch:
            raise ValueError("no number: 'x'")

    query.put("1")
    query.start(query.stream(), fail)
    query.expect("idle", "A1")
    query.put("x")
    found = query.expect("failed", "B12")
    assert "ValueError: no number: 'x'" in found.sentence, found.text()
    ended(query.start(query.stream(), fail))
    again = query.expect("failed", "B8")
    assert "2 runs in a row ended with an error in batch 1" in again.sentence


@pytest.mark.long
def test_the_query_waits_for_more_messages(query: DiagnosedQuery) -> None:
    """B10"""
    query.put("1")
    query.start(query.stream(minOffsetsPerTrigger="1000"))
    query.expect("idle", "A1")
    query.put("2")
    found = query.expect("waiting", "B10", minOffsetsPerTrigger="1000")
    assert "waits for 1000 messages" in found.sentence
    plain = query.expect("waiting", "B10")
    assert "makes no batch" in plain.sentence


@pytest.mark.long
def test_a_topic_that_was_made_again(
    query: DiagnosedQuery, start_broker: StartBroker, dev_broker: RunningBroker, tmp_path: Path
) -> None:
    """A6"""
    query.put("1", "2", "3")
    query.start(query.stream(), availableNow=True).awaitTermination(120)
    query.wait_reported_end()
    query.expect("idle", "A1")
    assert dev_broker.stop() == 0
    shutil.rmtree(dev_broker.data / "orders-0")
    again = start_broker("dev", dev_broker.data, "--port", "0", "--partitions", "2")
    query.broker = str(again.address)
    query.put("4")
    found = query.look()
    assert (str(found.verdict), found.rule) == ("gone", "A6"), found.text()
    assert "created again" in found.sentence
    ended(query.start(query.stream(), availableNow=True))
    query.expect("failed", "A6")
