"""``await submit``: futures of the loop, a window that is awaited, loops one after the other. Brokers are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from test_submissions import Setting
from waiting import in_loop

from metaq.client.async_producer import AsyncProducer
from metaq.errors import SendFailed, WindowFull
from metaq.formats.frames import walk
from metaq.model import Message, Partition
from metaq.protocols.text.commands import Command, PutBatch


@pytest.fixture
def setting() -> Iterator[Setting]:
    with Setting() as made:
        yield made


def producer_of(setting: Setting, **options: Any) -> AsyncProducer:
    waits = "on_overflow" not in options
    return AsyncProducer(setting.producer(**{"on_overflow": "raise"} | options), wait_for_window=waits)


@in_loop
async def test_every_future_gets_the_place_of_its_own_message(setting: Setting) -> None:
    def partition(index: int) -> bytes:
        return setting.broker.partition("orders", index).content()

    async with producer_of(setting, linger_s=0.01) as producer:
        futures = [await producer.submit("orders", b"%d" % number) for number in range(3000)]
        sent = await asyncio.gather(*futures)
    for index in (0, 1):
        stored = [(f.message.payload, f.offset, f.message_id) for f in walk(partition(index))]
        given = [(b"%d" % n, s.offset, s.message_id) for n, s in enumerate(sent) if s.partition.index == index]
        assert stored == given
    assert setting.puts < 20


@in_loop
async def test_what_was_cancelled_is_not_sent_and_those_beside_it_are(setting: Setting) -> None:
    async with producer_of(setting, linger_s=60) as producer:
        here = Partition(0, 0)
        first, second, third = [await producer.submit("orders", text, partition=here) for text in ("a", "bb", "c")]
        assert second.cancel()
        assert await producer.flush(60)
        assert (first.result().offset, third.result().offset) == (0, 21)
    assert setting.stored(0) == [b"a", b"c"]


@in_loop
async def test_a_full_window_is_awaited(setting: Setting) -> None:
    async with producer_of(setting, window=1000, linger_s=60) as producer:
        setting.gate.clear()
        await producer.submit("orders", b"x" * 900)
        waiting = asyncio.create_task(producer.submit("orders", b"y" * 900))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        setting.gate.set()
        assert (await (await asyncio.wait_for(waiting, 10))).message_id


@in_loop
async def test_a_full_window_raises_or_gives_the_message_away(setting: Setting) -> None:
    given: list[Message] = []

    setting.gate.clear()
    async with (
        producer_of(setting, window=1000, on_overflow="raise") as raises,
        producer_of(setting, window=1000, on_overflow=lambda topic, message: given.append(message)) as gives,
    ):
        for producer in (raises, gives):
            await producer.submit("orders", b"x" * 900)
        with pytest.raises(WindowFull):
            await raises.submit("orders", b"y" * 900)
        with pytest.raises(WindowFull):
            await (await gives.submit("orders", b"y" * 900, attribute="a"))
        setting.gate.set()
    assert given == [Message(b"y" * 900, "a")]


@in_loop
async def test_a_failure_is_raised_where_a_message_is_awaited(setting: Setting) -> None:
    def refuse(command: Command) -> None:
        if isinstance(command, PutBatch) and command.partition == 1:
            setting.broker.topics["orders"] = 1  # wrong partition from now on

    async with producer_of(setting, linger_s=0.2) as producer:
        futures = [await producer.submit("orders", "x", partition=Partition(0, index)) for index in (0, 1)]
        setting.broker.before_command = refuse
        assert (await futures[0]).partition == Partition(0, 0)
        with pytest.raises(SendFailed, match="wrong partition 1"):
            await futures[1]


def test_each_loop_gets_what_was_submitted_in_it(setting: Setting) -> None:
    producer = producer_of(setting, linger_s=0.2)
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        first = one.run_until_complete(producer.submit("orders", "first", partition=Partition(0, 0)))
        second = other.run_until_complete(producer.submit("orders", "second", partition=Partition(0, 0)))
        assert other.run_until_complete(asyncio.wait_for(second, 10)).offset == 25
        assert one.run_until_complete(asyncio.wait_for(first, 10)).offset == 0
        other.run_until_complete(producer.close())
    finally:
        one.close()
        other.close()


@in_loop
async def test_a_message_without_a_future_after_ctrl_c_confuses_no_other(setting: Setting) -> None:
    async with producer_of(setting, linger_s=60) as producer:
        here = Partition(0, 0)
        first = await producer.submit("orders", b"a", partition=here)
        _, frame = producer._blocking.prepare("orders", b"bb", None, here, None)
        producer._blocking.submissions.put("orders", here, frame, len(frame))
        third = await producer.submit("orders", b"c", partition=here)
        await producer.flush(60)
        assert [(await one).offset for one in (first, third)] == [0, 21 + 22]
