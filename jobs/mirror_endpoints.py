"""The two endpoints of a mirror, MetaQ's brokers or RocketMQ's, with one interface, and the conversion of rows.

A tag of RocketMQ is an attribute of MetaQ, and vice versa. From RocketMQ to RocketMQ, keys and properties are copied,
too.

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
        """Spark's name of the format."""

    @property
    def options(self) -> Mapping[str, str]:
        ...

    def addresses(self) -> set[Address]:
        """Return servers that show whether two endpoints are the same cluster."""

    def topics(self) -> Collection[str]:
        """Return all topics. Raises ``MetaqError`` if they cannot be listed."""

    def sources(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that may have messages."""

    def targets(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that accept messages.

        Raises:
            TopicNotFound: There are none.
        """

    def unseen_partitions(self, topics: Iterable[str]) -> Iterable[TopicPartition]:
        """Return partitions that have messages, or may have, at the servers that answer."""

    def numbers(self, assigned: Mapping[str, PartitionTargets], prefix: str) -> dict[str, dict[str, int]]:
        """Return, by topic and source partition, the number of its target in a write."""

    def write_options(self, assigned: Mapping[str, PartitionTargets], name: str, batch_id: int) -> dict[str, Any]:
        """Return the options for writing a micro-batch, beyond ``options``."""

    def close(self) -> None:
        """Close the connections that belong to the endpoint."""


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
        """Do nothing: its connections belong to the whole process."""


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
        """Return the current position of each queue among the queues that accept messages."""
        found: dict[str, dict[str, int]] = {}
        for topic, of_topic in assigned.items():
            queues = {queue: number for number, queue in enumerate(self.targets(prefix + topic))}
            found[topic] = {str(source): queues[target] for source, target in of_topic.items() if target in queues}
        return found

    def write_options(self, assigned: Mapping[str, PartitionTargets], name: str, batch_id: int) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._pool.close()


def endpoint(brokers: str | None, name_servers: str | None) -> Endpoint:
    return RocketMQEndpoint(name_servers) if name_servers is not None else MetaQEndpoint(brokers or "")


def copies_between(
    messages: DataFrame, numbers: Mapping[str, Mapping[str, int]], target: str, prefix: str
) -> DataFrame:
    """Convert the rows of a read, of either format, to the rows of a write of format ``target``.

    ``numbers`` are ``Endpoint.numbers`` of the target. A message without a number fails the write.
    """
    of_rocketmq = "queue_id" in messages.columns
    name = F.concat_ws(":", "broker_name", "queue_id") if of_rocketmq else F.concat_ws("-", "broker_id", "partition")
    mark = F.col("tags" if of_rocketmq else "attribute")
    number = F.from_json(F.lit(json.dumps(numbers)), "map<string, map<string, int>>")[F.col("topic")][name]
    unknown = F.concat(F.col("topic"), F.lit("/"), name, F.lit(": no partition of the target was assigned to it"))
    # In a column of its own: beside a new ``topic``, Spark 4.0 would look that one up.
    messages = messages.withColumn("placed", F.coalesce(number, F.raise_error(unknown).cast("int")))
    placed: Column = F.col("placed")
    columns = [F.concat(F.lit(prefix), F.col("topic")).alias("topic"), F.col("value")]
    if target == "metaq":
        return messages.select(*columns, placed.alias("partition"), mark.alias("attribute"))
    more = [F.col("keys"), F.col("properties")] if of_rocketmq else []
    return messages.select(*columns, placed.alias("queue"), mark.alias("tags"), *more)
