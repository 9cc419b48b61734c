"""The two endpoints of a mirror: MetaQ's brokers or RocketMQ's, asked in the same way, and rows in the form of either.

A tag of RocketMQ is an attribute of MetaQ, and the other way round. From RocketMQ to RocketMQ, keys and properties go
along.

Used on the driver only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

from partition_targets import PartitionTargets, all_targets, exactly_once, partition_numbers, partitions_of
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import TopicNotFound
from metaq.model import Address, Partition, TopicPartition


class Endpoint(Protocol):
    """The source or the target of a mirror."""

    @property
    def format(self) -> str:
        """What Spark calls the system."""

    @property
    def options(self) -> Mapping[str, str]:
        """The options that name its servers."""

    def addresses(self) -> set[Address]:
        """Servers that show whether two endpoints are the same."""

    def topics(self) -> Collection[str]:
        """All topics. Raises ``MetaqError`` if they cannot be listed."""

    def sources(self, topic: str) -> list[Partition]:
        """The partitions of a topic that may hold messages."""

    def targets(self, topic: str) -> list[Partition]:
        """The partitions of a topic that take messages.

        Raises:
            TopicNotFound: There are none.
        """

    def unseen_partitions(self, topics: Iterable[str]) -> Iterable[TopicPartition]:
        """Partitions that have messages, or may have, of those servers that answer."""

    def numbers(self, assigned: Mapping[str, PartitionTargets], prefix: str) -> dict[str, dict[str, int]]:
        """By topic and partition of the source: the number that a write gives to its target."""

    def write_options(self, assigned: Mapping[str, PartitionTargets], name: str, batch_id: int) -> dict[str, Any]:
        """The options of a write of a micro-batch, beyond those that name the servers."""

    def close(self) -> None:
        """Close the connections that are the endpoint's own."""


class MetaQEndpoint:
    """Brokers of MetaQ; writes are exactly once."""

    format: Final = "metaq"

    def __init__(self, brokers: str) -> None:
        self.options = {"brokers": brokers}
        self._directory = FixedDirectory([Address.parse(broker) for broker in brokers.split(",")], shared_pool())

    def addresses(self) -> set[Address]:
        return set(self._directory.brokers().values())

    def topics(self) -> Collection[str]:
        return self._directory.topics()

    def sources(self, topic: str) -> list[Partition]:
        return partitions_of(self._directory, topic)

    def targets(self, topic: str) -> list[Partition]:
        return list(self._directory.writable(topic))

    def unseen_partitions(self, topics: Iterable[str]) -> Iterable[TopicPartition]:
        return self._directory.available_now()[0]

    def numbers(self, assigned: Mapping[str, PartitionTargets], prefix: str) -> dict[str, dict[str, int]]:
        number = partition_numbers(all_targets(assigned))
        return {topic: {str(s): number[t] for s, t in of_topic.items()} for topic, of_topic in assigned.items()}

    def write_options(self, assigned: Mapping[str, PartitionTargets], name: str, batch_id: int) -> dict[str, Any]:
        return exactly_once(assigned, name, batch_id)

    def close(self) -> None:
        """See ``Endpoint``: its connections are those of the whole process."""


class RocketMQEndpoint:
    """Brokers that RocketMQ's name servers know; writes are at least once."""

    format: Final = "rocketmq"

    def __init__(self, name_servers: str) -> None:
        self.options = {"nameServers": name_servers}
        self._pool = RocketMQPool()
        self._directory = NameServerDirectory(parse_name_servers(name_servers), self._pool)

    def addresses(self) -> set[Address]:
        return set(self._directory.servers)

    def topics(self) -> Collection[str]:
        return self._directory.topics()

    def sources(self, topic: str) -> list[Partition]:
        return self._directory.queues(topic)

    def targets(self, topic: str) -> list[Partition]:
        queues = self._directory.writable(topic)
        if not queues:
            raise TopicNotFound(topic, list(map(str, self._directory.servers)), [])
        return queues

    def unseen_partitions(self, topics: Iterable[str]) -> Iterable[TopicPartition]:
        return [TopicPartition(topic, queue) for topic in topics for queue in self._directory.queues(topic)]

    def numbers(self, assigned: Mapping[str, PartitionTargets], prefix: str) -> dict[str, dict[str, int]]:
        """See ``Endpoint``: where each queue stands now in the list of those that take messages."""
        found: dict[str, dict[str, int]] = {}
        for topic, of_topic in assigned.items():
            queues = {queue: number for number, queue in enumerate(self.targets(prefix + topic))}
            found[topic] = {str(source): queues[target] for source, target in of_topic.items() if target in queues}
        return found

    def write_options(self, assigned: Mapping[str, PartitionTargets], name: str, batch_id: int) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """See ``Endpoint``."""
        self._pool.close()


def endpoint(brokers: str | None, name_servers: str | None) -> Endpoint:
    """The endpoint that the arguments name."""
    return RocketMQEndpoint(name_servers) if name_servers is not None else MetaQEndpoint(brokers or "")


def copies_between(
    messages: DataFrame, numbers: Mapping[str, Mapping[str, int]], target: str, prefix: str
) -> DataFrame:
    """From a read's rows, of either format, to the rows of a write of format ``target``.

    ``numbers``: what ``Endpoint.numbers`` of the target says. A message without one fails the write.
    """
    of_rocketmq = "queue_id" in messages.columns
    name = F.concat_ws(":", "broker_name", "queue_id") if of_rocketmq else F.concat_ws("-", "broker_id", "partition")
    mark = F.col("tags" if of_rocketmq else "attribute")
    number = F.from_json(F.lit(json.dumps(numbers)), "map<string, map<string, int>>")[F.col("topic")][name]
    unknown = F.concat(F.col("topic"), F.lit("/"), name, F.lit(": no place at the target was settled for it"))
    placed: Column = F.coalesce(number, F.raise_error(unknown).cast("int"))
    columns = [F.concat(F.lit(prefix), F.col("topic")).alias("topic"), F.col("value")]
    if target == "metaq":
        return messages.select(*columns, placed.alias("partition"), mark.alias("attribute"))
    more = [F.col("keys"), F.col("properties")] if of_rocketmq else []
    return messages.select(*columns, placed.alias("queue"), mark.alias("tags"), *more)
