"""What is left for the end of a step is done once, at its end, in order, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metaq_broker.loop_step import LoopStep


def run(story: Callable[[LoopStep, list[str]], None]) -> list[str]:
    """What was done, in order; ``round`` stands between two rounds of the loop."""
    done: list[str] = []

    async def scenario() -> None:
        story(LoopStep.of(asyncio.get_running_loop()), done)
        for _ in range(3):
            done.append("round")
            await asyncio.sleep(0)

    asyncio.run(scenario())
    return done


def test_it_is_done_at_the_end_of_the_step_in_order() -> None:
    def story(step: LoopStep, done: list[str]) -> None:
        def work() -> None:
            step.at_end(lambda: done.append("a"))
            step.at_end(lambda: done.append("b"))
            done.append("inside")

        step.run(work)
        done.append("behind")

    assert run(story) == ["inside", "a", "b", "behind", "round", "round", "round"]


def test_outside_of_a_step_it_is_done_in_the_next_round() -> None:
    def story(step: LoopStep, done: list[str]) -> None:
        step.at_end(lambda: done.append("a"))
        step.at_end(lambda: done.append("b"))
        done.append("behind")

    assert run(story) == ["behind", "round", "a", "b", "round", "round"]


def test_a_step_does_what_was_left_before_it_too_and_nothing_twice() -> None:
    def story(step: LoopStep, done: list[str]) -> None:
        step.at_end(lambda: done.append("before"))
        step.run(lambda: done.append("inside"))

    assert run(story) == ["inside", "before", "round", "round", "round"]


def test_what_is_left_at_the_end_is_done_behind_the_rest() -> None:
    def story(step: LoopStep, done: list[str]) -> None:
        def work() -> None:
            step.at_end(lambda: step.at_end(lambda: done.append("more")))
            step.at_end(lambda: done.append("a"))

        step.run(work)
        done.append("behind")

    assert run(story) == ["a", "more", "behind", "round", "round", "round"]


def test_an_error_is_reported_and_the_others_are_done() -> None:
    faults: list[object] = []

    def story(step: LoopStep, done: list[str]) -> None:
        def work() -> None:
            step.at_end(lambda: done.append(str(1 // 0)))
            step.at_end(lambda: done.append("a"))

        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
        step.run(work)

    assert run(story)[0] == "a"
    assert [type(each) for each in faults] == [ZeroDivisionError]


def test_an_error_inside_of_a_step_is_reported_and_leaves_nothing_undone() -> None:
    faults: list[object] = []

    def story(step: LoopStep, done: list[str]) -> None:
        def work() -> None:
            step.at_end(lambda: done.append("a"))
            raise KeyError("defect")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
        step.run(work)
        done.append("behind")
        step.at_end(lambda: done.append("b"))

    assert run(story)[:4] == ["a", "behind", "round", "b"]
    assert [type(each) for each in faults] == [KeyError]


def test_what_a_cancelled_callback_leaves_is_done_in_the_next_round() -> None:
    faults: list[object] = []

    def story(step: LoopStep, done: list[str]) -> None:
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
        step.at_end(cancelled.result)
        step.at_end(lambda: done.append("a"))

    assert run(story) == ["round", "round", "a", "round"]
    assert [type(each) for each in faults] == [asyncio.CancelledError]
