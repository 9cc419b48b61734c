"""A topic is deleted and made again on a broker that goes on: its new messages are read, from the first one on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from fix_broker import wait_until

from metaq import MetaQ
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.ownership.starts import Start
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process


def read(consumer: GroupConsumer | RocketGroupConsumer) -> list[bytes]:
    return [one.data for one in consumer.fetch(timeout=0.1)]


@pytest.mark.parametrize("count", [1, 12])
def test_of_metaq(tmp_path: Path, count: int) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        RocketMQ(broker.name_servers) as rocketmq,
        MetaQ(str(broker.address)) as mq,
    ):
        rocketmq.topics.create("orders", queues=1)
        producer = rocketmq.producer()
        for number in range(8):
            producer.send("orders", f"old {number}")
        with mq.consumer("g", ["orders"], parking=tmp_path / "parked") as consumer:
            found: list[bytes] = []
            while len(found) < 8:
                found.extend(read(consumer))
            consumer.commit()
            rocketmq.topics.delete("orders")
            rocketmq.topics.create("orders", queues=1)
            with RocketMQ(broker.name_servers) as other:
                for number in range(count):
                    other.producer().send("orders", f"new {number}")
            new = [b"new %d" % number for number in range(count)]

            def has_all() -> bool:  # those behind the old position may come before it is noticed, and again
                found.extend(read(consumer))
                return found[-count:] == new

            wait_until(has_all, "the new ones, from the first on")


@pytest.mark.parametrize(("to", "start"), [("latest", "earliest"), ("earliest", "latest")])
def test_a_reset_in_between_applies(tmp_path: Path, to: Literal["earliest", "latest"], start: Start) -> None:
    with (
        BrokerProcess(tmp_path) as broker,
        RocketMQ(broker.name_servers) as rocketmq,
        MetaQ(str(broker.address)) as mq,
    ):
        rocketmq.topics.create("orders", queues=1)
        mq.producer().send_many("orders", ["old"] * 8)
        with mq.consumer("g", ["orders"], parking=tmp_path / "parked") as consumer:
            wait_until(lambda: len(read(consumer)) > 0, "it has begun")
            consumer.commit()
        rocketmq.topics.delete("orders")
        rocketmq.topics.create("orders", queues=1)
        with MetaQ(str(broker.address)) as other:
            other.producer().send_many("orders", ["before the reset"] * 3)
            other.cluster.reset("g", other.cluster.plan_reset("g", "orders", to))
            other.producer().send("orders", "after it")
        found: list[bytes] = []
        with mq.consumer("g", ["orders"], start=start, parking=tmp_path / "parked") as consumer:
            wait_until(lambda: found.extend(read(consumer)) or b"after it" in found, "the last one")
    assert found == [*([b"before the reset"] * 3 if to == "earliest" else []), b"after it"]


def test_of_rocketmq(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, RocketMQ(broker.name_servers) as mq:
        mq.topics.create("orders", queues=1)
        mq.producer().send_many("orders", ["old"] * 8)
        with mq.consumer("g", ["orders"]) as consumer:
            found: list[bytes] = []
            while len(found) < 8:
                found.extend(read(consumer))
            consumer.commit()
            mq.topics.delete("orders")
            mq.topics.create("orders", queues=1)
            with RocketMQ(broker.name_servers) as other:
                other.producer().send_many("orders", [b"new %d" % number for number in range(12)])  # at once
            while len(found) < 20:
                found.extend(read(consumer))
            assert found[8:] == [b"new %d" % number for number in range(12)]
