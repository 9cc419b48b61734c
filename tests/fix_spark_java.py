"""Fixtures for tests against a Java MetaQ broker that somebody else runs, named by environment variables.

``METAQ_JAVA_BROKER=host:port`` turns them on; ``METAQ_JAVA_TOPIC`` is a topic that it accepts (``test``, as in its own
sample configuration), and ``METAQ_JAVA_ZOOKEEPER=host:port/root`` is where it registers. The tests add messages and
look only at what came after their own start; they need the topic to themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fix_spark import Topic
from pyspark.sql import DataFrame, SparkSession

from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message, TopicPartition


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
        pytest.skip(f"{variable} is not set (make test-java; docs/testing.md, Java MetaQ)")
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
