"""Queries that name their sources: stopped, moved, renamed by the command, and started again with other sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_spark import Topic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQueryListener

from metaq.cli.checkpoint import read_query
from metaq_spark.checkpoint.folder import read_checkpoint
from metaq_spark.cli import main
from metaq_spark.lag.progress import read_query_progress

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="this Spark cannot name sources"),
]

SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",  # Spark 4.2 does not choose it by itself
}


@pytest.fixture(autouse=True)
def evolution(spark: SparkSession) -> Iterator[None]:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.fixture
def command(topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def checkpoint(verb: str, *arguments: str) -> Any:
        status = main(["checkpoint", verb, str(tmp_path / "checkpoint"), "--json", *arguments])
        out, err = capsys.readouterr()
        return json.loads(out) if status == 0 else err

    return checkpoint


def named(topic: Topic, name: str, **options: str) -> DataFrame:
    given = topic.options(subscribe=topic.name, startingOffsets="earliest") | options
    reader: DataStreamReader = topic.spark.readStream.name(name).format(topic.FORMAT).options(**given)
    return reader.load().selectExpr("cast(value as string) value")


def run(frame: DataFrame, folder: Path) -> list[str]:
    """Run to the end of what is there; every value that came."""
    seen: list[str] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: seen.extend(row.value for row in rows.collect()))
    started = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert started.awaitTermination(120)
    return sorted(seen)


@pytest.mark.long
def test_sources_that_come_go_and_get_other_names(topic: Topic, command: Callable[..., Any], tmp_path: Path) -> None:
    other = topic.named(f"{topic.name}-other")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("f0\n")
    text = topic.spark.readStream.name("files").format("text").schema("value string").load(str(tmp_path / "files"))
    topic.put("a0", "a1")
    other.put("b0")
    brokers = ("--brokers", topic.servers)

    assert run(named(topic, "orders").union(text), tmp_path) == ["a0", "a1", "f0"]
    assert run(named(other, "bills").union(text).union(named(topic, "orders")), tmp_path) == ["b0"]
    assert [source["name"] for source in command("show")["sources"]] == ["bills", "files", "orders"]
    assert {source.label: source.topics for source in read_query(str(tmp_path / "checkpoint"))} == {
        "bills": (other.name,),
        "orders": (topic.name,),
    }

    # One source is moved back; the others stay where they are.
    assert command("move", *brokers, "--source", "orders", "--to", "earliest", "--yes")["done"]
    topic.put("a2")
    assert run(named(other, "bills").union(text).union(named(topic, "orders")), tmp_path) == ["a0", "a1", "a2"]
    assert command("move", *brokers, "--source", "orders", "--to-batch", "0", "--yes")["done"]
    assert command("undo", "--yes")["done"]

    # Another name keeps the position, and undo gives it back.
    assert command("rename", "--source", "orders", "--name", "sales", "--yes")["done"]
    topic.put("a3")
    other.put("b1")
    assert run(named(other, "bills").union(text).union(named(topic, "sales")), tmp_path) == ["a3", "b1"]
    assert [source["name"] for source in command("show")["sources"]] == ["bills", "files", "sales"]

    # Without rename, Spark takes it for a new source. One that comes back after one batch goes on, after two it is new.
    assert run(named(topic, "again"), tmp_path) == ["a0", "a1", "a2", "a3"]
    other.put("b2")
    assert run(named(topic, "again").union(named(other, "bills")), tmp_path) == ["b2"]
    for value in ("a4", "a5"):
        topic.put(value)
        assert run(named(topic, "again"), tmp_path) == [value]
    both = named(topic, "again").union(named(other, "bills"))
    assert run(both, tmp_path) == ["b0", "b1", "b2"]
    other.put("b3")
    moved = command("move", *brokers, "--source", "bills", "--to", "latest", "--yes")
    assert [row["source"] for row in moved["partitions"] if row["to"]] == ["bills"]
    assert run(both, tmp_path) == []


@pytest.mark.long
def test_exactly_once_goes_on_with_other_sources_and_after_a_batch_that_failed(
    topic: Topic, command: Callable[..., Any], tmp_path: Path
) -> None:
    other, target = topic.named(f"{topic.name}-other"), topic.named(f"{topic.name}-target")
    topic.put("a0")
    other.put("b0")

    def copy(frame: DataFrame) -> list[str]:
        assert target.append_all(frame, tmp_path, delivery="exactly_once").awaitTermination(120)
        return target.stored()

    assert copy(named(topic, "orders")) == ["a0"]
    assert copy(named(topic, "orders").union(named(other, "bills"))) == ["a0", "b0"]
    topic.put("a1")
    # As if the driver had died between the sink's commit and Spark's.
    assert copy(named(topic, "orders").union(named(other, "bills"))) == ["a0", "a1", "b0"]
    last = read_checkpoint(tmp_path / "checkpoint").committed
    assert last is not None
    for name in (str(last.batch_id), f".{last.batch_id}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    assert command("show")["planned_batch"] == last.batch_id
    assert copy(named(topic, "orders").union(named(other, "bills"))) == ["a0", "a1", "b0"]
    assert command("rename", "--source", "bills", "--name", "invoices", "--yes")["done"]
    other.put("b1")
    assert copy(named(other, "invoices").union(named(topic, "orders"))) == ["a0", "a1", "b0", "b1"]


def test_the_lag_of_a_query_with_names(topic: Topic, tmp_path: Path) -> None:
    """A source is known by the form of its offsets, whatever Spark calls it."""
    progress: list[dict[str, Any]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryIdle(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            progress.append(json.loads(event.progress.json))

    topic.put("a0", "a1", "a2")
    listener = Listener()
    topic.spark.streams.addListener(listener)
    try:
        (tmp_path / "files").mkdir()
        text = topic.spark.readStream.name("files").format("text").schema("value string").load(str(tmp_path / "files"))
        frame = named(topic, "orders", maxOffsetsPerTrigger="1").union(text)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        progress += [json.loads(each.json) for each in query.recentProgress]
    finally:
        topic.spark.streams.removeListener(listener)
    (source,) = read_query_progress(next(tree for tree in progress if tree["batchId"] == 0)).sources
    assert sum(lag.bytes or 0 for lag in source.lags()) > 0
