"""A data folder, a server.ini and a checkpoint that were made by an older layout of the code go on as they are.

``tests/golden/older`` holds 65 messages of topic ``orders``, the first 60 of which a query copied exactly once to topic
``late``, and a prepared branch with one more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker
from pyspark.sql import SparkSession

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.client.consumer import Consumer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address

OLDER = Path(__file__).parents[1] / "golden" / "older"

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER, tmp_path / "older"))


@pytest.fixture
def broker(start_broker: StartBroker, folder: Path) -> RunningBroker:
    ini = folder / "server.ini"
    ini.write_text(ini.read_text().format(data=folder / "data"))
    return start_broker("start", "-f", ini)


def stored(address: Address, topic: str) -> list[bytes]:
    """The first word and the number of each message, partition by partition."""
    pool = shared_pool()
    directory = FixedDirectory([address], pool)
    consumer = Consumer(directory, pool)
    found = [f.message.payload for p in directory.partitions(topic) for f in consumer.messages(topic, p)]
    return [b" ".join(payload.split(b" ")[:2]) for payload in found]


def test_messages_and_prepared_branches_are_there(broker: RunningBroker) -> None:
    expected = [b"order %03d" % number for first in (0, 1) for number in range(first, 65, 2)]
    assert stored(broker.address, "orders") == expected
    with shared_pool().lease(broker.address) as session:
        transactions = TransactionSteps(session)
        [branch] = transactions.recover("before")
        transactions.commit(branch)
        assert transactions.recover("before") == []
    assert stored(broker.address, "orders") == [*expected, b"prepared before"]
    assert "damage" not in broker.log_text()


@pytest.mark.spark
def test_a_query_goes_on_exactly_once(spark: SparkSession, broker: RunningBroker, folder: Path) -> None:
    brokers = str(broker.address)
    source = spark.readStream.format("metaq").options(brokers=brokers, subscribe="orders", startingOffsets="earliest")
    assert len(stored(broker.address, "late")) == 60
    query = (
        source.load()
        .selectExpr("value")
        .writeStream.format("metaq")
        .options(brokers=brokers, topic="late", delivery="exactly_once")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(stored(broker.address, "late")) == [b"order %03d" % number for number in range(65)]
