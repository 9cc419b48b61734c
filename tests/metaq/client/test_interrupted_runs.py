"""``run``, interrupted in a handler, and called again: the message in hand is next, and no other one is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from four_clients import CLIENTS, FourClients, outcome_of
from waiting import in_loop

from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

COUNT = 20
DATA = [b"%d" % number for number in range(COUNT)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=2) as made:
        yield made


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: BrokerProcess) -> FourClients:
    made = FourClients(broker, request.param)
    made.send(*DATA)
    return made


class Handler:
    """Notes what it gets, and says at which message it is to be interrupted: the first time, or always."""

    def __init__(self, *at: bytes, settles: bool = False, first_settles: bool = False) -> None:
        self.seen: list[bytes] = []
        self._at, self._settles, self._first_settles = list(at), settles, first_settles

    def __call__(self, message: Any) -> bool:
        self.seen.append(message.data)
        assert message.attempt == 1, "an interruption is no refusal"
        is_interrupted = message.data in self._at
        if is_interrupted:
            self._at.remove(message.data)
        if self._first_settles or (self._settles and not is_interrupted):
            message.ack()
        return is_interrupted


async def run_to_the_end(client: FourClients, consumer: Any, handler: Handler, workers: int) -> None:
    def stops(message: Any) -> None:
        handler(message)
        if message.data == DATA[-1]:
            consumer.stop()

    await client.run(consumer, stops, workers)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("auto_ack", [True, False])
@in_loop
async def test_the_message_in_hand_is_next(client: FourClients, workers: int, auto_ack: bool) -> None:
    handler = Handler(b"0", b"7", b"8", settles=not auto_ack)
    async with client.consumer(auto_ack=auto_ack) as consumer:
        for _ in range(3):
            await client.run_until_interrupted(consumer, handler, workers)
        await run_to_the_end(client, consumer, handler, workers)
        (end,) = {where: consumer.position(where) for where in consumer.assignment if consumer.position(where)}.values()
    assert handler.seen == [b"0", b"0", *DATA[1:8], b"7", b"8", b"8", *DATA[9:]]
    async with client.consumer(auto_ack=auto_ack) as consumer:
        while end not in {consumer.position(where) for where in consumer.assignment}:
            assert await outcome_of(consumer.fetch(timeout=0.05)) == [], "the position was not held back"


@pytest.mark.parametrize("workers", [1, 2])
@in_loop
async def test_a_fetch_and_an_iteration_get_it_too(client: FourClients, workers: int) -> None:
    handler = Handler(b"5", b"10")
    async with client.consumer() as consumer:
        await client.run_until_interrupted(consumer, handler, workers)
        assert [one.data for one in await outcome_of(consumer.fetch(2, timeout=30))] == [b"5", b"6"]
        await client.run_until_interrupted(consumer, handler, workers)
        seen: list[bytes] = []

        def handle(message: Any) -> bool:
            seen.append(message.data)
            return message.data == DATA[-1]

        await client.read(consumer, "iteration", handle)
    assert handler.seen == [*DATA[:6], *DATA[7:11]]
    assert seen == DATA[10:]


@in_loop
async def test_a_message_that_is_interrupted_again_and_again_is_not_given_up(client: FourClients) -> None:
    handler = Handler(*[b"3"] * 20)
    async with client.consumer(max_attempts=2) as consumer:
        for _ in range(20):
            await client.run_until_interrupted(consumer, handler)
        await run_to_the_end(client, consumer, handler, workers=1)
    assert handler.seen == [*DATA[:3], *[b"3"] * 20, *DATA[3:]]


@pytest.mark.parametrize("workers", [1, 2])
@in_loop
async def test_what_was_acknowledged_before_the_interruption_is_not_repeated(client: FourClients, workers: int) -> None:
    handler = Handler(b"3", first_settles=True)
    async with client.consumer(auto_ack=False) as consumer:
        await client.run_until_interrupted(consumer, handler, workers)
        await run_to_the_end(client, consumer, handler, workers)
    assert handler.seen == DATA


@in_loop
async def test_the_next_consumer_begins_with_it(client: FourClients) -> None:
    handler = Handler(b"3")
    async with client.consumer() as consumer:
        await client.run_until_interrupted(consumer, handler)
    async with client.consumer() as consumer:
        await run_to_the_end(client, consumer, handler, workers=1)
    assert handler.seen == [*DATA[:4], *DATA[3:]]


@pytest.mark.parametrize("client", ["RocketMQ", "AsyncRocketMQ"], indirect=True)
@in_loop
async def test_a_locked_queue_is_no_exception(client: FourClients) -> None:
    handler = Handler(b"3", b"4")
    async with client.consumer(ordered=True) as consumer:
        for _ in range(2):
            await client.run_until_interrupted(consumer, handler)
        await run_to_the_end(client, consumer, handler, workers=1)
    assert handler.seen == [*DATA[:4], b"3", b"4", *DATA[4:]]
