"""Rules of ``metaq-spark diagnose`` about brokers, with real queries: a full disk, removed messages, RocketMQ; and
checkpoints of other connectors."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery, ended, sentence_of
from fix_broker import RunningBroker, StartBroker, wait_until, write_ini
from local_servers import BrokerPair, running_name_server
from pyspark.sql import DataFrame, SparkSession

from metaq import RocketMQ
from metaq.errors import MetaqError
from metaq.testing.ports import free_port
from metaq_spark.diagnosis.diagnosis import diagnose

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

NO_DISK_HAS = 1 << 60


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    """A query whose broker the test starts."""
    query = DiagnosedQuery(spark, "", tmp_path / "query")
    with query.listening():
        yield query


@pytest.fixture
def rocketmq_query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    """A query of ``format("rocketmq")``."""
    servers = str(dev_broker.rocketmq_address)
    query = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query", name_servers=servers)
    with query.listening():
        yield query


def test_a_broker_that_refuses_messages(made: DiagnosedQuery, start_broker: StartBroker, tmp_path: Path) -> None:
    """A3"""
    port = free_port()
    folder = tmp_path / "broker"
    broker = start_broker("start", "-f", write_ini(folder, serverPort=port))
    made.broker = str(broker.address)
    made.put("1")
    made.start(made.stream())
    made.expect("idle", "A1")
    assert broker.stop() == 0
    start_broker("start", "-f", write_ini(folder, serverPort=port, diskFreeMinBytes=NO_DISK_HAS))
    found = made.expect("idle", "A3")
    assert f"broker {made.broker} disk" in found.sentence, found.text()
    assert "it refuses puts" in found.sentence
    assert "make space on the disk" in found.advice
    with pytest.raises(MetaqError, match="disk is nearly full"):
        made.put("2")


@pytest.mark.long
def test_messages_that_were_removed_unread(made: DiagnosedQuery, start_broker: StartBroker, tmp_path: Path) -> None:
    """A5"""
    folder = tmp_path / "broker"
    file = write_ini(folder, maxSegmentSize=300, serverPort=free_port())
    broker = start_broker("start", "-f", file)
    made.broker = str(broker.address)
    made.put("1")
    running = made.start(made.stream(lossGraceMs="500ms"))
    made.expect("idle", "A1")
    running.stop()
    made.put(*["a message of some length"] * 40)
    broker.kill()
    for segment in sorted((folder / "data" / "orders-0").glob("*.meta"))[:-1]:  # as retention removes them
        segment.unlink()
    start_broker("start", "-f", file)
    found = made.expect("gone", "A5")
    assert "the query is at " in found.sentence, found.text()
    assert "failOnDataLoss=false" in found.advice
    ended(made.start(made.stream(lossGraceMs="500ms"), availableNow=True))
    made.expect("failed", "A5")
    made.start(made.stream(failOnDataLoss="false", lossGraceMs="500ms"), availableNow=True).awaitTermination(120)
    made.expect("idle", "A1")


@pytest.mark.long
def test_queries_of_rocketmq(rocketmq_query: DiagnosedQuery) -> None:
    """A1, B10, B1, B2, B11: the same verdicts, with messages counted instead of bytes."""
    query, go_on = rocketmq_query, threading.Event()

    def slow(frame: DataFrame, batch: int) -> None:
        frame.count()
        if batch:
            go_on.wait(90)

    query.put("1", "2")
    running = query.start(query.stream(), slow)
    found = query.expect("idle", "A1")
    assert found.figures["sources"][0]["format"] == "rocketmq"
    query.put("3", "4", "5")
    query.expect("working", "B1")
    found = query.expect("stuck", "B2")
    assert re.search(r"It holds [123] messages? of 1 partitions", found.sentence), found.text()  # some of the three
    go_on.set()
    query.expect("idle", "A1")
    running.stop()
    query.put("6")
    found = query.expect("gone", "B11")
    assert found.figures["lag"]["messages"] == 1
    query.start(query.stream(), slow)
    query.expect("idle", "A1")
    assert query.look().command == f"metaq --cluster rocketmq://{query.name_servers} describe orders"


def test_a_filter_of_rocketmq_that_matches_nothing(rocketmq_query: DiagnosedQuery) -> None:
    """A4, B12"""
    query = rocketmq_query
    query.put("0", attribute="paid")
    query.start(query.stream(tags="Paid"))
    for number in range(4):
        query.expect_among("idle", "A1", tags="Paid")  # the fourth, or with a batch between, the third has A4 first
        query.put(str(number), attribute="paid")
    found = query.expect("idle", "A4", tags="Paid")
    assert "'paid'" in found.sentence
    assert "selects 'Paid'" in found.sentence


@pytest.mark.long
def test_a_route_to_a_frozen_broker(made: DiagnosedQuery, start_broker: StartBroker, tmp_path: Path) -> None:
    """G6, G5: a name server still names a broker that is frozen."""
    with running_name_server(tmp_path / "names") as names:
        brokers = BrokerPair(start_broker, tmp_path, names.address)
        made.name_servers = str(names.address)
        with RocketMQ(made.name_servers) as mq:
            mq.producer().send("orders", b"1")
        ended(made.start(made.stream(), availableNow=True))
        made.expect("idle", "A1")
        os.kill(brokers.process_id("broker-b"), signal.SIGSTOP)
        try:
            found = made.expect_among("unknown", "G6")
        finally:
            os.kill(brokers.process_id("broker-b"), signal.SIGCONT)
        assert "broker-b, which does not answer" in sentence_of(found, "G6"), found.text()
        assert "G5" in [one.rule for one in found.findings if one.verdict is not None], found.text()
        made.expect("idle", "A1")


def test_checkpoints_of_other_connectors(spark: SparkSession, tmp_path: Path) -> None:
    """F0: written by Spark itself."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a line\n")
    files = spark.readStream.text(str(tmp_path / "in"))
    rate = spark.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("CAST(value AS STRING)")
    for name, frame in (("files", files), ("rate", rate), ("both", files.union(rate))):
        folder = tmp_path / name
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
        query = writer.start()
        try:
            wait_until(lambda at=folder: list((at / "commits").glob("[0-9]*")), "a batch is committed", 90)
        finally:
            query.stop()
        found = diagnose(folder, sample_s=0)
        assert (str(found.verdict), found.rule, found.exit_code) == ("not ours", "F0", 15), found.text()
