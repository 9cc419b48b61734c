"""Rules of ``metaq-spark diagnose`` about event time, each made true with a real query: watermarks and late rows."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery
from fix_broker import RunningBroker, wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

DELAY = "1 minute"
DAY_S = 86400.0


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


def moment(ahead_s: float) -> str:
    """A time of so many seconds from now, as producers write it into messages."""
    return datetime.datetime.fromtimestamp(time.time() + ahead_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def timed(frame: DataFrame) -> DataFrame:
    """Rows whose event time is in the message, with a watermark."""
    time_of_event = f.to_timestamp(f.col("value").cast("string")).alias("at")
    return frame.select(time_of_event).withWatermark("at", DELAY)


def counted(frame: DataFrame) -> DataFrame:
    """Counts by minute of the event: append mode gives a minute out when the watermark has passed it."""
    return timed(frame).groupBy(f.window("at", "1 minute")).count()


def rows_read(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def put_one_at_a_time(query: DiagnosedQuery, running: StreamingQuery, *events: str) -> None:
    """Put each when the batch with the one before has reported its rows."""
    for event in events:
        before = rows_read(running)
        query.put(event)
        wait_until(lambda least=before + 1: rows_read(running) >= least, "a batch has the message", 60)


def test_a_watermark_that_stands_still(query: DiagnosedQuery) -> None:
    """D1: the producer's clock has stopped."""
    running = query.start(counted(query.stream()))
    put_one_at_a_time(query, running, *[moment(-DAY_S)] * 8)
    found = query.expect("idle", "D1")
    assert "The watermark stands at" in found.sentence, found.text()
    assert "Nothing comes out before the watermark passes" in found.advice


def test_a_watermark_that_moves_is_not_said_to_stand(query: DiagnosedQuery) -> None:
    running = query.start(counted(query.stream()))
    put_one_at_a_time(query, running, *[moment(60 * number - DAY_S) for number in range(8)])
    found = query.expect("idle", "A1")
    assert "D1" not in [one.rule for one in found.findings], found.text()


def test_rows_that_come_too_late(query: DiagnosedQuery) -> None:
    """D3"""
    running = query.start(counted(query.stream()))
    put_one_at_a_time(query, running, moment(-60), moment(-30), *[moment(-DAY_S)] * 2)
    query.expect("idle", "D3")
    wait_until(lambda: "2 rows came later than the watermark allows and were dropped" in query.look().sentence, "both")
    assert "Give withWatermark a longer delay" in query.look().advice


def test_a_row_of_the_future(query: DiagnosedQuery) -> None:
    """D4"""
    running = query.start(counted(query.stream()))
    put_one_at_a_time(query, running, moment(-60), moment(30 * DAY_S))
    found = query.expect("idle", "D4")
    assert "orders/0-0 from" in found.sentence, found.text()
    assert "correct the clock of its producer" in found.advice
    query.put(moment(0))
    wait_until(lambda: "D3" in [one.rule for one in query.look().findings], "a row of now is late", 60)
    assert query.look().rule == "D4"


def test_a_source_that_holds_the_watermark(query: DiagnosedQuery) -> None:
    """D2"""
    query.put(moment(-DAY_S), topic="bills")
    both = timed(query.stream()).union(timed(query.stream(subscribe="bills")))
    running = query.start(both.groupBy(f.window("at", "1 minute")).count())
    put_one_at_a_time(query, running, *[moment(10 * number - 600) for number in range(8)])
    found = query.expect("idle", "D2")
    assert "multipleWatermarkPolicy" in found.advice, found.text()
