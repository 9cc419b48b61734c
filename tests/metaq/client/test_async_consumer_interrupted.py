"""The same as ``test_interrupted_consumers``, for tasks: what is cancelled loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from waiting import in_loop

from metaq import AsyncMetaQ
from metaq.client.group_consumer import AsyncGroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.errors import StoreFailed
from metaq.model import Partition, TopicPartition
from metaq.testing.memory_server import MemoryServer

P0 = TopicPartition("orders", Partition(0, 0))


@pytest.fixture
def mq(metaq_memory: MemoryServer) -> AsyncMetaQ:
    metaq_memory.client().producer().send_many("orders", ["a", "b", "c", "d"], partition=P0.partition)
    return metaq_memory.async_client()


def consumer_of(mq: AsyncMetaQ, **options: object) -> AsyncGroupConsumer:
    return mq.consumer("g", ["orders"], **{"poll_max_s": 0.05, "retry_max_s": 0.01} | options)  # type: ignore[arg-type]


async def read(consumer: AsyncGroupConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [one.data for one in await consumer.fetch(count - len(found), timeout=10)]
    return found


@in_loop
async def test_a_fetch_cancelled_while_it_gives_up_a_message_loses_nothing(mq: AsyncMetaQ) -> None:
    entered, go_on, given = threading.Event(), threading.Event(), list[bytes]()

    def give_up(message: Delivery, error: BaseException | None) -> None:
        given.append(message.data)
        entered.set()
        go_on.wait(60)

    async with mq, consumer_of(mq, auto_ack=False, max_attempts=1, on_reject=give_up) as consumer:
        found: list[Delivery] = []
        while len(found) < 4:
            found += await consumer.fetch(timeout=10)
        found[0].ack()
        found[1].ack()
        await consumer.rollback()  # the third one was refused, once too often
        waiting = asyncio.create_task(consumer.fetch(4, timeout=30))
        assert await asyncio.to_thread(entered.wait, 20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert consumer.position(P0) == found[2].offset
        go_on.set()
        assert await read(consumer, 1) == [b"d"]
        await consumer.commit()
        assert consumer.position(P0) == found[3].end
    assert given == [b"c", b"c"]


@in_loop
async def test_a_handler_whose_own_task_was_cancelled_gets_the_message_again(mq: AsyncMetaQ) -> None:
    seen: list[bytes] = []

    async def handle(message: Delivery) -> None:
        seen.append(message.data)
        if seen == [b"a"]:
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        if message.data == b"d":
            consumer.stop()

    consumer = consumer_of(mq)

    async with mq, consumer:
        await consumer.run(handle)
        assert consumer.position(P0) is not None
    assert seen == [b"a", b"a", b"b", b"c", b"d"]


@in_loop
async def test_a_run_that_is_cancelled_ends_and_settles_nothing(mq: AsyncMetaQ) -> None:
    entered = asyncio.Event()

    async def handle(message: Delivery) -> None:
        entered.set()
        await asyncio.sleep(60)

    async with mq, consumer_of(mq) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert consumer.position(P0) == 0


@in_loop
async def test_what_ends_a_run_is_raised_as_it_is(mq: AsyncMetaQ) -> None:
    """As by the sync one, and not in a group of exceptions, which no ``except MetaqError`` takes."""

    def give_up(message: Delivery, error: BaseException | None) -> None:
        raise StoreFailed("the queue of rejected messages", "it is full")

    async def handle(message: Delivery) -> None:
        raise ValueError

    async with mq, consumer_of(mq, max_attempts=1, on_reject=give_up) as consumer:
        with pytest.raises(StoreFailed, match="it is full"):
            await consumer.run(handle, workers=3)


@in_loop
async def test_a_failing_function_does_not_keep_a_consumer_in_its_group(mq: AsyncMetaQ) -> None:
    left = asyncio.Event()

    async def hang(places: Sequence[TopicPartition]) -> None:
        left.set()
        await asyncio.sleep(60)

    async with mq:
        with pytest.raises(ZeroDivisionError):
            async with consumer_of(mq, on_revoked=lambda places: 1 / 0) as consumer:
                assert await read(consumer, 1) == [b"a"]
        assert consumer.assignment == []

        async def hang_at_the_end() -> None:
            async with consumer_of(mq, on_revoked=hang) as consumer:
                assert await read(consumer, 1) == [b"b"]

        leaving = asyncio.create_task(hang_at_the_end())
        await left.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with consumer_of(mq) as consumer:
            assert await read(consumer, 1) == [b"c"]


@in_loop
async def test_time_limits_around_fetches_and_commits_lose_nothing(mq: AsyncMetaQ) -> None:
    found: list[bytes] = []
    async with mq, consumer_of(mq) as consumer:
        limit_s = 0.0
        while len(found) < 4:
            try:
                found += [one.data for one in await asyncio.wait_for(consumer.fetch(1, timeout=10), limit_s)]
                await asyncio.wait_for(consumer.commit(), limit_s)
            except TimeoutError:
                limit_s += 0.0005
    assert found == [b"a", b"b", b"c", b"d"]


@in_loop
async def test_a_consumer_belongs_to_one_loop(mq: AsyncMetaQ) -> None:
    problems: list[str] = []

    async with mq, consumer_of(mq) as consumer:

        def elsewhere() -> None:
            try:
                asyncio.run(consumer.fetch())
            except ValueError as error:
                problems.append(str(error))

        await asyncio.to_thread(elsewhere)
        assert await read(consumer, 1) == [b"a"]
    assert problems == ["the consumer belongs to the event loop that entered its async with block"]


@in_loop
async def test_closing_does_not_settle_what_another_task_is_dealing_with(mq: AsyncMetaQ) -> None:
    has_it, go_on = asyncio.Event(), asyncio.Event()
    consumer = consumer_of(mq)

    async def work() -> None:
        async for _ in consumer:
            has_it.set()
            await go_on.wait()

    async with mq:
        async with consumer:
            working = asyncio.create_task(work())
            await has_it.wait()
            await consumer.close()
            await consumer.close()
            go_on.set()
            await working
        async with consumer_of(mq) as again:
            assert await read(again, 4) == [b"a", b"b", b"c", b"d"]


@in_loop
async def test_a_parked_message_is_handled_again_after_a_while(mq: AsyncMetaQ, tmp_path: Path) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Delivery) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"a" and message.attempt == 1:
            raise LookupError
        if len(seen) == 5:
            consumer.stop()

    parking = tmp_path / "parked.sqlite"
    async with mq, consumer_of(mq, max_attempts=1, parked_retry_s=0.2, parking=parking) as consumer:
        await asyncio.wait_for(consumer.run(handle), 60)
        assert seen[0] == (b"a", 1)
        assert sorted(seen) == [(b"a", 1), (b"a", 2), (b"b", 1), (b"c", 1), (b"d", 1)], "in whichever order"
        assert len(consumer.parked) == 0
