"""Real RocketMQ servers as Spark sees them: rows beside what the Java client decodes, runs without its processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fix_broker import wait_until
from fix_spark import Topic
from metaq_harness import MicroBatches, offsets
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.options.table import Use
from metaq_spark.source.stream_reader import StreamReader
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

FULL: Final = os.environ.get("METAQ_ROCKETMQ_FULL") == "1"
"""Whether tests take the sizes that take minutes."""

SMALL_MESSAGES: Final = 1_000_000 if FULL else 20_000
LARGE_MESSAGES: Final = 100_000 if FULL else 4_000

COLUMNS: Final = (
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "message_id",
    "offset_message_id",
    "keys",
    "tags",
    "properties",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "reconsume_times",
    "flag",
    "value",
)

DUMPED: Final = (
    "topic string, broker_name string, queue_id int, queue_offset long, message_id string, offset_message_id string, "
    "keys string, tags string, properties map<string,string>, born_timestamp long, store_timestamp long, "
    "born_host string, reconsume_times int, flag int, value string"
)
ADDED_BY_THE_CLIENT: Final = "MIN_OFFSET", "MAX_OFFSET"
"""Properties that no message has: the Java client adds them to what it pulls."""


@dataclass(frozen=True)
class RocketMQTopic(Topic):
    """A topic as Spark sees it. ``with_all`` are options of every read and write."""

    FORMAT = "rocketmq"
    SERVERS = "nameServers"

    with_all: tuple[tuple[str, str], ...] = ()

    def options(self, **options: str) -> dict[str, str]:
        return super().options(**dict(self.with_all)) | options

    def copied(self, folder: Path, available_now: bool = True, **options: str) -> StreamingQuery:
        """Start copying the topic to Parquet in ``folder``, or go on from there; the rows are in ``copy(folder)``."""
        writer = self.stream(**options).writeStream.format("parquet").option("path", str(folder / "rows"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def copy(self, folder: Path) -> DataFrame:
        return self.spark.read.parquet(str(folder / "rows"))


def dumped_rows(spark: SparkSession, programs: Programs, topic: str, file: Path) -> DataFrame:
    """The messages of a topic as the Java client decodes them, with the columns and types of a read."""
    programs.dump(topic, file)
    rows = spark.read.schema(DUMPED).json(str(file))
    return rows.withColumns(
        {
            "properties": f.map_filter("properties", lambda key, _: ~key.isin(*ADDED_BY_THE_CLIENT)),
            "born_timestamp": f.timestamp_millis("born_timestamp"),
            "store_timestamp": f.timestamp_millis("store_timestamp"),
            "value": f.unbase64("value"),
        }
    ).select(*COLUMNS)


def differences(ours: DataFrame, theirs: DataFrame, columns: Sequence[str] = COLUMNS) -> list[str]:
    """The first rows that only one side has, and counts that differ; none if both have the same rows."""
    sides = [_comparable(rows.select(*columns)).persist() for rows in (ours, theirs)]
    counts = [rows.count() for rows in sides]
    found = [f"{counts[0]} and {counts[1]} rows"] if counts[0] != counts[1] else []
    for name, rows, others in (("ours", *sides), ("theirs", *reversed(sides))):
        found += [f"only {name}: {row}" for row in rows.exceptAll(others).limit(3).collect()]
    for rows in sides:
        rows.unpersist()
    return found


def _comparable(rows: DataFrame) -> DataFrame:
    """Maps cannot be compared: their entries, in order, can."""
    if "properties" not in rows.columns:
        return rows
    return rows.withColumn("properties", f.array_sort(f.map_entries("properties")))


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
        start = self.position
        self.position, values = MicroBatches().micro_batch(self.reader, start)
        self.values += values
        return self.position != start

    def drain(self) -> list[bytes]:
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
        return offsets(self.position, self.topic)

    def refreshed_brokers(self) -> Mapping[str, Mapping[int, object]]:
        """Where the brokers are, as name servers say now."""
        directory = self.reader._source.cluster.directory  # type: ignore[attr-defined]
        directory.invalidate()
        directory.queues(self.topic)
        return directory.brokers()
