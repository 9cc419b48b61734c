"""The rules of ``metaq-spark diagnose``, each made true with a real query and a real broker."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery, ended
from fix_broker import RunningBroker, StartBroker
from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

RUNS_S = 90.0


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


class SlowSink:
    """Blocks each batch until it is told to go on, or for a while."""

    def __init__(self, from_batch: int = 0, pause_s: float = RUNS_S) -> None:
        self._from, self._pause_s, self.go_on = from_batch, pause_s, threading.Event()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        frame.count()
        if batch >= self._from:
            self.go_on.wait(self._pause_s)


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
    sink.go_on.set()
    query.expect("idle", "A1")
    sink.go_on.clear()
    query.put("x" * 5000)
    query.put("3", partition=1)
    skewed = query.expect("stuck", "B6")
    assert "orders/0-0 has" in skewed.sentence
    sink.go_on.set()


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


def test_a_topic_that_was_made_again(
    query: DiagnosedQuery, start_broker: StartBroker, dev_broker: RunningBroker, tmp_path: Path
) -> None:
    """A6"""
    query.put("1", "2", "3")
    query.start(query.stream(), availableNow=True).awaitTermination(120)
    query.expect("idle", "A1")
    assert dev_broker.stop() == 0
    shutil.rmtree(dev_broker.data / "orders-0")
    again = start_broker("dev", dev_broker.data, "--port", "0", "--partitions", "2")
    query.broker = str(again.address)
    query.put("4")
    found = query.look()
    assert (str(found.verdict), found.rule) in (("waiting", "B3"), ("gone", "A6")), found.text()
    assert "created again" in " ".join(one.sentence for one in found.findings)
    ended(query.start(query.stream(), availableNow=True))
    query.expect("failed", "A6")
