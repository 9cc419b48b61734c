"""A watch finds the server that holds a question up, has the question asked without it, and asks it again by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from metaq_console.cluster import watch as module
from metaq_console.cluster.watch import ServerWatch
from waiting import until

from metaq.errors import ConnectionFailed, TopicNotFound
from metaq.model import Address

GOOD, BAD = Address("good", 1), Address("bad", 2)
T = TypeVar("T")


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SUSPECT_S", 0.02), ("LOOK_S", 60.0), ("AGAIN_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a server that hangs; a busy machine's other one answers later than at once."""
    monkeypatch.setattr(module, "LOOK_S", 1.0)


class Servers:
    """Two servers; one may hang, or refuse connections."""

    def __init__(self) -> None:
        self.known, self.refused, self.pinged = [GOOD, BAD], False, list[Address]()
        self.answers = threading.Event()
        self.answers.set()
        self.changes = 0
        self.watch = ServerWatch(lambda: self.known, self._ping)
        self.watch.on_change(self._count)

    def _ping(self, address: Address) -> None:
        self.pinged.append(address)
        if address == BAD and self.refused:
            raise ConnectionFailed(address, "connect", "refused")
        if address == BAD:
            assert self.answers.wait(60)

    def _count(self) -> None:
        self.changes += 1

    async def ask(self) -> list[Address]:
        """Ask all servers that are not left out; wait for ever if one of them hangs."""
        asked = [address for address in self.known if address not in self.watch.away()]
        if BAD in asked and self.refused:
            raise ConnectionFailed(BAD, "connect", "refused")
        if BAD in asked and not self.answers.is_set():
            await asyncio.Event().wait()
        return asked


@pytest.fixture
def servers() -> Servers:
    return Servers()


def run(work: Callable[[], Awaitable[T]], seconds: float = 60.0) -> T:
    async def whole() -> T:
        return await asyncio.wait_for(work(), seconds)

    return asyncio.run(whole())


@pytest.mark.usefixtures("short_look")
def test_a_question_is_asked_again_without_the_server_that_hangs(servers: Servers) -> None:
    async def work() -> list[list[Address]]:
        found = [await servers.watch.answered(servers.ask)]
        servers.answers.clear()
        found.append(await servers.watch.answered(servers.ask))
        before = len(servers.pinged)
        found.append(await servers.watch.answered(servers.ask))
        assert len(servers.pinged) == before, "what is known is not looked for"
        servers.answers.set()
        return found

    assert run(work) == [[GOOD, BAD], [GOOD], [GOOD]]
    assert list(servers.watch.silences) == [BAD]
    assert "no answer" in str(servers.watch.away()[BAD])
    assert servers.changes == 1


def test_a_server_that_refuses_connections_is_left_out_at_once(servers: Servers) -> None:
    servers.refused = True
    assert run(lambda: servers.watch.answered(servers.ask)) == [GOOD]
    assert str(servers.watch.away()[BAD]) == str(ConnectionFailed(BAD, "connect", "refused"))


def test_an_error_of_a_server_that_answers_is_raised(servers: Servers) -> None:
    async def lost() -> None:
        raise ConnectionFailed(BAD, "receive", "reset")

    async def unknown() -> None:
        raise TopicNotFound("orders", ["good:1"])

    with pytest.raises(ConnectionFailed):
        run(lambda: servers.watch.answered(lost))
    with pytest.raises(TopicNotFound):
        run(lambda: servers.watch.answered(unknown))
    assert servers.watch.silences == {}


def test_a_slow_question_is_not_asked_twice(servers: Servers) -> None:
    asked: list[int] = []

    async def slow() -> str:
        asked.append(1)
        await asyncio.sleep(0.3)
        return "done"

    assert run(lambda: servers.watch.answered(slow)) == "done"
    assert asked == [1]
    assert set(servers.pinged) == {GOOD, BAD}


@pytest.mark.usefixtures("short_look")
def test_a_silent_server_is_asked_again_in_the_background(servers: Servers) -> None:
    async def work() -> list[Address]:
        servers.answers.clear()
        watching = asyncio.ensure_future(servers.watch.run())
        assert await servers.watch.answered(servers.ask) == [GOOD]
        since_ms = servers.watch.silences[BAD].since_ms
        await until(lambda: servers.pinged.count(BAD) == 3, "the second look is over")
        assert servers.watch.silences[BAD].since_ms == since_ms
        servers.answers.set()
        while servers.watch.silences:
            await asyncio.sleep(0.01)
        watching.cancel()
        return await servers.watch.answered(servers.ask)

    assert run(work) == [GOOD, BAD]
    assert servers.changes == 2


def test_a_server_that_is_no_part_of_the_cluster_any_more_is_forgotten(servers: Servers) -> None:
    async def work() -> None:
        servers.refused = True
        await servers.watch.look()
        assert list(servers.watch.silences) == [BAD]
        servers.known = [GOOD]
        watching = asyncio.ensure_future(servers.watch.run())
        while servers.watch.silences:
            await asyncio.sleep(0.01)
        watching.cancel()

    run(work)


def test_a_caller_that_goes_away_takes_its_question_along(servers: Servers) -> None:
    cancelled: list[int] = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def work() -> None:
        asking = asyncio.ensure_future(servers.watch.answered(stuck))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait({asking})

    run(work)
    assert cancelled == [1]
