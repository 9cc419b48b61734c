"""Consumers of a group of RocketMQ's while brokers are away, and programs that end in the middle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.model import Partition
from metaq.net.transport import Timeouts
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

QUEUE = Partition("metaq", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, partitions=1) as made:
        yield made


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[RocketMQ]:
    with RocketMQ(broker.name_servers, timeouts=Timeouts(20.0, 20.0)) as made:
        yield made


def read(consumer: RocketGroupConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    wait_until(
        lambda: len(found) >= count or bool(found.extend(one.data for one in consumer.fetch(1, timeout=0.2))),
        f"{count} messages are read",
    )
    return found


def interrupt_at(data: bytes, member: RocketGroupConsumer) -> None:
    with member as consumer:
        for message in consumer:
            if message.data == data:
                raise KeyboardInterrupt


def test_while_the_broker_is_away_nothing_is_handed_out_or_lost(
    mq: RocketMQ, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    mq.producer().send_many("orders", [b"%d" % number for number in range(10)], partition=QUEUE)
    with mq.consumer("g", ["orders"]) as consumer:
        assert read(consumer, 4) == [b"0", b"1", b"2", b"3"]
        consumer.commit()
        broker.kill()
        wait_until(lambda: consumer.paused is not None, "the loss is noticed")
        assert consumer.fetch(timeout=0.1) == []
        assert consumer.assignment
        broker.start()
        wait_until(lambda: consumer.paused is None, "it is a member again")
        assert read(consumer, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        mq.producer().send("orders", b"later", partition=QUEUE)
        assert read(consumer, 1) == [b"later"]
    assert {one.messages_behind for one in mq.cluster.lag("g")} == {0}
    assert any("trying again" in one.message for one in caplog.records)


def test_an_exception_settles_nothing_in_hand(mq: RocketMQ) -> None:
    mq.producer().send_many("orders", [b"a", b"b"], partition=QUEUE)
    with pytest.raises(KeyboardInterrupt):
        interrupt_at(b"b", mq.consumer("g", ["orders"]))
    assert [one.position for one in mq.cluster.lag("g", ["orders"]) if one.partition == QUEUE] == [1]
    with mq.consumer("g", ["orders"]) as consumer:
        assert read(consumer, 1) == [b"b"]


def test_a_consumer_that_cannot_reach_anybody_says_so(broker: BrokerProcess, mq: RocketMQ) -> None:
    mq.producer().send("orders", b"a", partition=QUEUE)
    with mq.consumer("g", ["orders"]) as consumer:
        read(consumer, 1)
        broker.kill()
        wait_until(lambda: f"{broker.name_servers}: connect failed" in str(consumer.paused), "it says who is away")
