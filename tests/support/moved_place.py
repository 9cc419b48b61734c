"""Where jobs and mistakes of docs/coming-from-kafka.md run: a Spark session, a broker with orders, a folder.

The topic ``orders`` has ``ORDERS`` in two partitions, each put with a key and headers, as a job on Kafka would do it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

TOPIC = "orders"
DEADLINE_S = 120

ORDERS = [
    ("alice", "tea", 2),
    ("bob", "scone", 1),
    ("alice", "scone", 3),
    ("carol", "tea", 1),
    ("bob", "tea", 5),
    ("alice", "jam", 1),
]
"""Who ordered what and how many."""

HEADERS = {"what": "what", "shop": "'north'"}
"""Headers of each order, and the expressions of their values."""


@dataclass
class Place:
    """One place for one job or mistake. ``stage`` is the call of the user's that is under way.

    ``shown``: addresses, and what the documentation has instead.
    """

    spark: SparkSession
    servers: str
    folder: Path
    stage: str = ""
    queries: list[StreamingQuery] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)

    def fill(self) -> None:
        """Put the orders."""
        rows = self.spark.createDataFrame(ORDERS, "who string, what string, number int")
        what, shop = (f"named_struct('key', '{key}', 'value', binary({of}))" for key, of in HEADERS.items())
        orders = rows.selectExpr(
            "to_json(struct(who, what, number)) AS value", "who AS key", f"array({what}, {shop}) AS headers"
        )
        self.write(orders, topic=TOPIC)

    def read(self, **options: str) -> DataFrame:
        """A batch read: ``load()``."""
        return self._loaded(self.spark.read, options)

    def stream(self, **options: str) -> DataFrame:
        """A streaming read: ``load()``."""
        return self._loaded(self.spark.readStream, options)

    def _loaded(self, reader: Any, options: dict[str, str]) -> DataFrame:
        self.stage = "`load()`"
        given = options if "brokers" in options else {"brokers": self.servers} | options
        frame: DataFrame = reader.format("metaq").options(**{k: v for k, v in given.items() if v}).load()
        return frame

    def collect(self, frame: DataFrame) -> list[Any]:
        """The first action."""
        self.stage = "the first action"
        return frame.collect()

    def write(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        """A batch write: ``save()``."""
        self.stage = "`save()`"
        frame.write.format("metaq").mode(mode).option("brokers", self.servers).options(**options).save()

    def run(self, writer: DataStreamWriter, folder: str = "checkpoint", trigger: Any = None) -> StreamingQuery:
        """Run a query over what is there: ``start()``, then ``awaitTermination()``."""
        query = self.start(writer.trigger(**(trigger or {"availableNow": True})), folder)
        self.stage = "the query"
        assert query.awaitTermination(DEADLINE_S), "the query does not end"
        return query

    def start(self, writer: DataStreamWriter, folder: str = "checkpoint") -> StreamingQuery:
        self.stage = "`start()`"
        query = writer.option("checkpointLocation", str(self.folder / folder)).start()
        self.queries.append(query)
        return query

    def to_topic(self, frame: DataFrame, topic: str, **options: str) -> DataStreamWriter:
        return frame.writeStream.format("metaq").option("brokers", self.servers).options(topic=topic, **options)

    def to_files(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.format("parquet").option("path", str(self.folder / "rows"))

    def stop(self) -> None:
        """Stop the queries that still run."""
        for query in self.queries:
            query.stop()

    def plain(self, text: str) -> str:
        """``text`` with the documentation's address, and without what differs in each run."""
        for address, shown in ({self.servers: "127.0.0.1:8123"} | self.shown).items():
            text = text.replace(address, shown)
        text = re.sub(rf"(?:file:)?{re.escape(str(self.folder))}", "...", text)
        text = re.sub(r"\bof task \d+", "of task 0", text)  # whichever got there first
        return re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b", "...", text)


@dataclass(frozen=True)
class Job:
    """What people do with Kafka's connector. ``here`` are the options that it takes with this one.

    ``run`` does it, checks what came out, and returns the numbers of ``outcome``.
    """

    title: str
    here: dict[str, str]
    outcome: str
    run: Callable[[Place, dict[str, str]], dict[str, int]]


@dataclass(frozen=True)
class Mistake:
    """What people write by habit, or by a slip; ``make`` writes it and has to fail."""

    title: str
    make: Callable[[Place], object]
