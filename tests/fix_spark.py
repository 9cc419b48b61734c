"""Fixtures for tests inside Spark: one session and one broker process for all of them, a topic of its own for each.

The broker has small segments and small transfers, so that every story crosses many of both. Instead of it, a Java MetaQ
broker may be used that somebody else runs: ``METAQ_JAVA_BROKER=host:port`` turns that on; ``METAQ_JAVA_TOPIC`` is one
that it accepts (``test``, as in its own sample configuration), and ``METAQ_JAVA_ZOOKEEPER=host:port/root`` is where it
registers. These tests add messages and look only at what came after their own start; they need the topic to themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fix_broker import launch_in
from py4j_sockets import name_sockets
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from metaq import MetaQ
from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message, Partition, TopicPartition
from metaq_spark.spark_version import ADMISSION_CONTROL

ROOT = Path(__file__).parents[1]

TOPICS = "[topic=*]\n[topic=ten-*]\nnumPartitions=10\n[topic=ten-partitions]\nnumPartitions=10\n"


def spark_environment() -> dict[str, str]:
    """Environment variables of a driver: workers run this interpreter and can import benchmarks; logs are quiet."""
    path = os.pathsep.join(filter(None, (str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", ""))))
    return {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf"), "PYTHONPATH": path}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.update(spark_environment())
    name_sockets()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def segmented_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A broker process that accepts every topic; broker id 3, two partitions each, ten for ``ten-partitions``."""
    keys = {"brokerId": 3, "numPartitions": 2, "maxSegmentSize": 64 << 10, "maxTransferSize": 48 << 10}
    broker = launch_in(tmp_path_factory.mktemp("segmented-broker"), TOPICS, **keys)
    yield broker.address
    broker.stop()
    broker.end()


