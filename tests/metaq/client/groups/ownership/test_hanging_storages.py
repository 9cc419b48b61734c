"""A storage of offsets that does not answer, as a frozen database: what it holds up ends, and is said."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from examples import rarely
from fix_broker import wait_until
from local_servers import LoopThread, broker_thread
from storage_contract import P0

from metaq import AsyncRocketMQ, RocketMQ
from metaq.client.groups.ownership import bounded as bounds
from metaq.client.groups.ownership import coordinator
from metaq.client.groups.ownership.bounded import BoundedStorage, bounded
from metaq.client.offsets import (
    ConditionalStorage,
    FileOffsets,
    GroupOffset,
    IncarnationStorage,
    MemoryOffsets,
    OffsetStorage,
)
from metaq.client.sql_offsets import SqliteOffsets
from metaq.errors import StoreFailed
from metaq.model import Partition
from metaq.testing.memory_server import MemoryServer
from metaq.testing.ports import free_port

SAYS = "does not answer"
LONG_S = 60.0


class Frozen:
    """A storage that hangs while ``answers`` is not set. Nobody waits for it for long then; while it answers, a busy
    machine may need longer.
    """

    def __init__(self, storage: Any) -> None:
        self.storage, self.answers, self.calls, self.running = storage, threading.Event(), list[str](), 0
        self.answers.set()
        self.is_closed = False

    def hang(self) -> None:
        bounds.SLOW_S, bounds.ANSWER_S = 0.05, 0.3  # type: ignore[misc]
        self.answers.clear()

    def thaw(self) -> None:
        bounds.SLOW_S = bounds.ANSWER_S = LONG_S  # type: ignore[misc]
        self.answers.set()

    def call(self, name: str, *values: Any) -> Any:
        self.calls.append(name)
        self.running += 1
        assert self.running == 1, "one call at a time"
        self.answers.wait()
        self.running -= 1
        return getattr(self.storage, name)(*values)

    def load(self, *values: Any) -> Any:
        return self.call("load", *values)

    def save(self, *values: Any) -> Any:
        return self.call("save", *values)

    def close(self) -> None:
        assert self.running == 0
        self.is_closed = True
        self.storage.close()


class FrozenConditional(Frozen):
    """One that also compares."""

    def save_if_unchanged(self, *values: Any) -> Any:
        return self.call("save_if_unchanged", *values)


STORAGES: dict[str, Callable[[Path], Frozen]] = {
    "load and save": lambda folder: Frozen(MemoryOffsets()),
    "file": lambda folder: FrozenConditional(FileOffsets(folder / "offsets.json")),
    "sql": lambda folder: FrozenConditional(SqliteOffsets(folder / "offsets.sqlite")),
}


@pytest.fixture(params=["load and save", *rarely("file"), "sql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Frozen]:
    made = STORAGES[request.param](tmp_path)
    yield made
    made.thaw()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a storage that answers; ``Frozen`` changes them."""
    monkeypatch.setattr(bounds, "SLOW_S", LONG_S)
    monkeypatch.setattr(bounds, "ANSWER_S", LONG_S)


class Reader:
    """A consumer of threads or of asyncio, used alike."""

    def __init__(self, client: Any, storage: Frozen, loop: LoopThread | None) -> None:
        self._loop = loop
        self.consumer = client.consumer("g", ["orders"], offsets=storage, save_s=0.05, poll_max_s=0.05)
        self._ask(self.consumer.__enter__ if loop is None else self.consumer.__aenter__)

    def _ask(self, method: Callable[..., Any], *values: Any, **named: Any) -> Any:
        outcome = method(*values, **named)
        return self._loop.run(outcome) if self._loop is not None and asyncio.iscoroutine(outcome) else outcome

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [one.data for one in self.fetch(1, 20)]
        return found

    def fetch(self, count: int, timeout: float) -> list[Any]:
        found: list[Any] = self._ask(self.consumer.fetch, count, timeout=timeout)
        return found

    def commit(self) -> None:
        self._ask(self.consumer.commit)

    def close(self) -> None:
        self._ask(*((self.consumer.close,) if self._loop is None else (self.consumer.__aexit__, None, None, None)))


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["metaq", "rocketmq"])
def make(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Callable[[Frozen], Reader]]:
    """Makes a consumer of three messages in one partition."""
    texts = ["0", "1", "2"]
    with ExitStack() as stack:
        loop = stack.enter_context(closing(LoopThread())) if kind == "asyncio" else None

        def close(client: Any) -> None:
            client.close() if loop is None else loop.run(client.__aexit__(None, None, None))

        if request.param == "metaq":
            server: MemoryServer = request.getfixturevalue("metaq_memory")
            with server.client() as mq:
                mq.producer().send_many("orders", texts, partition=Partition(0, 0))
            client: Any = server.client() if loop is None else server.async_client()
        else:
            port = free_port()
            section = f"[rocketmq]\nenabled=true\nport={port}\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\n"
            stack.enter_context(broker_thread(tmp_path / "broker", f"[topic=*]\n{section}"))
            with RocketMQ(f"127.0.0.1:{port}") as rocketmq:
                rocketmq.producer().send_many("orders", texts, partition=Partition("broker-a", 0))
            client = RocketMQ(f"127.0.0.1:{port}") if loop is None else AsyncRocketMQ(f"127.0.0.1:{port}")
        stack.callback(close, client)
        yield lambda storage: Reader(client, storage, loop)


