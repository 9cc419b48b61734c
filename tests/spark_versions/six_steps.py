"""What a user does with the connector, as one program: write, read, filter, stream, limited stream, exactly once.

Usage: six_steps.py FORMAT SERVERS FOLDER. Prints a line for each step that was right; fails at the first one that was
not. Runs with every version of Spark. Topics are ``steps`` and ``copies``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

FORMATS = {"metaq": ("brokers", "attribute", "messageTypes"), "rocketmq": ("nameServers", "tags", "tags")}
"""The option with the servers, the column with a message's type, the option that selects types."""

MORE_COLUMNS = {"metaq": [], "rocketmq": ["map('number', string(value)) properties", "array('k', 'l') keys"]}
"""Columns of a write that not every format has."""

ROWS = 40
LIMIT = 7
DEADLINE_S = 120.0


class Steps:
    """The steps, on topics of ``servers``; queries keep their files below ``folder``."""

    def __init__(self, name: str, servers: str, folder: Path) -> None:
        option, self.type_column, self.types_option = FORMATS[name]
        self.name, self.servers, self.folder = name, {option: servers}, folder
        self.spark: SparkSession = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )

    def put(self, first: int) -> None:
        rows = self.spark.range(first, first + ROWS).selectExpr(
            "cast(id as string) value",
            f"if(id % 2 = 0, 'even', 'odd') {self.type_column}",
            "cast(string(id) as binary) key",
        )
        rows.write.format(self.name).mode("append").options(topic="steps", **self.servers).save()

    def read(self, topic: str, **options: str) -> DataFrame:
        return self.spark.read.format(self.name).options(subscribe=topic, **self.servers, **options).load()

    def numbers(self, frame: DataFrame) -> list[int]:
        """Every payload, in ascending order."""
        return sorted(int(bytes(row.value)) for row in frame.select("value").collect())

    def stream(self, **options: str) -> DataFrame:
        given = {"subscribe": "steps", "startingOffsets": "earliest"} | self.servers | options
        return self.spark.readStream.format(self.name).options(**given).load()

    def available(self, writer: Any, folder: str) -> None:
        """Run a query over what there is."""
        query = writer.option("checkpointLocation", str(self.folder / folder)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(DEADLINE_S)), "the query does not end"

    def write(self) -> None:
        self.put(0)

    def read_back(self) -> None:
        equal(self.numbers(self.read("steps")), list(range(ROWS)))

    def filter(self) -> None:
        chosen = self.read("steps", **{self.types_option: "odd"})
        equal(self.numbers(chosen), list(range(1, ROWS, 2)))
        pushed = self.read("steps", pushFilters="true").where(f"{self.type_column} = 'even'")
        equal(self.numbers(pushed), list(range(0, ROWS, 2)))

    def follow(self) -> None:
        """A stream into files, in two runs."""
        for run in (1, 2):
            writer = self.stream().writeStream.format("parquet").option("path", str(self.folder / "rows"))
            self.available(writer, "followed")
            equal(self.numbers(self.spark.read.parquet(str(self.folder / "rows"))), list(range(run * ROWS)))
            self.put(run * ROWS)

    def limit(self) -> None:
        """A stream with a limit, which is stopped in the middle and started again."""
        batches: dict[int, list[int]] = {}

        def keep(frame: DataFrame, number: int) -> None:
            batches[number] = self.numbers(frame)

        total = 3 * ROWS
        for least in (2 * LIMIT, total):
            writer = self.stream(maxOffsetsPerTrigger=str(LIMIT)).writeStream.foreachBatch(keep)
            query = writer.option("checkpointLocation", str(self.folder / "limited")).start()
            wait_for(query, lambda least=least: sum(map(len, batches.values())) >= least)
            query.stop()
        sizes = [len(batch) for batch in batches.values()]
        assert max(sizes) <= LIMIT, f"micro-batches have {sizes} rows, more than {LIMIT}"
        equal(sorted(number for batch in batches.values() for number in batch), list(range(total)))

    def copy_once(self) -> None:
        """From topic to topic, exactly once, in two runs."""
        for run in (1, 2):
            columns = ["value", self.type_column, "cast(value as binary) key", *MORE_COLUMNS[self.name]]
            rows = self.stream().selectExpr(*columns)
            writer = rows.writeStream.format(self.name).options(topic="copies", **self.servers)
            self.available(writer.option("delivery", "exactly_once"), "copied")
            equal(self.numbers(self.read("copies")), list(range((run + 2) * ROWS)))
            if run == 1:
                self.put(3 * ROWS)
        for row in self.read("copies").collect() if self.name == "rocketmq" else ():
            assert (row.properties["number"], row["keys"]) == (bytes(row.value).decode(), "k l"), row


def wait_for(query: StreamingQuery, reached: Any) -> None:
    end = time.monotonic() + DEADLINE_S
    while not reached():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < end, f"nothing more happens: {query.lastProgress}"
        time.sleep(0.05)


def equal(found: list[int], wanted: list[int]) -> None:
    assert found == wanted, f"found {len(found)} messages, not {len(wanted)}: {found}"


def steps_of(steps: Steps) -> Iterator[tuple[str, Any]]:
    yield "write", steps.write
    yield "read", steps.read_back
    yield "filter", steps.filter
    yield "stream", steps.follow
    yield "limited stream", steps.limit
    yield "exactly once", steps.copy_once


def main(name: str, servers: str, folder: str) -> None:
    steps = Steps(name, servers, Path(folder))
    for title, step in steps_of(steps):
        step()
        print(f"Spark {pyspark.__version__}, {name}: {title}", flush=True)
    steps.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
