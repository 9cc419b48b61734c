"""Brokers without which ``browse`` and ``metaq consume`` read nothing: a route does not tell which ones are away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.backends.rocketmq.errors import QueuesAway
from metaq.errors import BrokersMissing
from metaq.formats.frames import encode_frame
from metaq.model import Address
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]

METAQ = "topic orders: broker 1, 2 is none of the brokers that are found (0 at one:8123); start it, or leave it out"
ROCKETMQ = (
    "have no queue of the topic at broker 'broker-b', which is away, or does not have the topic; start it, or leave"
)


@pytest.fixture
def metaq(memory: dict[Address, MemoryBroker]) -> str:
    """One broker, 0, with a message."""
    memory[Address("one", 8123)] = broker = MemoryBroker({"orders": 1})
    broker.partition("orders", 0).append(encode_frame(1, 0, b"read"))
    return "one:8123"


@pytest.fixture
def rocketmq(rocketmq: str) -> str:
    """One broker, ``broker-a``, with a message."""
    with RocketMQ(rocketmq.removeprefix("rocketmq://")) as mq:
        mq.producer().send("orders", "read")
    return rocketmq


def test_a_metaq_broker_that_is_not_found(command: Run, metaq: str) -> None:
    consume = "-c", metaq, "consume", "orders", "--require-brokers"
    assert command(*consume, "2,0, 1") == (1, "", f"metaq: {METAQ}\n")
    assert command(*consume, "0") == (0, "read\n", "")
    with MetaQ(metaq) as mq:
        assert [each.data for each in mq.browse("orders", require_brokers=[0])] == [b"read"]
        with pytest.raises(BrokersMissing, match="broker 1 is none of"):
            list(mq.browse("orders", require_brokers=["1"]))
        with pytest.raises(TypeError, match="require_brokers='0': expected names or ids of brokers"):
            mq.browse("orders", require_brokers="0")


def test_a_rocketmq_broker_that_is_in_no_route(command: Run, rocketmq: str, cluster: ScriptedCluster) -> None:
    consume = "-c", rocketmq, "consume", "orders", "--require-brokers"
    status, out, err = command(*consume, "broker-a,broker-b")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert ROCKETMQ in err
    assert command(*consume, "broker-a") == (0, "read\n", "")
    assert command(*consume, "broker-a", "-a", "tag") == (0, "", "")


def test_asyncio(metaq: str, rocketmq: str) -> None:
    async def read() -> None:
        async with AsyncMetaQ(metaq) as mq:
            with pytest.raises(BrokersMissing):
                async for _ in mq.browse("orders", require_brokers=[1]):
                    pass
        async with AsyncRocketMQ(rocketmq.removeprefix("rocketmq://")) as mq:
            with pytest.raises(QueuesAway):
                async for _ in mq.browse("orders", require_brokers=["broker-b"]):
                    pass

    asyncio.run(read())


def test_what_cannot_be_required(command: Run, metaq: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        command("-c", metaq, "consume", "orders", "--require-brokers", "0,,1")
    status, _, err = command("-c", metaq, "consume", "orders", "--require-brokers", "0", "--group", "g")
    assert (status, "--require-brokers: with --group" in err) == (2, True)
