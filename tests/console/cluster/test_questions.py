"""Questions have deadlines, their number is bounded, and what many ask is asked once."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
from metaq_console.cluster.questions import SLOW_S, STALE_S, Questions
from metaq_console.errors import RequestFailed

from metaq.discovery.kept import FRESH_S_MAX, FRESH_SHARE
from metaq.errors import TopicNotFound

DEADLINE_S = 60.0


class Gate:
    """A call that waits until it is opened, and counts how often it was made."""

    def __init__(self) -> None:
        self.opened, self.began, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self) -> str:
        self.calls += 1
        self.began.set()
        assert self.opened.wait(DEADLINE_S)
        return "answer"


@pytest.fixture
def gate() -> Gate:
    return Gate()


def run(work: Callable[[], object]) -> object:
    async def whole() -> object:
        return await work()  # type: ignore[misc]

    return asyncio.run(whole())


def test_a_question_that_hangs_ends_at_its_deadline(gate: Gate) -> None:
    async def work() -> str:
        with pytest.raises(RequestFailed) as failed:
            await Questions(within_s=60).ask(gate, what="topics", within_s=0.05)
        gate.opened.set()
        return f"{failed.value.status} {failed.value}"

    assert run(work) == "504 topics: no answer within 0.05 s"


def test_a_question_that_hangs_keeps_its_slot_until_its_thread_ends(gate: Gate) -> None:
    async def work() -> str:
        questions = Questions(within_s=60, running_max=1)
        with pytest.raises(RequestFailed):
            await questions.ask(gate, what="first", within_s=0.05)
        with pytest.raises(RequestFailed) as failed:
            await questions.ask(lambda: "second", what="second", within_s=0.05)
        gate.opened.set()
        assert await questions.ask(lambda: "third", what="third") == "third"
        return str(failed.value)

    assert run(work) == "second: no answer within 0.05 s"


def test_what_many_ask_is_asked_once(gate: Gate) -> None:
    async def work() -> list[str]:
        questions = Questions(within_s=60)
        asked = [asyncio.ensure_future(questions.shared("topics", gate, what="topics", fresh_s=60)) for _ in range(5)]
        await asyncio.to_thread(gate.began.wait, DEADLINE_S)
        asked[0].cancel()  # a client that goes away does not take the others' answer with it
        gate.opened.set()
        found = await asyncio.gather(*asked[1:])
        found.append(await questions.shared("topics", gate, what="topics", fresh_s=60))
        return found

    assert run(work) == ["answer"] * 5
    assert gate.calls == 1


class SteppedClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("took_s", "waits"), [(SLOW_S / 2, True), (2 * SLOW_S, False)])
def test_nobody_waits_for_the_next_answer_to_a_slow_question(took_s: float, waits: bool) -> None:
    clock, calls = SteppedClock(), list[int]()

    def call() -> int:
        calls.append(len(calls))
        clock.sleep(took_s)
        return calls[-1]

    async def work() -> list[int]:
        questions = Questions(within_s=60, clock=clock)

        async def ask() -> int:
            return await questions.shared("topics", call, what="topics", fresh_s=1)

        found = [await ask(), await ask()]
        clock.sleep(max(1, took_s * FRESH_SHARE) + 1)
        found.append(await ask())
        while await ask() != 1:  # the next answer is on its way
            await asyncio.sleep(0.001)
        clock.sleep(FRESH_S_MAX + STALE_S + 1)
        return [*found, await ask()]

    assert run(work) == [0, 0, 1 if waits else 0, 2]


def test_an_answer_that_is_live_serves_no_longer_for_having_taken_long() -> None:
    clock, calls = SteppedClock(), list[int]()

    def call() -> int:
        calls.append(len(calls))
        clock.sleep(2 * SLOW_S)
        return calls[-1]

    async def work() -> list[int]:
        questions = Questions(within_s=60, clock=clock)

        async def ask() -> int:
            return await questions.shared("newest", call, what="newest", fresh_s=1, is_live=True)

        found = [await ask(), await ask()]
        clock.sleep(1)
        return [*found, await ask()]

    assert run(work) == [0, 0, 1]


class Answer:
    """One that may be large."""


@pytest.mark.parametrize("took_s", [0.0, 2 * SLOW_S])
def test_an_answer_that_serves_nobody_any_more_is_dropped(took_s: float) -> None:
    clock = SteppedClock()

    def call() -> Answer:
        clock.sleep(took_s)
        return Answer()

    async def work() -> list[bool]:
        questions = Questions(within_s=60, clock=clock)

        async def ask(key: str) -> Answer:
            return await questions.shared(key, call, what=key, fresh_s=3)

        first = weakref.ref(await ask("newest of orders"))
        await ask("newest of bills")
        kept = first() is not None
        clock.sleep(FRESH_S_MAX + STALE_S + 1)
        await ask("newest of carts")
        gc.collect()
        return [kept, first() is not None]

    assert run(work) == [True, False]


def test_a_slow_question_that_fails_is_said_to_the_next_one_that_asks() -> None:
    clock, calls = SteppedClock(), list[int]()

    def fail_later() -> str:
        calls.append(1)
        clock.sleep(2 * SLOW_S)
        if len(calls) > 1:
            raise TopicNotFound("orders", ["127.0.0.1:8123"])
        return "there"

    async def work() -> str:
        questions = Questions(within_s=60, clock=clock)

        async def ask() -> str:
            return await questions.shared("topic", fail_later, what="topic", fresh_s=1)

        found = await ask()
        clock.sleep(2 * SLOW_S * FRESH_SHARE + 1)
        found += await ask()
        async def ask_until_it_fails() -> None:
            while await ask():
                await asyncio.sleep(0.001)

        with pytest.raises(TopicNotFound):
            await ask_until_it_fails()
        return found

    assert run(work) == "therethere"


def test_what_is_forgotten_while_it_is_asked_is_asked_again(gate: Gate) -> None:
    async def work() -> str:
        questions = Questions(within_s=60)
        first = asyncio.ensure_future(questions.shared("topics", gate, what="topics", fresh_s=60))
        await asyncio.to_thread(gate.began.wait, DEADLINE_S)
        questions.forget()
        gate.opened.set()
        await first
        return await questions.shared("topics", gate, what="topics", fresh_s=60)

    assert run(work) == "answer"
    assert gate.calls == 2


def test_an_error_is_not_kept() -> None:
    calls = []

    def fail_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise TopicNotFound("orders", ["127.0.0.1:8123"])
        return "there"

    async def work() -> str:
        questions = Questions(within_s=60)
        with pytest.raises(TopicNotFound):
            await questions.shared("topic", fail_once, what="topic", fresh_s=60)
        return await questions.shared("topic", fail_once, what="topic", fresh_s=60)

    assert run(work) == "there"
