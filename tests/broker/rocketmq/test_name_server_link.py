"""What one name server is told, in which order, and when those who wait hear that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from metaq_broker.rocketmq.name_server_link import NameServerLink
from waiting import in_loop, until

from metaq.model import Address


class NameServer:
    """Answers registrations with ``fault`` once it may, and notes their topics and what is added to the version."""

    def __init__(self) -> None:
        self.told: list[tuple[list[str] | None, int]] = []
        self.fault: str | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.link = NameServerLink(Address("127.0.0.1", 9876), self._register, 3600.0)
        self.task = asyncio.get_running_loop().create_task(self.link.run())
        self.known: list[str] = []

    async def _register(self, topics: Collection[str] | None, doubts: int) -> str | None:
        self.told.append((None if topics is None else sorted(topics), doubts))
        await self.may_answer.wait()
        return self.fault

    def waits(self, name: str) -> bool:
        return self.link.when_known(lambda: self.known.append(name))

    async def has(self, *told: tuple[list[str] | None, int]) -> None:
        await until(lambda: self.told == list(told), f"it is told {told}, not {self.told}")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.rocketmq.name_server_link.AGAIN_S", 0.01)


@in_loop
async def test_all_topics_first_and_then_those_that_change() -> None:
    server = NameServer()
    assert server.waits("start")
    await until(lambda: server.known == ["start"])
    assert not server.waits("nothing new")
    server.may_answer.clear()
    server.link.change("a")
    assert server.waits("a")
    await server.has((None, 0), (["a"], 0))
    server.link.change("b")
    server.link.change("c")
    assert server.waits("c")
    server.may_answer.set()
    await until(lambda: server.known == ["start", "a", "c"])
    await server.has((None, 0), (["a"], 0), (["b", "c"], 0))
    server.link.change(None)
    await server.has((None, 0), (["a"], 0), (["b", "c"], 0), (None, 0))
    server.task.cancel()


@in_loop
async def test_after_a_failure_it_is_told_all_by_another_version() -> None:
    server = NameServer()
    await server.has((None, 0))
    server.fault = "code 1"
    server.link.change("a")
    assert server.waits("a")
    await until(lambda: server.known == ["a"], "it is not waited for any longer")
    assert not server.waits("while it fails")
    server.fault = None
    await until(lambda: server.told[-1][0] is None and not server.waits("x"), "it is told all again")
    assert server.told[:2] == [(None, 0), (["a"], 0)]
    doubts = [each for topics, each in server.told[2:] if topics is None]
    assert doubts == list(range(1, len(doubts) + 1))
    server.task.cancel()


@in_loop
async def test_after_a_connection_that_ended_too() -> None:
    server = NameServer()
    await server.has((None, 0))
    await until(lambda: not server.waits("start"))
    server.link.connection_ended()
    assert server.waits("again")
    await server.has((None, 0), (None, 1))
    await until(lambda: "again" in server.known)
    server.task.cancel()


@in_loop
async def test_a_connection_that_ends_meanwhile_leaves_nothing_known() -> None:
    server = NameServer()
    server.may_answer.clear()
    await server.has((None, 0))
    server.link.connection_ended()
    assert server.waits("all")
    server.may_answer.set()
    await server.has((None, 0), (None, 1))
    await until(lambda: server.known == ["all"])
    server.task.cancel()


@in_loop
async def test_who_waits_at_the_stop_is_called_back() -> None:
    server = NameServer()
    server.may_answer.clear()
    assert server.waits("stop")
    server.task.cancel()
    server.link.release()
    await until(lambda: server.known == ["stop"])
