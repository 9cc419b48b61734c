"""What is killed without warning: a driver with Parquet behind it (nothing missing, nothing twice), and a broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from fix_spark import Topic, spark_environment
from pyspark.sql import SparkSession

from metaq.testing.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("stream_to_parquet.py")
MESSAGES = 1200


class Driver:
    """A driver process of its own, with its JVM, in a session of its own."""

    def __init__(self, topic: Topic, folder: Path) -> None:
        options = (f"brokers={topic.servers}", f"subscribe={topic.name}", "maxBytesPerTrigger=3000")
        command = [sys.executable, str(SCRIPT), "metaq", str(folder), *options]
        with open(folder / "driver.log", "a") as log:
            environment = os.environ | spark_environment()
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def kill(self) -> None:
        """End the Python driver and its JVM at once; Spark's Python workers end when they notice."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def committed(folder: Path) -> int:
    commits = folder / "checkpoint" / "commits"
    return sum(1 for file in commits.iterdir() if file.name.isdigit()) if commits.is_dir() else 0


def planned(folder: Path) -> int:
    offsets = folder / "checkpoint" / "offsets"
    return sum(1 for file in offsets.iterdir() if file.name.isdigit()) if offsets.is_dir() else 0


def test_a_killed_driver_neither_loses_nor_repeats(topic: Topic, tmp_path: Path) -> None:
    for partition in (0, 1):
        topic.put(*[f"{partition}-{n:04}" for n in range(MESSAGES // 2)], partition=partition)
    driver = Driver(topic, tmp_path)
    try:
        wait_until(
            # in the middle of a batch: planned and not committed
            lambda: planned(tmp_path) > committed(tmp_path) >= 3 or driver.process.poll() is not None, "batches", 120
        )  # fmt: skip
        assert driver.process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        driver.kill()
    assert 3 <= committed(tmp_path) < MESSAGES * 26 // 3000
    topic.drain(topic.stream(), tmp_path)
    rows = topic.spark.read.parquet(str(tmp_path / "rows")).collect()
    expected = [f"{partition}-{n:04}" for partition in (0, 1) for n in range(MESSAGES // 2)]
    assert sorted(row.value.decode() for row in rows) == expected
    assert len({(row.partition, row.offset) for row in rows}) == MESSAGES


def test_a_broker_that_is_killed_and_started_again_is_waited_for(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    arguments = ("dev", tmp_path / "data", "--port", str(free_port()), "--rocketmq-port", "0", "--partitions", "2")
    broker = start_broker(*arguments)
    source = Topic(spark, "source", str(broker.address))
    target = source.named("target")
    patience = {"retries": "100", "retryIntervalMs": "50"}
    expected = {partition: [f"{partition}-{n:04}" for n in range(1000)] for partition in (0, 1)}
    for partition, values in expected.items():
        source.put(*values, partition=partition)
    query = (
        source.stream(maxBytesPerTrigger="6000", **patience)
        .select("value", "partition")
        .writeStream.format("metaq")
        .options(brokers=source.servers, topic="target", **patience)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    for batches in (2, 4):
        wait_until(lambda: committed(tmp_path) >= batches or not query.isActive, "batches", 120)  # noqa: B023
        assert query.isActive, query.exception()
        broker.kill()
        broker = start_broker(*arguments)
    query.processAllAvailable()
    query.stop()
    for partition, values in expected.items():
        rows = target.read().where(f"partition = {partition}").orderBy("offset").select("value").collect()
        # What was under way may be there twice; the first copies are all there and in order.
        assert list(dict.fromkeys(row.value.decode() for row in rows)) == values
