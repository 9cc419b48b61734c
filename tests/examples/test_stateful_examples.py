"""The examples with state: what they send, over restarts, and when a driver is killed before its commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import big_spenders
import once_per_key
import paid_orders
import pytest
import totals_in_pandas
import totals_in_update_mode
import update_mode_driver
from examples import rarely
from fix_broker import RunningBroker
from fix_spark import Topic, spark_environment
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.process]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PROVIDER, big_spenders.ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


@pytest.fixture
def source(spark: SparkSession, dev_broker: RunningBroker) -> Topic:
    """Topic ``orders`` of a broker of its own."""
    return Topic(spark, "orders", str(dev_broker.address))


def order(customer: str, amount: int) -> str:
    return json.dumps({"customer": customer, "amount": amount})


def run(writer: DataStreamWriter, folder: Path) -> None:
    """To the end of what is there."""
    started = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert started.awaitTermination(120)


def sent(source: Topic, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value) for value in source.named(topic).stored()]


def total(customer: str, total: int) -> dict[str, Any]:
    return {"customer": customer, "total": total}


@pytest.mark.parametrize("example", [totals_in_update_mode, *rarely(totals_in_pandas)])
def test_totals(source: Topic, tmp_path: Path, example: Any) -> None:
    source.put(order("ann", 5), order("bob", 1), order("ann", 7), "no order")
    run(example.query(source.spark, source.servers), tmp_path)
    assert sent(source, "totals") == [total("ann", 12), total("bob", 1)]
    source.put(order("ann", 1))
    run(example.query(source.spark, source.servers), tmp_path)
    assert sent(source, "totals") == [total("ann", 12), total("ann", 13), total("bob", 1)]


@pytest.mark.long
@pytest.mark.usefixtures("rocksdb")
def test_big_spenders(source: Topic, tmp_path: Path) -> None:
    source.put(order("ann", 60), order("bob", 100))
    run(big_spenders.query(source.spark, source.servers), tmp_path)
    source.put(order("ann", 41), order("bob", 0))
    run(big_spenders.query(source.spark, source.servers), tmp_path)
    source.put(order("ann", 1))
    run(big_spenders.query(source.spark, source.servers), tmp_path)
    assert sent(source, "big_spenders") == [total("ann", 101)]


def test_the_processor_alone() -> None:
    """Without a JVM and without a broker."""
    streaming = pytest.importorskip("pyspark.sql.streaming", reason="Spark")
    if not hasattr(streaming, "TwsTester"):
        pytest.skip("this Spark has no TwsTester")
    tester = streaming.TwsTester(big_spenders.BigSpenders())
    assert tester.test("ann", [Row(amount=60), Row(amount=40)]) == []
    assert tester.test("ann", [Row(amount=4)]) == [Row(customer="ann", total=104)]
    assert tester.test("ann", [Row(amount=4)]) == []
    assert tester.peekValueState("total", "ann") == (108,)
    assert tester.peekValueState("total", "bob") is None


@pytest.mark.long
def test_paid_orders(source: Topic, tmp_path: Path) -> None:
    payments = source.named("payments")
    source.put('{"id": 1, "customer": "ann"}', '{"id": 2, "customer": "bob"}')
    payments.put('{"id": 3, "method": "cash"}')
    run(paid_orders.query(source.spark, source.servers), tmp_path)
    payments.put('{"id": 2, "method": "card"}')
    run(paid_orders.query(source.spark, source.servers), tmp_path)
    assert sent(source, "paid") == [{"id": 2, "customer": "bob", "method": "card"}]


def test_once_per_key(source: Topic, tmp_path: Path) -> None:
    def put(*rows: tuple[str, str]) -> None:
        source.write(source.frame(list(rows), "value string, attribute string"))

    put(("a", "key=1"), ("b", "key=2"), ("a", "key=1"))
    run(once_per_key.query(source.spark, source.servers), tmp_path)
    put(("b", "key=2"), ("c", "key=3"))
    run(once_per_key.query(source.spark, source.servers), tmp_path)
    rows = source.named("once").read().collect()
    assert sorted((row.value, row.attribute) for row in rows) == [(b"a", "key=1"), (b"b", "key=2"), (b"c", "key=3")]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("rocksdb")
def test_update_mode_is_exactly_once_when_a_driver_is_killed_before_spark_commits(
    source: Topic, tmp_path: Path
) -> None:
    orders = [("ann", 60), ("bob", 200), ("ann", 50), ("bob", 1)]
    source.put(*(order(*one) for one in orders))
    driver = Path(update_mode_driver.__file__)
    mine = spark_environment()
    path = os.pathsep.join([str(driver.parent), str(Path(big_spenders.__file__).parent), mine["PYTHONPATH"]])
    environment = os.environ | mine | {"PYTHONPATH": path}
    with open(tmp_path / "driver.log", "w") as log:
        killed = subprocess.run(
            [sys.executable, str(driver), source.servers, str(tmp_path)],
            stdout=log, stderr=log, env=environment, start_new_session=True, timeout=280, check=False,
        )  # fmt: skip
    assert killed.returncode == -9, (tmp_path / "driver.log").read_text()[-3000:]
    for kind in update_mode_driver.KINDS:
        commits = {file.name for file in (tmp_path / kind / "commits").iterdir() if file.name.isdigit()}
        assert commits == {"0"}
        query = update_mode_driver.start(source.spark, source.servers, kind, tmp_path, lambda write: write)
        assert query.awaitTermination(120)
    passed = [total("ann", 110), total("bob", 200)]
    running = [total("ann", 110), total("ann", 60), total("bob", 200), total("bob", 201)]
    assert {kind: sent(source, kind) for kind in update_mode_driver.KINDS} == {
        "aggregation": running,
        "apply-in-pandas": running,
        "transform": passed,
    }
