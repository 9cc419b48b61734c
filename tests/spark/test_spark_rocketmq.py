"""``format("rocketmq")`` inside Spark, against a scripted cluster: the page, restarts, tools, jobs, errors."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_commands import run_command
from fix_broker import StartBroker, wait_until
from lines_to_topic import parse_arguments as lines_arguments
from lines_to_topic import run as lines_run
from mirror_topics import Mirror
from mirror_topics import parse_arguments as mirror_arguments
from mirror_topics import run as mirror_run
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from topic_to_parquet import parse_arguments as parquet_arguments
from topic_to_parquet import run as parquet_run

from metaq.model import Partition
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq_spark.cli import main
from metaq_spark.lag.listener import MetaQLagListener

pytestmark = [pytest.mark.spark, pytest.mark.process]

ROOT = Path(__file__).parents[2]
SECRETS = {"accessKey": "the-name", "secretKey": "the-key", "securityToken": "the-token"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({"broker-a": (), "broker-b": ()}) as cluster:
        yield cluster


@pytest.fixture
def servers(cluster: ScriptedCluster) -> dict[str, str]:
    return {"nameServers": ";".join(map(str, cluster.name_servers))}


def put(cluster: ScriptedCluster, topic: str, *bodies: bytes, tag: str | None = None) -> None:
    for number, body in enumerate(bodies):
        broker = "broker-a" if number % 2 else "broker-b"
        cluster.append(topic, Partition(broker, number // 2 % 2), [body], tag=tag)


def drained(frame: DataFrame, folder: Path, **options: str) -> list[dict[str, Any]]:
    """Run a query over what there is; the progress of its batches."""
    query = (
        frame.writeStream.format("parquet").option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "progress")).options(**options).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return [json.loads(one.json) for one in query.recentProgress]


def test_the_examples_of_the_page(
    spark: SparkSession, cluster: ScriptedCluster, servers: dict[str, str], tmp_path: Path
) -> None:
    for topic in ("orders", "copies"):
        cluster.create_topic(topic, queues=2)
    names: dict[str, Any] = {"spark": spark}
    page = (ROOT / "docs" / "rocketmq.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        text = block.replace("127.0.0.1:9876", servers["nameServers"]).replace("checkpoints/", f"{tmp_path}/")
        exec(compile(text, "docs/rocketmq.md", "exec"), names)
    query = names["query"]
    query.processAllAvailable()  # it begins at the end
    put(cluster, "orders", b"one tea", tag="tea")
    put(cluster, "orders", b"two coffees", tag="coffee")

    def copies() -> DataFrame:  # loaded anew: a batch read knows the end when it is first looked at
        return spark.read.format("rocketmq").options(**servers).option("subscribe", "copies").load()

    wait_until(lambda: copies().count() == 1, "the copy", 90)
    query.stop()
    other = (ROOT / "docs" / "coming-from-rocketmq-spark.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", other, re.DOTALL):
        exec(compile(block.replace("127.0.0.1:9876", servers["nameServers"]), "docs", "exec"), names)
    assert names["orders"].columns == ["body"]
    (row,) = copies().collect()
    assert (bytes(row.value), row.tags, row.broker_name in ("broker-a", "broker-b")) == (b"one tea", "tea", True)
    assert row.properties["UNIQ_KEY"] == row.message_id


@pytest.mark.since("4.2")
def test_a_query_goes_on_where_it_was_and_the_tools_see_it(
    spark: SparkSession,
    cluster: ScriptedCluster,
    servers: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.create_topic("events", queues=2)
    put(cluster, "events", *(b"%d" % n for n in range(8)))
    caplog.set_level(logging.INFO, "metaq_spark.lag")
    listener = MetaQLagListener(servers)
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("rocketmq").options(**servers).options(**SECRETS)
        frame = stream.options(subscribe="events", startingOffsets="earliest", maxOffsetsPerTrigger=4).load()
        progress = drained(frame, tmp_path)
        end = "lag_messages=0 lag_seconds=0.0 partitions=4 behind=0"  # seconds: the brokers were asked
        wait_until(lambda: end in caplog.text, "a line about the lag")
    finally:
        spark.streams.removeListener(listener)
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [4, 4]
    put(cluster, "events", b"8", b"9")
    drained(frame, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).selectExpr("string(value) AS value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(10))
    for file in (tmp_path / "progress").rglob("*"):
        assert not file.is_file() or b"the-key" not in file.read_bytes()

    def checkpoint(*arguments: str) -> str:
        status, out, error = run_command(main, "checkpoint", *arguments)
        assert status == 0, error
        return out

    where = [str(tmp_path / "progress"), "--name-servers", servers["nameServers"]]
    shown = json.loads(checkpoint("show", *where, "--json"))
    (source,) = shown["sources"]
    assert {row["partition"] for row in source["partitions"]} >= {"broker-a:0", "broker-b:1"}
    assert sum(row["lag_messages"] for row in source["partitions"]) == 0
    assert "messages" in checkpoint("move", *where, "--to", "earliest", "--yes")
    drained(frame, tmp_path)
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 20
    drained(frame, tmp_path)
    checkpoint("move", *where, "--to", "earliest", "--yes")
    checkpoint("undo", str(tmp_path / "progress"), "--yes")
    drained(frame, tmp_path)
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 20


def test_plans_and_errors_show_no_secrets(spark: SparkSession, servers: dict[str, str], capsys: Any) -> None:
    reader = spark.read.format("rocketmq").options(**servers).options(**SECRETS)
    frame = reader.option("subscribe", "nothing-there").load()
    frame.explain(extended=True)
    shown = capsys.readouterr().out
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert "topic 'nothing-there' does not exist" in str(caught.value)
    assert not [secret for secret in SECRETS.values() if secret in shown + str(caught.value)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "orders", "nameServer": "x"}, "option nameserver: use nameServers"),
        ({"assign": '{"orders": ["broker-a:9"]}'}, "topic 'orders' has no queue broker-a:9; there is broker-a:0"),
    ],
)
def test_errors_are_one_sentence(
    spark: SparkSession, cluster: ScriptedCluster, servers: dict[str, str], options: dict[str, str], sentence: str
) -> None:
    cluster.create_topic("orders", queues=2)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq").options(**servers).options(**options).load().collect()
    assert re.search(sentence, str(caught.value))
    assert "Traceback" not in str(caught.value)


@pytest.mark.long
def test_jobs_store_lines_and_messages(
    spark: SparkSession, cluster: ScriptedCluster, servers: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("lines", queues=2)
    spark.sparkContext.addPyFile(str(ROOT / "jobs" / "lines_to_topic.py"))
    source = tmp_path / "log"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(500)))
    given = ["--rocketmq", servers["nameServers"], "--topic", "lines", "--block-bytes", "600", str(source)]
    lines_run(spark, lines_arguments(given))
    arguments = ["--rocketmq", servers["nameServers"], "--topics", "lines"]
    arguments += ["--output", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "progress")]
    parquet_run(spark, parquet_arguments(arguments)).awaitTermination()
    stored = spark.read.parquet(str(tmp_path / "lake"))
    assert {"topic", "date", "hour"} <= set(stored.columns)
    assert sorted(bytes(row.value) for row in stored.select("value").collect()) == sorted(
        source.read_bytes().splitlines(keepends=True)
    )
    assert isinstance(parquet_arguments(arguments), argparse.Namespace)


@pytest.mark.long
def test_a_mirror_goes_both_ways(
    spark: SparkSession,
    cluster: ScriptedCluster,
    servers: dict[str, str],
    start_broker: StartBroker,
    tmp_path: Path,
) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    metaq = {"brokers": str(broker.address)}
    rows = [(f"m{n}", f"tag{n % 3}") for n in range(30)]
    frame = spark.createDataFrame(rows, "value string, attribute string").coalesce(1)
    frame.write.format("metaq").options(**metaq).option("topic", "trades").mode("append").save()
    cluster.create_topic("trades", queues=2)

    def mirror(*arguments: str, checkpoint: str) -> None:
        given = [*arguments, "--topics", "trades", "--checkpoint", str(tmp_path / checkpoint)]
        with Mirror(mirror_arguments(given)) as made:
            mirror_run(spark, made).awaitTermination()

    there = ["--from-brokers", metaq["brokers"], "--to-rocketmq", servers["nameServers"]]
    for _ in range(2):  # the second run has nothing to do
        mirror(*there, checkpoint="there")
    copies = spark.read.format("rocketmq").options(**servers).option("subscribe", "trades").load()
    found = copies.selectExpr("string(value)", "tags", "broker_name", "queue_id", "queue_offset").collect()
    assert [(row.value, row.tags) for row in sorted(found, key=lambda one: one.queue_offset)] == rows
    assert {(row.broker_name, row.queue_id) for row in found} == {("broker-a", 0)}  # in one queue, in order

    back = ["--from-rocketmq", servers["nameServers"], "--to-brokers", metaq["brokers"], "--prefix", "back-", "--fold"]
    mirror(*back, checkpoint="back")
    returned = spark.read.format("metaq").options(**metaq).option("subscribe", "back-trades").load()
    again = returned.selectExpr("string(value)", "attribute").collect()
    assert list(map(tuple, again)) == rows