@dataclass(frozen=True)
class Topic:
    """A topic of one test, seen through ``format("metaq")``."""

    FORMAT: ClassVar = "metaq"
    SERVERS: ClassVar = "brokers"
    """The option that names ``servers``."""

    spark: SparkSession
    name: str
    servers: str

    def named(self, name: str) -> Topic:
        return Topic(self.spark, name, self.servers)

    def options(self, **options: str) -> dict[str, str]:
        """Those that lead to the servers, and more."""
        return {self.SERVERS: self.servers} | options

    def frame(self, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
        """A DataFrame in a single partition, so that its rows have an order."""
        return self.spark.createDataFrame(rows, schema).coalesce(1)

    def write(self, frame: DataFrame, **options: str) -> None:
        given = self.options(topic=self.name) | options
        frame.write.format(self.FORMAT).mode("append").options(**given).save()

    def put(self, *values: str, partition: int = 0) -> None:
        """Store messages, without Spark: it needs half a dozen processes for that."""
        with MetaQ(self.servers) as mq:
            (broker_id,) = mq.cluster.brokers()
            mq.producer().send_many(self.name, values, partition=Partition(broker_id, partition))

    def read(self, **options: str) -> DataFrame:
        given = self.options(subscribe=self.name) | options
        return self.spark.read.format(self.FORMAT).options(**given).load()

    def values(self, **options: str) -> list[str]:
        """Every payload as text, sorted."""
        return sorted(row.value.decode() for row in self.read(**options).select("value").collect())

    def stored(self) -> list[str]:
        """Every payload as text, sorted, read without Spark."""
        with MetaQ(self.servers) as mq:
            return sorted(message.data.decode() for message in mq.browse(self.name))

    def stream(self, **options: str) -> DataFrame:
        """A streaming read of the topic, from its start unless an option says otherwise."""
        given = self.options(subscribe=self.name, startingOffsets="earliest") | options
        reader: DataStreamReader = self.spark.readStream.format(self.FORMAT)
        return reader.options(**given).load()

    def drain(self, frame: DataFrame, folder: Path, **options: str) -> StreamingQuery:
        """Run ``frame`` to the end of what is there, into Parquet below ``folder``; returns the finished query."""
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(folder / "rows"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .options(**options)
        )
        query = run_to_end(writer)
        query.awaitTermination(120)
        return query

    def append_all(self, frame: DataFrame, folder: Path, mode: str = "append", **options: str) -> StreamingQuery:
        """Start a query that appends to the topic what there is of ``frame``, with its checkpoint below ``folder``."""
        given = self.options(topic=self.name) | options
        writer = frame.writeStream.format(self.FORMAT).outputMode(mode).options(**given)
        return run_to_end(writer.option("checkpointLocation", str(folder / "checkpoint")))


def run_to_end(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that ends where there is nothing more to read, after as many batches as its limits make.

    Before Spark 4.2, ``availableNow`` makes one batch; so there the query has ended when this returns.
    """
    if ADMISSION_CONTROL.present:
        return writer.trigger(availableNow=True).start()
    query = writer.start()
    with contextlib.suppress(StreamingQueryException):  # the caller sees it in the query
        query.processAllAvailable()
        query.stop()
    return query


def for_each_batch(frame: DataFrame, write: Callable[[DataFrame, int], None], folder: Path) -> None:
    """Give ``write`` every batch of what there is of ``frame``, with the checkpoint below ``folder``."""
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query = run_to_end(writer)
    if (failure := query.exception()) is not None:
        raise failure
    assert query.awaitTermination(120)


@pytest.fixture
def topic(spark: SparkSession, segmented_broker: Address, request: pytest.FixtureRequest) -> Topic:
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:80]
    return Topic(spark, name, str(segmented_broker))


@dataclass(frozen=True)
class JavaTopic(Topic):
    """A topic of a Java broker, as it is from a test's start on."""

    start: str
    broker_id: int
    indexes: tuple[int, ...]

    def read(self, **options: str) -> DataFrame:
        return super().read(**{"startingOffsets": self.start} | options)

    def stream(self, **options: str) -> DataFrame:
        return super().stream(**{"startingOffsets": self.start} | options)


def named(variable: str) -> str:
    """The value of an environment variable; the test is skipped if it has none."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set (docs/testing.md, Java MetaQ)")
    return value


@pytest.fixture
def java_broker() -> Address:
    return Address.parse(named("METAQ_JAVA_BROKER"))


@pytest.fixture
def java_zookeeper(java_broker: Address) -> str:
    """Where the Java broker registers, as the option ``zookeeper`` takes it; skipped if that is not named."""
    return named("METAQ_JAVA_ZOOKEEPER")


@pytest.fixture
def java_directory(java_broker: Address) -> Iterator[tuple[FixedDirectory, SessionPool]]:
    """The project's client, on the Java broker alone."""
    pool = SessionPool()
    yield FixedDirectory([java_broker], pool), pool
    pool.close()


@pytest.fixture
def java_place(java_directory: tuple[FixedDirectory, SessionPool]) -> TopicPartition:
    directory, _ = java_directory
    topic = os.environ.get("METAQ_JAVA_TOPIC", "test")
    return TopicPartition(topic, min(directory.writable(topic)))


@pytest.fixture
def java_topic(
    java_broker: Address,
    java_place: TopicPartition,
    java_directory: tuple[FixedDirectory, SessionPool],
    spark: SparkSession,
) -> JavaTopic:
    """The topic through ``format("metaq")``, with a message in every partition before the test's start."""
    directory, pool = java_directory
    name = java_place.topic
    producer, places = Producer(directory, pool), sorted(directory.writable(name))
    for place in places:
        producer.put(name, Message(b"before the test"), place)
    ends = directory.ends([name])
    start = {str(place): ends[TopicPartition(name, place)].end for place in places}
    indexes = tuple(place.index for place in places)
    return JavaTopic(spark, name, str(java_broker), json.dumps({name: start}), places[0].broker_id, indexes)
