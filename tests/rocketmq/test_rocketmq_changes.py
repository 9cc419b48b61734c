"""Queries while the cluster behind them changes or they are killed: nothing is missing, nothing is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fix_broker import wait_until
from fix_spark import spark_environment
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rocketmq_spark import RocketMQTopic

from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

DRIVER = Path(__file__).parents[1] / "spark" / "stream_to_parquet.py"
SEEN_WITHIN_S = 120.0
PATIENCE = {"retries": "60", "retryIntervalMs": "500"}
DELETE_EXPIRED = 329
GET_MIN_OFFSET = 31


def numbers(topic: RocketMQTopic, folder: Path) -> list[int]:
    """The numbers of the messages that were copied, in order; twice if a message is there twice."""
    rows = topic.copy(folder).selectExpr("int(substring(cast(value as string), 1, 8)) n").collect()
    return sorted(row.n for row in rows)


def count_in(folder: Path, name: str) -> int:
    """How many batches the checkpoint's ``offsets`` or ``commits`` have."""
    log = folder / "checkpoint" / name
    return sum(1 for file in log.iterdir() if file.name.isdigit()) if log.is_dir() else 0


def copied(topic: RocketMQTopic, folder: Path) -> int:
    """How many messages the committed batches have."""
    return topic.copy(folder).count() if count_in(folder, "commits") else 0


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end."""
    try:
        yield query
    finally:
        query.stop()


def wait_for(query: StreamingQuery, topic: RocketMQTopic, folder: Path, count: int) -> None:
    """Until so many messages were copied; fail with what the query failed with."""
    wait_until(
        lambda: copied(topic, folder) >= count or not query.isActive, f"{count} messages", deadline_s=SEEN_WITHIN_S
    )
    assert query.isActive, str(query.exception())


@pytest.fixture
def topic(rocketmq: Cluster, rocketmq_topic: Callable[..., str], spark: SparkSession) -> RocketMQTopic:
    """One of four queues."""
    return RocketMQTopic(spark, rocketmq_topic(queues=4), rocketmq.name_servers)


def test_a_killed_driver_neither_loses_nor_repeats(
    topic: RocketMQTopic, rocketmq_programs: Programs, tmp_path: Path
) -> None:
    rocketmq_programs.write(topic.name, 4000, size=50, batch=100)
    options = (f"nameServers={topic.servers}", f"subscribe={topic.name}", "maxOffsetsPerTrigger=100")
    command = [sys.executable, str(DRIVER), "rocketmq", str(tmp_path), *options]
    moments: list[Callable[[int], bool]] = [
        lambda before: count_in(tmp_path, "commits") >= before + 2,
        # in the middle of a batch: planned and not committed
        lambda before: count_in(tmp_path, "offsets") > count_in(tmp_path, "commits") > before,
    ]
    for moment in moments:
        before = count_in(tmp_path, "commits")
        with open(tmp_path / "driver.log", "a") as log:
            environment = os.environ | spark_environment()
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            wait_until(lambda: moment(before) or driver.poll() is not None, "batches", SEEN_WITHIN_S)  # noqa: B023
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(60)
    assert 3 <= count_in(tmp_path, "commits") < 40, "the driver was killed in the middle"
    topic.copied(tmp_path).awaitTermination()
    assert numbers(topic, tmp_path) == list(range(4000))


def test_a_query_that_is_restarted_goes_on_where_its_checkpoint_is(
    topic: RocketMQTopic, rocketmq_programs: Programs, tmp_path: Path
) -> None:
    for first in (0, 200, 400):
        rocketmq_programs.write(topic.name, 200, first=first, batch=10)
        topic.copied(tmp_path, startingOffsets="latest" if first else "earliest").awaitTermination()
        assert numbers(topic, tmp_path) == list(range(first + 200))


def test_a_queue_that_is_added_is_read_from_its_first_message(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("orders", queues=2)
    programs = Programs(rocketmq_cluster.release, rocketmq_cluster.name_servers)
    topic = RocketMQTopic(spark, "orders", rocketmq_cluster.name_servers)
    programs.write("orders", 100, batch=10)
    options = {"startingOffsets": "latest"}
    with running(topic.copied(tmp_path, available_now=False, **options)) as query:
        wait_until(lambda: count_in(tmp_path, "commits") > 0 or not query.isActive, "the first plan", SEEN_WITHIN_S)
        programs.write("orders", 100, first=100, batch=10)
        wait_for(query, topic, tmp_path, 100)
        rocketmq_cluster.create_topic("orders", queues=4)
        programs.write("orders", 400, first=200, batch=10)
        wait_for(query, topic, tmp_path, 500)
    assert numbers(topic, tmp_path) == list(range(100, 600))
    assert {row.queue_id for row in topic.copy(tmp_path).select("queue_id").distinct().collect()} == {0, 1, 2, 3}


def test_a_slave_is_read_when_its_master_was_killed(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    master = cluster.start_broker()
    slave = cluster.start_broker(broker_id=1, slaveReadEnable="true")
    cluster.create_topic("orders", queues=2)
    programs = Programs(cluster.release, cluster.name_servers)
    topic = RocketMQTopic(spark, "orders", cluster.name_servers)
    programs.write("orders", 1000, batch=100)
    # A slave copies the log at once, and the table of topics, without which it gives nothing, from time to time.
    wait_until(
        lambda: all(cluster.gives(slave, "orders", queue, 499) for queue in (0, 1)), "the slave's copy", SEEN_WITHIN_S
    )
    with running(topic.copied(tmp_path, available_now=False, maxOffsetsPerTrigger="300", **PATIENCE)) as query:
        wait_until(lambda: count_in(tmp_path, "commits") > 0 or not query.isActive, "a batch", SEEN_WITHIN_S)
        master.kill()
        wait_for(query, topic, tmp_path, 1000)
        master.start()
        programs.write("orders", 200, first=1000, batch=100)
        wait_for(query, topic, tmp_path, 1200)
    assert numbers(topic, tmp_path) == list(range(1200))


def test_a_query_survives_a_name_server_that_dies(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = rocketmq_cluster
    first, second = cluster.start_name_server(), cluster.start_name_server()
    cluster.start_broker()
    cluster.create_topic("orders", queues=2)
    programs = Programs(cluster.release, cluster.name_servers)
    topic = RocketMQTopic(spark, "orders", cluster.name_servers)
    programs.write("orders", 100, batch=10)
    with running(topic.copied(tmp_path, available_now=False, **PATIENCE)) as query:
        wait_for(query, topic, tmp_path, 100)
        for number, (server, other) in enumerate(((first, second), (second, first))):
            server.kill()
            # 5.5.0's Java client does not look at the next name server when it starts.
            Programs(cluster.release, other.address).write("orders", 100, first=100 + 100 * number, batch=10)
            wait_for(query, topic, tmp_path, 200 + 100 * number)
            server.start()
            wait_until(lambda: cluster.knows(server), "the broker registers again", SEEN_WITHIN_S)  # noqa: B023
    assert numbers(topic, tmp_path) == list(range(300))


def test_what_retention_took_is_an_error_or_a_warning_as_the_options_say(
    rocketmq_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    settings = {"mappedFileSizeCommitLog": 1 << 20, "cleanResourceInterval": 1000, "fileReservedTime": 0}
    broker = cluster.start_broker(**settings)
    cluster.create_topic("orders", queues=1)
    programs = Programs(cluster.release, cluster.name_servers)
    topic = RocketMQTopic(spark, "orders", cluster.name_servers)
    programs.write("orders", 100, size=100, batch=10)
    topic.copied(tmp_path).awaitTermination()
    programs.write("orders", 4000, first=100, size=1000, batch=100)
    queue = {"topic": "orders", "queueId": 0}
    cluster.ask(broker, DELETE_EXPIRED).checked()
    wait_until(
        lambda: int(cluster.ask(broker, GET_MIN_OFFSET, queue).fields["offset"]) > 100, "retention", SEEN_WITHIN_S
    )
    start = int(cluster.ask(broker, GET_MIN_OFFSET, queue).fields["offset"])
    query = topic.copied(tmp_path)
    with pytest.raises(Exception, match="failOnDataLoss"):
        query.awaitTermination()
    topic.copied(tmp_path, failOnDataLoss="false").awaitTermination()
    assert numbers(topic, tmp_path) == [*range(100), *range(start, 4100)]
