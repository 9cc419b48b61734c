"""A topic gets more partitions while a group reads it: what is sent to them is read, wherever the group began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq import MetaQ
from metaq.client.groups.ownership import broker_group
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.groups import membership
from metaq.model import Partition
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def rocketmq(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocketMQ]:
    monkeypatch.setattr(membership, "REFRESH_S", 0.2)
    monkeypatch.setattr(broker_group, "REFRESH_S", 0.2)
    with RocketMQ(broker.name_servers) as mq:
        yield mq


def widened(broker: BrokerProcess, topic: str) -> None:
    """Give a topic a second queue, and send to it at once."""
    with RocketMQ(broker.name_servers) as other:  # which knows no former route
        other.topics.create(topic, queues=2)
        other.producer().send(topic, "new", partition=Partition("metaq", 1))


def test_of_rocketmq(broker: BrokerProcess, rocketmq: RocketMQ) -> None:
    rocketmq.topics.create("orders", queues=1)
    rocketmq.producer().send("orders", "old")
    with rocketmq.consumer("g", ["orders"], start="latest") as consumer:
        wait_until(lambda: not consumer.fetch(timeout=0.1) and consumer.assignment, "the group to begin")
        widened(broker, "orders")
        wait_until(lambda: len(consumer.assignment) == 3, "the new queue to be read")
        assert [one.data for one in consumer.fetch(timeout=60)] == [b"new"]


def test_of_metaq(broker: BrokerProcess, rocketmq: RocketMQ, tmp_path: Path) -> None:
    rocketmq.topics.create("bills", queues=1)
    rocketmq.producer().send("bills", "old")
    options = {"start": "latest", "parking": tmp_path / "parked"}
    with MetaQ(str(broker.address)) as mq, mq.consumer("g", ["bills"], **options) as consumer:  # type: ignore[arg-type]
        wait_until(lambda: not consumer.fetch(timeout=0.1) and consumer.assignment, "the group to begin")
        widened(broker, "bills")
        wait_until(lambda: len(consumer.assignment) == 2, "the new partition to be read")
        assert [one.data for one in consumer.fetch(timeout=60)] == [b"new"]
