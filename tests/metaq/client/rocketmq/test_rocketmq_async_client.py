"""``AsyncRocketMQ``: the names of ``RocketMQ``, in a loop that stays free."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from waiting import run_watched

import metaq
from metaq import AsyncRocketMQ
from metaq.client.rocketmq.async_client import AsyncLookup, AsyncRocketClusterView, AsyncTopics
from metaq.client.rocketmq.async_producer import (
    AsyncRocketProducer,
    AsyncRocketTransaction,
    AsyncTransactionalProducer,
)
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.cluster import RocketClusterView
from metaq.client.rocketmq.lookup import MessageLookup
from metaq.client.rocketmq.producer import RocketProducer
from metaq.client.rocketmq.records import RocketReceived
from metaq.client.rocketmq.topics import TopicAdministration
from metaq.client.rocketmq.transactions import RocketTransaction, TransactionalProducer
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import SendFailed, TopicNotFound, WindowFull
from metaq.model import Partition
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.command import RemotingCommand
from metaq.testing.rocketmq_server import ScriptedCluster

A0, A1 = Partition("broker-a", 0), Partition("broker-a", 1)


def run(cluster: ScriptedCluster, main: Callable[[AsyncRocketMQ], Awaitable[None]]) -> None:
    """Run a coroutine with a client; a callback that fails, or a task that is forgotten, fails the test."""

    async def with_client() -> None:
        async with AsyncRocketMQ(str(cluster.name_servers[0]), timeouts=Timeouts(60.0, 60.0)) as mq:
            await main(mq)

    run_watched(with_client())


def test_it_is_exported_and_opens_nothing() -> None:
    assert metaq.AsyncRocketMQ is AsyncRocketMQ
    before = set(threading.enumerate())
    mq = AsyncRocketMQ("127.0.0.1:1")  # no loop runs here
    assert repr(mq) == "AsyncRocketMQ('127.0.0.1:1')"
    assert repr(mq.producer(group="g")) == "AsyncRocketProducer(group='g')"
    assert set(threading.enumerate()) <= before
    with pytest.raises(ValueError, match="name server"):
        AsyncRocketMQ("nowhere")
    with pytest.raises(ValueError, match="window 0"):
        mq.producer(window=0)


def names(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("sync", "twin"),
    [
        (RocketMQ, AsyncRocketMQ),
        (RocketProducer, AsyncRocketProducer),
        (TransactionalProducer, AsyncTransactionalProducer),
        (RocketTransaction, AsyncRocketTransaction),
        (RocketClusterView, AsyncRocketClusterView),
        (MessageLookup, AsyncLookup),
        (TopicAdministration, AsyncTopics),
    ],
)
def test_the_names_are_the_same(sync: type, twin: type) -> None:
    inside = {"consumers", "knows", "start", "prepare", "enqueue"}  # for the classes of this package
    inside |= {"begin_request", "end_request"}  # for asyncio
    inside |= {"checkup", "topic_names", "addresses", "left_out"}  # for the command metaq and the page
    assert names(sync) - inside == names(twin)


def test_sends_share_batches_and_come_back(cluster: ScriptedCluster) -> None:
    async def main(mq: AsyncRocketMQ) -> None:
        async with mq.producer(linger_s=0.005) as producer:
            sent = await asyncio.gather(*(producer.send("orders", b"%d" % n, key=b"%d" % (n % 9)) for n in range(500)))
            many = await producer.send_many("orders", ["a", "b"], partition=A0)
            assert many[1].offset == many[0].offset + 1
            one = await (await producer.submit("orders", "c", tag="hot", keys=["k"]))
        assert len([each for each in cluster.broker().requests if each.code == 320]) < 100
        found = {message.message_id: message async for message in mq.browse("orders")}
        assert len(found) == 503
        assert all(found[each.message_id].data == b"%d" % n for n, each in enumerate(sent))
        assert [m.keys async for m in mq.browse("orders", tags="hot")] == [("k",)]
        assert found[one.message_id].tag == "hot"

    run(cluster, main)


def test_a_full_window_is_awaited_and_the_loop_stays_free(cluster: ScriptedCluster) -> None:
    gate = threading.Event()

    def wait_for_the_gate(command: RemotingCommand) -> float:
        if command.code == 320:
            gate.wait(60)
        return 0.0

    cluster.broker().latency_s = wait_for_the_gate

    async def main(mq: AsyncRocketMQ) -> None:
        async with mq.producer(window=1000) as producer:
            sends = asyncio.gather(*(producer.send("orders", b"x" * 900, partition=A0) for _ in range(5)))
            gaps, last = [], time.monotonic()
            for _ in range(20):
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
            assert not sends.done()
            gate.set()
            assert max(gaps) < 30
            assert sorted(one.offset for one in await sends) == [0, 1, 2, 3, 4]
        strict = mq.producer(window=100, linger_s=60, on_overflow="raise")
        await strict.submit("orders", "first")
        with pytest.raises(WindowFull):
            await strict.submit("orders", "x" * 100)
        assert await strict.flush(60)

    run(cluster, main)


def test_failures_are_exceptions_of_the_await(cluster: ScriptedCluster) -> None:
    del cluster.broker().store.topics["TBW102"]

    async def main(mq: AsyncRocketMQ) -> None:
        producer = mq.producer()
        with pytest.raises(TopicNotFound):
            await producer.send("nothing", "x")
        with pytest.raises(TypeError, match="data: expected bytes or a text"):
            await producer.send("orders", 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="queue broker-a:9"):
            await producer.send_oneway("orders", "x", partition=Partition("broker-a", 9))
        cluster.broker().refuse(320, 13, "bad", times=1)
        with pytest.raises(SendFailed, match="bad"):
            await producer.send("orders", "x")
        assert len(await producer.send_oneway("orders", "x", partition=A1)) == 32

    run(cluster, main)


def test_the_cluster_is_described(cluster: ScriptedCluster) -> None:
    cluster.append("orders", A0, [b"a", b"b"], store_ms=1000)

    async def main(mq: AsyncRocketMQ) -> None:
        view = mq.cluster
        assert await view.topics() == {"orders": [A0, A1]}
        assert await view.brokers() == {"broker-a": cluster.broker().address()}
        assert [one.messages for one in await view.describe("orders")] == [2, 0]
        assert await view.offsets_at("orders", 500) == {A0: 0, A1: 0}
        assert [one.messages_behind for one in await view.lag("g", ["orders"])] == [2, 0]
        assert list(await view.create_topic("made", 3)) == ["broker-a"]
        assert len(await view.describe("made")) == 3
        assert await view.partitions("made") == await view.writable("made")
        assert cluster.name_servers[0] in await view.servers()
        (settings,) = await mq.topics.settings("made")
        assert (settings.read_queues, settings.permissions) == (3, "rw")
        sent = await mq.producer().send("made", "x", keys=["k7"])
        assert [one.data for one in await mq.lookup.by_key("made", "k7")] == [b"x"]
        assert [one.data for one in await mq.lookup.by_id("made", sent.message_id)] == [b"x"]
        async for message in mq.browse("orders"):
            assert isinstance(message, RocketReceived)
            break  # the connection is given back all the same

    run(cluster, main)


def test_a_queue_that_is_not_known_is_looked_up_outside_of_the_loop(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[threading.Thread] = []
    look_up = NameServerDirectory.writable_or_new

    def noted(directory: NameServerDirectory, topic: str) -> list[Partition]:
        asked.append(threading.current_thread())
        return look_up(directory, topic)

    monkeypatch.setattr(NameServerDirectory, "writable_or_new", noted)

    async def main(mq: AsyncRocketMQ) -> None:
        producer = mq.producer()
        await producer.send("orders", b"x", partition=A1)
        with pytest.raises(ValueError, match="queue broker-a:9: orders has broker-a:0, broker-a:1"):
            await producer.submit("orders", b"y", partition=Partition("broker-a", 9))

    run(cluster, main)
    assert len(asked) == 2
    assert threading.current_thread() not in asked
