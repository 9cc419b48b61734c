"""The Python, INI and JSON blocks of README and docs do what they say, as they stand.

Those of README.md, the client's two pages and docs/rocketmq.md have tests of their own, in tests/jobs/test_readme.py,
tests/metaq/client/test_client_docs.py and tests/spark/test_spark_rocketmq.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from doc_blocks import ROOT, Block, blocks
from fix_broker import StartBroker, wait_until
from metaq_broker.operate.config.configuration import parse
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener, StreamingQueryManager

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import put
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message, Partition
from metaq_spark.backends.metaq.options import NOTATION

OWN_TESTS = {
    "README.md",
    "docs/client.md",
    "docs/client-internals.md",
    "docs/rocketmq.md",
    "docs/coming-from-rocketmq-spark.md",
}
CONFIGURATION = (
    "brokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=1000\n"
    "maxSegmentSize=1024*1024*64\nmaxTransferSize=1024*1024\n"
)


def page_of(block: Block) -> str:
    return str(block.page.relative_to(ROOT))


def put_order(address: Address) -> None:
    with shared_pool().lease(address) as session:
        put(session, "orders", 0, Message(b"o" * 200))


def topics_of(address: Address) -> dict[str, list[Partition]]:
    return FixedDirectory([address], shared_pool()).topics()


def test_every_python_block_has_a_test() -> None:
    tested = {
        "docs/connector.md",
        "docs/connector-reference.md",
        "docs/coming-from-kafka.md",
        "docs/dashboard.md",
        "docs/monitoring.md",
        "docs/diagnosis.md",
        *OWN_TESTS,
    }
    assert {page_of(block) for block in blocks("python")} == tested


@pytest.fixture
def own_listeners(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Listeners and gauges that a test adds do not outlive it."""
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def remember(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(manager, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", remember)
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    yield
    for listener in added:
        spark.streams.removeListener(listener)


@pytest.mark.spark
@pytest.mark.usefixtures("own_listeners")
def test_the_listener_of_the_dashboard_waits_for_nobody(spark: SparkSession) -> None:
    """Nobody listens at its address: the program goes on."""
    [block] = [block for block in blocks("python") if page_of(block) == "docs/dashboard.md"]
    names: dict[str, object] = {"spark": spark}
    exec(block.text, names)
    assert "ProgressListener" in names


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.usefixtures("own_listeners")
def test_python(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    put_order(broker.address)
    names: dict[str, object] = {"spark": spark}
    caplog.set_level(logging.INFO, "metaq_spark.lag")

    def run(page: str) -> None:
        for block in blocks("python", page=page):
            text = block.text.replace("127.0.0.1:8123", str(broker.address)).replace("9109", "0")
            exec(compile(text.replace("checkpoints/", f"{tmp_path}/"), str(block), "exec"), names)

    run("docs/monitoring.md")  # first: its listeners are to see the query of the next page
    run("docs/connector.md")
    query: Any = names["query"]
    query.processAllAvailable()  # it begins at the end
    put_order(broker.address)
    sent = spark.read.format("metaq").option("brokers", str(broker.address)).option("subscribe", "large_orders")
    wait_until(lambda: "large_orders" in topics_of(broker.address), "the query's first row")
    run("docs/diagnosis.md")  # of a query that has a batch
    wait_until(lambda: "input_rows_per_s" in caplog.text, "a line about the lag")
    query.stop()
    assert [bytes(row.value) for row in sent.load().collect()] == [b"o" * 200]
    run("docs/coming-from-kafka.md")
    orders: Any = names["orders"]
    assert orders.isStreaming
    run("docs/connector-reference.md")
    good, bad = names["good"], names["bad"]
    assert isinstance(good, DataFrame)
    assert isinstance(bad, DataFrame)
    assert (good.count(), [row._corrupt_record for row in bad.collect()]) == (0, ["o" * 200] * 2)


@pytest.mark.parametrize("block", [block for block in blocks("ini") if page_of(block) != "docs/cli.md"], ids=str)
def test_configuration(block: Block) -> None:
    """A broker takes the lines, in a file that has what every file has, and what the page has set up before."""
    before = CONFIGURATION
    if "allowPublish" in block.text:  # lists need certificates
        before += "tlsCertFile=a\ntlsKeyFile=b\ntlsClientCaFile=c\n"
    text = block.text if "[system]" in block.text else f"[system]\n{block.text}"
    text = text.replace("[system]\n", f"[system]\n{before}", 1)
    if "[pair]" in text and "[zookeeper]" not in text:
        text += "[zookeeper]\nzk.zkConnect=127.0.0.1:2181\n"
    config = parse((text if "[topic=" in text else f"{text}[topic=t]\n").encode())
    assert not config.warnings


@pytest.mark.parametrize("block", list(blocks("json")), ids=str)
def test_json(block: Block) -> None:
    tree = json.loads(block.text)
    of_times = any(isinstance(value, str) for each in tree.values() for value in each.values())
    assert NOTATION.timestamps(block.text) if of_times else NOTATION.position(block.text)
