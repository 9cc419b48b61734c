"""Tasks that are cancelled while they open or close something of the client: no file, lock or connection stays open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest
from waiting import in_loop, until

from metaq import AsyncMetaQ, AsyncRocketMQ
from metaq.client.async_producer import AsyncOrderedProducer
from metaq.client.sending.spool import Spool
from metaq.errors import StoreFailed
from metaq.testing.memory_server import MemoryServer

STEPS = 60
"""More than an opening takes of the loop."""


def ordered(mq: AsyncMetaQ, folder: Path) -> AsyncOrderedProducer:
    return mq.ordered_producer({"orders": "0:1"}, folder / "spool")


class Gate:
    """Holds up calls, when they have done their work, until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def behind(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*values: object) -> object:
            done = function(*values)
            self.entered.set()
            assert self.opened.wait(60)
            return done

        return call

    async def reached(self) -> None:
        await until(self.entered.is_set)


async def held_opening(
    mq: AsyncMetaQ, folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Task[AsyncOrderedProducer]:
    """A task that opens an ordered producer, and has come to the gate behind the file's opening."""
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "open", gate.behind(Spool.open))
        opening = asyncio.create_task(ordered(mq, folder).__aenter__())
        await gate.reached()
    return opening


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


@in_loop
async def test_an_ordered_producer_that_is_cancelled_as_it_opens_leaves_its_file(
    metaq_memory: MemoryServer, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metaq_memory.async_client() as mq:
        opening = await held_opening(mq, tmp_path, gate, monkeypatch)
        opening.cancel()
        asyncio.get_running_loop().call_later(0.05, gate.opened.set)
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with ordered(mq, tmp_path) as producer:  # at once
            assert await producer.send("orders", "a") is not None


@in_loop
async def test_who_is_cancelled_twice_does_not_wait_and_the_file_is_closed_later(
    metaq_memory: MemoryServer, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metaq_memory.async_client() as mq:
        opening = await held_opening(mq, tmp_path, gate, monkeypatch)
        for _ in range(2):
            opening.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await opening
        gate.opened.set()
        await until(lambda: is_free(tmp_path / "spool"))


def is_free(path: Path) -> bool:
    """Whether a spool is there that nobody has open."""
    spool = Spool(path)
    try:
        spool.open()
    except StoreFailed:
        return False
    spool.close()
    return True


@pytest.mark.parametrize("step", range(6))
def test_an_ordered_producer_is_cancelled_at_each_step(metaq_memory: MemoryServer, tmp_path: Path, step: int) -> None:
    async def use() -> None:
        async with metaq_memory.async_client() as mq:
            opening = asyncio.create_task(ordered(mq, tmp_path).__aenter__())
            for _ in range(step):
                await asyncio.sleep(0.0005)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                producer = await opening
                await producer.close()  # it was open before
            assert is_free(tmp_path / "spool")

    asyncio.run(use())


def test_what_is_interrupted_as_it_opens_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*values: object, **named: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("metaq.client.sending.spool.sqlite3.connect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Spool(tmp_path / "spool").open()
    assert is_free(tmp_path / "spool")


def test_an_ordered_producer_without_a_thread_leaves_its_file(
    metaq_memory: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with metaq_memory.client() as mq:
        producer = mq.ordered_producer({"orders": "0:1"}, tmp_path / "spool")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="new thread"):
                producer.__enter__()
        assert is_free(tmp_path / "spool")


def test_an_ordered_producer_that_was_closed_does_not_open_its_file_again(
    metaq_memory: MemoryServer, tmp_path: Path
) -> None:
    with metaq_memory.client() as mq:
        producer = mq.ordered_producer({"orders": "0:1"}, tmp_path / "spool")
        with producer:
            pass
        with pytest.raises(ValueError, match="the ordered producer is closed"):
            producer.__enter__()
        assert is_free(tmp_path / "spool")


# ---- closing while no thread is free


async def leave_cancelled(block: AbstractAsyncContextManager[object]) -> None:
    """Leave a block by a cancel, while the only thread for calls is busy."""
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(executor := ThreadPoolExecutor(1))
    await block.__aenter__()
    executor.submit(free.wait, 20)
    leaving = asyncio.ensure_future(block.__aexit__(None, None, None))
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    free.set()


@in_loop
async def test_an_ordered_producer_that_no_thread_was_free_to_close_is_closed(
    metaq_memory: MemoryServer, tmp_path: Path
) -> None:
    async with metaq_memory.async_client() as mq:
        await leave_cancelled(ordered(mq, tmp_path))
        await until(lambda: is_free(tmp_path / "spool"))


@in_loop
async def test_a_transaction_that_no_thread_was_free_to_roll_back_is_rolled_back(metaq_memory: MemoryServer) -> None:
    async with metaq_memory.async_client() as mq:
        transaction = mq.producer().transaction()
        await transaction.send("orders", "a")
        await leave_cancelled(transaction)  # committed: the block was left without an error
        with metaq_memory.client() as reader:
            await until(lambda: [message.data for message in reader.browse("orders")] == [b"a"])


@pytest.mark.parametrize("kind", ["metaq", "rocketmq"])
def test_a_client_that_no_thread_was_free_to_close_is_closed(
    kind: str, metaq_memory: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()

    async def use() -> None:
        mq: AsyncMetaQ | AsyncRocketMQ = metaq_memory.async_client()
        if kind == "rocketmq":
            mq = AsyncRocketMQ("127.0.0.1:9876")
        monkeypatch.setattr(mq._blocking, "close", lambda timeout: closed.set())
        await leave_cancelled(mq)

    asyncio.run(use())
    assert closed.wait(60)
