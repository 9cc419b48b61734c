"""``submit`` waits for the brokers of a topic as long as its program allows: threads and tasks alike."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from waiting import in_loop

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.client.sending.topic_lookups import TopicLookups
from metaq.errors import TopicLookupTimeout, TopicNotFound


class HangingLookUp:
    """A look-up that takes until ``answer`` is set, and what it was asked."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.answer, self.asked, self._failure = threading.Event(), list[str](), failure

    def __call__(self, topic: str) -> None:
        self.asked.append(topic)
        assert self.answer.wait(60)
        if self._failure is not None:
            raise self._failure


def test_a_caller_waits_for_its_time_and_the_look_up_goes_on() -> None:
    lookups, look_up = TopicLookups(0.01), HangingLookUp()
    for _ in range(3):
        with pytest.raises(TopicLookupTimeout, match=r"topic 'orders': message not taken, .* not found within 0.01 s"):
            lookups.wait("orders", look_up)
    assert look_up.asked == ["orders"], "they wait for the same one"
    look_up.answer.set()
    TopicLookups(60).wait("orders", look_up)


@in_loop
async def test_a_task_waits_likewise_and_a_cancelled_one_leaves_others() -> None:
    lookups, look_up = TopicLookups(60), HangingLookUp(TopicNotFound("orders", [], []))
    waiting = [asyncio.create_task(lookups.wait_in_loop("orders", look_up)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    look_up.answer.set()
    outcomes = await asyncio.gather(*waiting[1:], return_exceptions=True)
    assert [type(each) for each in outcomes] == [TopicNotFound] * 2
    assert look_up.asked == ["orders"]
    with pytest.raises(TopicLookupTimeout):
        await TopicLookups(0.01).wait_in_loop("orders", HangingLookUp())


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of a server that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", [MetaQ, RocketMQ])
def test_submit_does_not_wait_longer_for_a_server_that_hangs(kind: type[MetaQ] | type[RocketMQ], hanging: str) -> None:
    with kind(hanging) as mq, mq.producer(max_block_s=0.05) as producer:
        for _ in range(2):
            with pytest.raises(TopicLookupTimeout, match=r"not found within 0\.05 s"):
                producer.submit("orders", b"one tea")


@pytest.mark.parametrize("kind", [AsyncMetaQ, AsyncRocketMQ])
@in_loop
async def test_nor_does_it_in_a_loop(kind: type[AsyncMetaQ] | type[AsyncRocketMQ], hanging: str) -> None:
    async with kind(hanging) as mq, mq.producer(max_block_s=0.05) as producer:
        sends = [producer.submit("orders", b"one tea"), producer.send("orders", b"one tea")]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(each) for each in outcomes] == [TopicLookupTimeout] * 2


@pytest.mark.parametrize("max_block_s", [0, -1, 86_401, float("nan")])
def test_a_wrong_limit_is_named(max_block_s: float, hanging: str) -> None:
    for kind in (MetaQ, RocketMQ):
        with kind(hanging) as mq, pytest.raises(ValueError, match=r"max_block_s .*: expected seconds above 0, up to"):
            mq.producer(max_block_s=max_block_s)
