"""Pulls that wait: woken, answered at their deadline, forgotten with their connection, limited in number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from metaq_broker.rocketmq.messages.message_store import MessageStore
from metaq_broker.rocketmq.pulls.waiting_pulls import WOKEN_AT_ONCE_MAX, WaitingPull, WaitingPulls
from metaq_broker.rocketmq.session import Call, RemotingSession
from waiting import in_loop


class FakeStore:
    """Queues that are watched; ``wake`` is what the engine does when there is more to read."""

    def __init__(self) -> None:
        self.watches: dict[tuple[str, int], Callable[[], None]] = {}

    def watch(self, topic: str, queue: int, callback: Callable[[], None]) -> Callable[[], None]:
        assert (topic, queue) not in self.watches, "one watch is enough"
        self.watches[topic, queue] = callback
        return lambda: self.watches.pop((topic, queue)) and None

    def wake(self, topic: str = "t", queue: int = 0) -> None:
        self.watches[topic, queue]()


class FakeCall:
    def __init__(self, session: object) -> None:
        self.session = session

    def leave_unanswered(self) -> None:
        """The connection is gone."""


class Scene:
    """Waiting pulls of some connections, and what became of each."""

    def __init__(self, waiting_max: int = 100, per_connection_max: int = 10) -> None:
        self.store = FakeStore()
        self.pulls = WaitingPulls(cast(MessageStore, self.store), waiting_max, per_connection_max)
        self.log: list[str] = []
        self.found: set[str] = set()

    def hold(self, name: str, session: object, queue: int = 0, after_s: float = 60.0) -> None:
        def resume() -> bool:
            self.log.append(f"{name} looks")
            return name in self.found

        deadline = asyncio.get_running_loop().time() + after_s
        call = cast(Call, FakeCall(session))
        self.pulls.hold(WaitingPull(call, "t", queue, deadline, resume, lambda: self.log.append(f"{name} expired")))

    def has_space(self, session: object) -> bool:
        return self.pulls.has_space_for(cast(RemotingSession, session))


@in_loop
async def test_a_pull_is_woken_until_it_is_answered() -> None:
    scene, session = Scene(), object()
    scene.hold("a", session)
    scene.hold("b", session)
    scene.hold("other", session, queue=1)
    scene.found = {"b"}
    scene.store.wake()
    assert scene.log == ["a looks", "b looks"]
    scene.found = {"a"}
    scene.store.wake()
    assert scene.log[2:] == ["a looks"]
    assert list(scene.store.watches) == [("t", 1)], "nobody waits for the other queue any more"
    assert scene.pulls.held == 1


@in_loop
async def test_a_pull_is_answered_at_its_deadline_in_order() -> None:
    scene, session = Scene(), object()
    scene.hold("late", session, after_s=0.05)
    scene.hold("early", session, after_s=0.01)
    scene.hold("never", session, after_s=60)
    while scene.pulls.held > 1:
        await asyncio.sleep(0.005)
    assert scene.log == ["early expired", "late expired"]
    scene.pulls.stop()
    assert scene.log[2:] == ["never expired"]
    assert scene.store.watches == {}


@in_loop
async def test_the_pulls_of_a_lost_connection_are_forgotten() -> None:
    scene, lost, other = Scene(), object(), object()
    scene.hold("lost", lost, after_s=0.01)
    scene.hold("other", other)
    scene.pulls.connection_lost(cast(RemotingSession, lost))
    assert scene.pulls.held == 1
    await asyncio.sleep(0.03)
    scene.store.wake()
    assert scene.log == ["other looks"]


@in_loop
async def test_how_many_may_wait() -> None:
    scene, first, second = Scene(waiting_max=3, per_connection_max=2), object(), object()
    scene.hold("a", first)
    scene.hold("b", first)
    assert (scene.has_space(first), scene.has_space(second)) == (False, True)
    scene.hold("c", second)
    assert not scene.has_space(second)
    scene.found = {"a"}
    scene.store.wake()
    assert (scene.has_space(first), scene.has_space(second)) == (True, True)


@in_loop
async def test_many_pulls_of_one_queue_leave_the_loop_to_others() -> None:
    count = 2 * WOKEN_AT_ONCE_MAX + 5
    scene = Scene(waiting_max=count, per_connection_max=count)
    for number in range(count):
        scene.hold(f"{number}", object())
    scene.found = {f"{number}" for number in range(count)}
    scene.store.wake()
    assert len(scene.log) == WOKEN_AT_ONCE_MAX
    scene.store.wake()  # also while it is at it
    while scene.pulls.held:
        await asyncio.sleep(0)
    assert len(scene.log) == count


@in_loop
async def test_a_message_that_comes_while_many_pulls_are_woken() -> None:
    count = 2 * WOKEN_AT_ONCE_MAX
    scene = Scene(waiting_max=count + 1, per_connection_max=count)
    for number in range(count):
        scene.hold(f"{number}", object())
    scene.store.wake()
    scene.hold("new", object())
    scene.found = {"0", "new"}
    scene.store.wake()  # for one that has looked already, and for one that came behind the first message
    for _ in range(6):
        await asyncio.sleep(0)
    assert scene.pulls.held == count - 1
    looked = len(scene.log)
    await asyncio.sleep(0)
    assert len(scene.log) == looked, "nobody looks without a new message"


@in_loop
async def test_ended_pulls_do_not_pile_up() -> None:
    scene, session = Scene(waiting_max=10_000, per_connection_max=10_000), object()
    for number in range(5000):
        scene.hold(f"{number}", session)
        scene.found = {f"{number}"}
        scene.store.wake()
    assert scene.pulls.held == 0
    assert len(scene.pulls._deadlines) < 2000