def test_a_consumer_that_begins_says_what_it_waits_for_and_goes_on(
    make: Callable[[Frozen], Reader], storage: Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    storage.hang()
    reader = make(storage)
    assert reader.fetch(1, 0.5) == []
    wait_until(lambda: SAYS in (reader.consumer.paused or ""), "the consumer says why it reads nothing")
    wait_until(lambda: any(SAYS in text for text in warnings_of(caplog)), "the log says it")
    storage.thaw()
    assert reader.read(3) == [b"0", b"1", b"2"]
    assert reader.consumer.paused is None
    reader.close()
    assert len([text for text in warnings_of(caplog) if SAYS in text]) == 1
    assert storage.is_closed


def test_reading_goes_on_and_the_end_names_what_is_not_saved(
    make: Callable[[Frozen], Reader],
    storage: Frozen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "STORAGE_S", 0.1)
    reader = make(storage)
    found = reader.read(1)
    reader.commit()
    storage.hang()
    found += reader.read(2)
    assert found == [b"0", b"1", b"2"]
    with pytest.raises(StoreFailed, match=SAYS) as failed:
        reader.commit()
    assert failed.value.retryable
    wait_until(lambda: any(SAYS in text for text in warnings_of(caplog)), "the log says it")
    began_s = time.monotonic()
    reader.close()
    assert time.monotonic() - began_s < 60
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "the last positions are not saved, messages of orders" in said
    assert SAYS in said
    assert not storage.is_closed, "it is in use"
    storage.thaw()
    wait_until(lambda: storage.is_closed, "what hung has returned")


def test_positions_are_saved_when_the_storage_answers_again(
    make: Callable[[Frozen], Reader], storage: Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make(storage)
    reader.read(1)
    storage.hang()
    reader.read(2)
    with pytest.raises(StoreFailed, match=SAYS):
        reader.commit()
    storage.thaw()
    where = min(one for one in reader.consumer.assignment if one.topic == "orders")
    wait_until(lambda: saved(storage, where) == position(reader, where), "the last position is saved by itself")
    reader.close()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_nothing_is_called_while_another_call_hangs() -> None:
    frozen = Frozen(MemoryOffsets())
    frozen.hang()
    storage = bounded(frozen)
    said: list[str] = []
    storage.on_slow = said.append
    for _ in range(5):
        with pytest.raises(StoreFailed, match=SAYS):
            storage.load("g", [P0])
    assert frozen.calls == ["load"]
    assert len(said) == 1
    frozen.thaw()
    wait_until(lambda: storage._running is None, "it has returned")
    storage.save("g", {P0: GroupOffset(7)})
    assert storage.load("g", [P0]) == {P0: GroupOffset(7)}
    storage.close()
    assert frozen.is_closed


def test_a_consumer_that_ends_does_not_wait_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ANSWER_S", 3600.0)
    frozen = Frozen(MemoryOffsets())
    frozen.answers.clear()
    storage = bounded(frozen)
    threading.Timer(0.1, storage.hurry, [0.05]).start()
    with pytest.raises(StoreFailed, match=SAYS):
        storage.load("g", [P0])
    storage.close()
    frozen.answers.set()
    wait_until(lambda: frozen.is_closed, "it is closed when the call has returned")


@pytest.mark.parametrize("storage_of", [*STORAGES.values(), lambda folder: MemoryOffsets()])
def test_it_can_do_what_the_storage_can(storage_of: Callable[[Path], OffsetStorage], tmp_path: Path) -> None:
    storage = storage_of(tmp_path)
    for ability in (ConditionalStorage, IncarnationStorage):
        assert isinstance(bounded(storage), ability) == isinstance(storage, ability)


def test_what_a_storage_raises_is_raised() -> None:
    storage: BoundedStorage = bounded(MemoryOffsets())
    with pytest.raises(TypeError):
        storage.load("g", 7)  # type: ignore[arg-type]
    assert storage.load("g", [P0]) == {}


def saved(storage: Frozen, where: Any) -> int | None:
    """What the storage really has."""
    found = storage.storage.load("g", [where])
    return found[where].offset if where in found else None


def position(reader: Reader, where: Any) -> int:
    """Where the consumer is."""
    offset: int = reader.consumer._core.positions()[where]
    return offset


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log warns of."""
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
