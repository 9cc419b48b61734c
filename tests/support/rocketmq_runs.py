"""A streaming query's reader on real RocketMQ servers, planned and read as Spark does, without Spark's processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fix_broker import wait_until

from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.options.table import Use
from metaq_spark.source.stream_reader import StreamReader
from peers.rocketmq.servers import Cluster

DEADLINE_S = 90.0


def options_for(cluster: Cluster, topic: str, **more: str) -> dict[str, str]:
    """The options of a read of everything, unless ``more`` says otherwise."""
    return {"nameServers": cluster.name_servers, "subscribe": topic, "startingOffsets": "earliest"} | more


class Run:
    """One run of a query: from ``position``, or from where its options say."""

    def __init__(self, cluster: Cluster, topic: str, position: dict[str, Any] | None = None, **more: str) -> None:
        given = options_for(cluster, topic, retries="8", connectTimeoutMs="2000", requestTimeoutMs="5000", **more)
        self.reader = StreamReader(RocketMQSource(parse_source_options(given, Use.STREAM_READ)))
        self.topic = topic
        self.position = self.reader.initialOffset() if position is None else json.loads(json.dumps(position))
        self.values: list[bytes] = []

    def micro_batch(self) -> bool:
        """Plan and read one micro-batch; return whether there was something to do."""
        end = self.reader.latestOffset(self.position, self.reader.getDefaultReadLimit())
        if end == self.position:
            return False
        for task in self.reader.partitions(self.position, end):
            for batch in self.reader.read(task):
                self.values += batch["value"].to_pylist()
        self.position = end
        return True

    def drain(self) -> list[bytes]:
        """What there is to read now."""
        before = len(self.values)
        while self.micro_batch():
            pass
        return self.values[before:]

    def wait_for(self, total: int) -> None:
        """Read until there are ``total`` messages, each of them once."""
        wait_until(lambda: self.drain() is not None and len(self.values) >= total, f"{total} messages", DEADLINE_S)
        assert len(self.values) == len(set(self.values)) == total

    def offsets(self) -> dict[str, int]:
        """The position in each queue of the topic."""
        found: dict[str, int] = self.position["topics"].get(self.topic, {})
        return found

    def refreshed_brokers(self) -> Mapping[str, Mapping[int, object]]:
        """Where the brokers are, as name servers say now."""
        directory = self.reader._source.cluster.directory  # type: ignore[attr-defined]
        directory.invalidate()
        directory.queues(self.topic)
        return directory.brokers()
