"""Rules of ``metaq-spark diagnose`` about queries that run: rates and state; and about two drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery
from fix_broker import RunningBroker, wait_until
from fix_spark import spark_environment
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("diagnosed_driver.py")


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


def test_falling_behind_and_catching_up(query: DiagnosedQuery) -> None:
    """C4, C10, C11"""
    pause_s, stop = [1.0], threading.Event()

    def slow(frame: DataFrame, batch: int) -> None:
        frame.count()
        threading.Event().wait(pause_s[0])

    def produce() -> None:
        while not stop.wait(0.2):
            query.put(*["message"] * 20)

    query.put("first")
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        query.start(query.stream(maxOffsetsPerTrigger="10"), slow)
        found = query.expect("falling behind", "C4")
        assert found.figures["rates"]["arrival_per_s"] > found.figures["rates"]["service_per_s"] > 0
        assert "format('noop')" in found.advice
    finally:
        stop.set()
        producer.join()
    pause_s[0] = 0.2
    found = query.expect("catching up", "C11")
    assert found.figures["eta_s"] > 0


def rows_of_state(running: StreamingQuery) -> int:
    last = running.lastProgress
    return last["stateOperators"][0]["numRowsTotal"] if last is not None and last["stateOperators"] else 0


def test_a_state_that_grows(query: DiagnosedQuery) -> None:
    """E1"""
    running = query.start(query.stream().select(f.col("value").cast("string").alias("v")).dropDuplicates(["v"]))
    for number in range(6):
        query.put(f"message {number}")
        wait_until(lambda wanted=number: rows_of_state(running) > wanted, "a batch has the message", 60)
    found = query.expect("idle", "E1")
    assert "forgot none" in found.sentence


def test_two_drivers_on_one_checkpoint_and_one_that_is_killed(query: DiagnosedQuery) -> None:
    """F1, B11"""
    query.put("1")
    first = query.start(query.stream())
    query.expect("idle", "A1")
    command = [sys.executable, str(DRIVER), query.broker, str(query.checkpoint), str(query.reports)]
    log = query.folder / "driver.log"
    with log.open("w") as out, subprocess.Popen(command, env=os.environ | spark_environment(), stderr=out) as other:
        try:
            wait_until(lambda: str(other.pid) in query.reports.read_text(), "the second driver starts", 120)

            def one_has_failed() -> bool:
                query.put("2")
                return "F1" in [one.rule for one in query.look().findings]

            wait_until(one_has_failed, "two drivers are noticed", 120)
            first.stop()
        finally:
            other.kill()
            other.wait(60)
    query.put("3")
    wait_until(lambda: query.look().verdict in ("gone", "failed"), "no driver is left", 120)
