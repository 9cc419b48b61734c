"""``AsyncMetaQ`` with a real broker and a real ZooKeeper: the rules of the sync client, in a loop that stays free."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from fix_broker import RunningBroker, StartBroker, wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot
from waiting import run_watched, until

import metaq
from metaq import AsyncMetaQ, MetaQ
from metaq.client.group_consumer import AsyncGroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.offsets import memory
from metaq.errors import ConnectionFailed, ConsumerIdInUse, PartitionLost, SendFailed, TopicNotFound, WindowFull
from metaq.model import Partition, TopicPartition

pytestmark = pytest.mark.process

FAST: dict[str, Any] = {"poll_max_s": 0.05, "retry_max_s": 0.01}


@pytest.fixture
def cluster(dev_broker: RunningBroker) -> str:
    """A broker with the topic "orders": nine messages in the first partition, one in the other."""
    with MetaQ(str(dev_broker.address)) as mq:
        producer = mq.producer()
        producer.send_many("orders", [b"%d" % number for number in range(9)], partition=Partition(0, 0))
        producer.send("orders", b"9", partition=Partition(0, 1))
    return str(dev_broker.address)


def watched(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop; a callback that fails, or a task that is forgotten, fails it."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        run_watched(test(*arguments, **named))

    return run


async def read(consumer: AsyncGroupConsumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


def test_it_is_exported_and_opens_nothing() -> None:
    assert metaq.AsyncMetaQ is AsyncMetaQ
    assert repr(AsyncMetaQ("127.0.0.1:1")) == "AsyncMetaQ('127.0.0.1:1')"
    with pytest.raises(ValueError, match="expected host:port"):
        AsyncMetaQ("nowhere")


@watched
async def test_a_group_goes_on_where_it_was(cluster: str) -> None:
    offsets = memory()

    async with AsyncMetaQ(cluster) as mq:
        async with mq.consumer("g", ["orders"], offsets=offsets, **FAST) as consumer:
            first = await read(consumer, 4)
            assert len(consumer.assignment) == 2
        async with mq.consumer("g", ["orders"], offsets=offsets, **FAST) as consumer:
            rest = await read(consumer, 6)
            assert await consumer.fetch(timeout=0.1) == []
            await mq.producer().send("orders", "later")
            assert [one.data for one in await consumer.fetch(timeout=60)] == [b"later"]
            await consumer.commit()
            assert set((await consumer.lag()).values()) == {0}
        assert Counter(one.data for one in first + rest) == Counter(b"%d" % number for number in range(10))


@watched
async def test_an_exception_settles_nothing_in_hand(cluster: str) -> None:
    offsets = memory()

    async def fail() -> None:
        async with AsyncMetaQ(cluster) as mq, mq.consumer("g", ["orders"], offsets=offsets, **FAST) as consumer:
            while len(consumer.assignment) < 2:
                await asyncio.sleep(0.01)
            async for message in consumer:
                if message.partition.index == 0:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    place = TopicPartition("orders", Partition(0, 0))
    assert offsets.load("g", [place])[place].offset == 0


@watched
async def test_the_loop_stays_free_and_cancelling_is_prompt(cluster: str) -> None:
    async with AsyncMetaQ(cluster) as mq, mq.consumer("g", ["orders"], offsets=memory(), **FAST) as consumer:
        await read(consumer, 10)
        gaps, last = [], time.monotonic()
        waiting = asyncio.create_task(consumer.fetch(timeout=300))
        for _ in range(50):
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
        assert sorted(gaps)[25] < 5
        waiting.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - began < 60


@watched
async def test_manual_acknowledgement_rollback_and_seek(cluster: str) -> None:
    async with (
        AsyncMetaQ(cluster) as mq,
        mq.consumer("g", ["orders"], offsets=memory(), auto_ack=False, **FAST) as consumer,
    ):
        found = await read(consumer, 10)
        place = TopicPartition("orders", Partition(0, 0))
        first = next(one for one in found if one.partition.index == 0)
        first.ack()
        assert consumer.position(place) == first.end
        assert await consumer.rollback() == 9
        again = await read(consumer, 9)
        assert first.data not in {one.data for one in again}
        await consumer.seek(place, 0)
        assert (await read(consumer, 1))[0].offset == 0
        with pytest.raises(PartitionLost):
            again[0].ack() if again[0].partition.index == 0 else again[-1].ack()


@pytest.mark.parametrize("workers", [1, 3])
@watched
async def test_handlers_are_awaited_retried_and_given_up(cluster: str, workers: int) -> None:
    seen: list[tuple[bytes, int]] = []
    async with AsyncMetaQ(cluster) as mq:
        consumer = mq.consumer("g", ["orders"], offsets=memory(), max_attempts=2, **FAST)

        async def handler(message: Delivery) -> None:
            await asyncio.sleep(0)
            seen.append((message.data, message.attempt))
            if message.data == b"3":
                raise LookupError("three")
            if len({data for data, _ in seen}) == 10 and (b"3", 2) in seen:
                consumer.stop()

        async with consumer:
            await consumer.run(handler, workers)
            assert [(one.message.data, one.reason) for one in consumer.parked] == [(b"3", "LookupError: three")]
    order = [data for data, _ in seen if data != b"9"]
    assert order == [b"0", b"1", b"2", b"3", b"3", *(b"%d" % number for number in range(4, 9))]


@pytest.mark.parametrize("workers", [1, 2])
@watched
async def test_a_handler_that_rolls_back_has_its_message_rejected(cluster: str, workers: int) -> None:
    attempts: list[int] = []
    async with AsyncMetaQ(cluster) as mq, mq.consumer("g", ["orders"], offsets=memory(), max_attempts=2, **FAST) as one:

        async def handler(message: Delivery) -> None:
            if message.data == b"9":
                attempts.append(message.attempt)
                if message.attempt < 9:
                    await one.rollback([message.where])
                else:
                    one.stop()

        running = asyncio.create_task(one.run(handler, workers))
        await until(lambda: running.done() or len(one.parked) == 1, "it is parked")
        one.stop()
        await running
        assert [(parked.message.data, parked.reason) for parked in one.parked] == [(b"9", "rolled back too often")]
    assert attempts == [1, 2]


@watched
async def test_a_broker_that_restarts_is_read_on(
    cluster: str, dev_broker: RunningBroker, start_broker: StartBroker
) -> None:
    async with AsyncMetaQ(cluster) as mq, mq.consumer("g", ["orders"], offsets=memory(), **FAST) as consumer:
        await read(consumer, 10)
        dev_broker.kill()
        assert await consumer.fetch(timeout=0.3) == []
        port = str(dev_broker.address.port)
        await asyncio.to_thread(start_broker, "dev", dev_broker.data, "--port", port, "--partitions", "2")
        await mq.producer().send("orders", "after")
        assert [one.data for one in await consumer.fetch(timeout=60)] == [b"after"]


@watched
async def test_sends_share_blocks_and_know_their_places(cluster: str) -> None:
    async with AsyncMetaQ(cluster) as mq, mq.producer(window="64 kB") as producer:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(producer.send("many", b"%d" % number)) for number in range(2000)]
        places = {(task.result().partition, task.result().offset) for task in tasks}
        assert len(places) == 2000
        sent = await producer.send_many("many", ["a", "b"], partition=Partition(0, 0))
        assert sent[0].offset < sent[1].offset
        found = [message.data async for message in mq.browse("many")]
        assert len(found) == 2002
        assert (await mq.cluster.topics())["many"] == [Partition(0, 0), Partition(0, 1)]
        assert sum(one.messages or 0 for one in await mq.cluster.describe("many")) == 2002


@watched
async def test_failures_are_exceptions_of_the_await(cluster: str, dev_broker: RunningBroker) -> None:
    async with AsyncMetaQ(cluster) as mq:
        producer = mq.producer()
        with pytest.raises(TypeError, match="data: expected bytes or a text"):
            await producer.send("orders", 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="partition 7-7"):
            await producer.send("orders", "x", partition=Partition(7, 7))
        strict = mq.producer(window=100, linger_s=60, on_overflow="raise")
        await strict.submit("orders", "first")
        with pytest.raises(WindowFull):
            await strict.submit("orders", "x" * 100)
        await strict.close()
        dev_broker.kill()
        with pytest.raises((ConnectionFailed, SendFailed, TopicNotFound)):
            await producer.send("orders", "x")


@watched
async def test_transactions(cluster: str) -> None:
    async with AsyncMetaQ(cluster) as mq:
        async with mq.producer().transaction() as transaction:
            await transaction.send("paid", "both")
            await transaction.send("paid", "or none")
        async with mq.producer().transaction() as transaction:
            await transaction.send("paid", "dropped")
            await transaction.rollback()
        async with mq.xa(b"1", b"b", unique="s") as branch:
            await branch.send("paid", "in two phases")
            assert await branch.prepare()
        (prepared,) = await mq.prepared("s")
        await mq.commit(prepared.xid)
        found = sorted([message.data async for message in mq.browse("paid")])
        assert found == [b"both", b"in two phases", b"or none"]


def test_sync_and_asyncio_consumers_share_a_group(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    brokers.start("one", "[topic=test]\nnumPartitions=4\n")
    options: dict[str, Any] = {"session_s": SESSION_S, "poll_max_s": 0.1}
    reported: list[tuple[str, int]] = []

    async def on_revoked(places: Any) -> None:
        reported.append(("revoked", len(places)))

    async def main() -> None:
        seen: list[bytes] = []
        async with AsyncMetaQ(f"zk://{zookeeper.option}") as mq:
            async with mq.consumer("g", ["test"], consumer_id="1", on_revoked=on_revoked, **options) as consumer:
                reading = asyncio.create_task(_gather(consumer, seen))
                await until(lambda: len(consumer.assignment) == 4, "it has all")
                with (
                    MetaQ(f"zk://{zookeeper.option}") as sync,
                    sync.consumer("g", ["test"], consumer_id="2", **options) as other,
                ):
                    await until(lambda: len(other.assignment) == 2, "they share")
                    assert [str(one) for one in consumer.assignment] == ["test/3-0", "test/3-1"]
                    assert reported == [("revoked", 2)]
                    sent = await mq.producer().send_many("test", [b"%d" % number for number in range(100)])
                    mine = [str(n).encode() for n, one in enumerate(sent) if one.partition.index < 2]
                    await until(lambda: len(seen) == len(mine), "its share came")
                    found: list[Delivery] = []
                    while len(found) < 100 - len(mine):
                        found += await asyncio.to_thread(other.fetch, 100, 1.0)
                await until(lambda: len(consumer.assignment) == 4, "it has all again")
                consumer.stop()
                await reading
            assert Counter(seen + [one.data for one in found]) == Counter(b"%d" % number for number in range(100))

    watched(main)()
    wait_until(lambda: len(zookeeper.dump("/consumers/g/owners/test")) == 1, "all are released")


async def _gather(consumer: AsyncGroupConsumer, seen: list[bytes]) -> None:
    async for message in consumer:
        seen.append(message.data)


@watched
async def test_what_ends_a_consumer_is_raised_where_it_is_awaited(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    brokers.start("one", "[topic=test]\nnumPartitions=1\n")

    first_options: dict[str, Any] = {"consumer_id": "same", "session_s": SESSION_S}
    async with (
        AsyncMetaQ(f"zk://{zookeeper.option}") as mq,
        mq.consumer("g", ["test"], **first_options) as consumer,
    ):
        await until(lambda: len(consumer.assignment) == 1, "it reads")
        async with mq.consumer("g", ["test"], **first_options | {"session_s": 0.5}) as second:
            with pytest.raises(ConsumerIdInUse):
                await second.fetch(timeout=60)
