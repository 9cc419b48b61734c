"""The light future of a message in an event loop behaves as that of asyncio, whoever comes first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import pytest
from waiting import in_loop

from metaq.client.async_submissions import _Settlements
from metaq.client.batches import Batch
from metaq.client.futures import awaited_future_of


class Sender(Protocol):
    """A future, and who sends its message in another thread."""

    future: asyncio.Future[int]

    async def succeed(self, result: int) -> None: ...
    async def fail(self, error: Exception) -> None: ...


class Ordinary:
    """That of asyncio."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[int] = self.loop.create_future()

    async def succeed(self, result: int) -> None:
        if not self.future.done():
            await asyncio.to_thread(self.loop.call_soon_threadsafe, self.future.set_result, result)

    async def fail(self, error: Exception) -> None:
        await asyncio.to_thread(self.loop.call_soon_threadsafe, self.future.set_exception, error)


class Row:
    """That of a message in a batch."""

    def __init__(self) -> None:
        self.batch: Batch[str, int] = Batch("orders", 0)
        self.batch.messages = ["before", "it", "behind"]
        self.batch.submitter_loop = _Settlements[str, int](asyncio.get_running_loop())
        self.future = awaited_future_of((self.batch, 1))

    async def succeed(self, result: int) -> None:
        await asyncio.to_thread(self.batch.settle, [-1, result, -2])

    async def fail(self, error: Exception) -> None:
        await asyncio.to_thread(self.batch.settle, [-1, None, -2], error)


KINDS = pytest.mark.parametrize("kind", [Ordinary, Row])


@KINDS
@in_loop
async def test_a_result_is_there_once_it_is_settled(kind: Callable[[], Sender]) -> None:
    sender = kind()
    assert not sender.future.done()
    with pytest.raises(asyncio.InvalidStateError):
        sender.future.result()
    await sender.succeed(7)
    await asyncio.sleep(0)
    assert (sender.future.done(), sender.future.cancelled()) == (True, False)
    assert sender.future.result() == 7
    assert sender.future.exception() is None
    assert await sender.future == 7
    assert not sender.future.cancel()
    with pytest.raises(asyncio.InvalidStateError):
        sender.future.set_result(8)
    assert "result=7" in repr(sender.future)


@KINDS
@in_loop
async def test_it_is_settled_while_it_is_awaited(kind: Callable[[], Sender]) -> None:
    sender = kind()
    called: list[int] = []
    sender.future.add_done_callback(lambda future: called.append(future.result()))
    dropped = called.append
    sender.future.add_done_callback(dropped)  # type: ignore[arg-type]
    assert sender.future.remove_done_callback(dropped) == 1  # type: ignore[arg-type]
    waiting = [asyncio.create_task(asyncio.wait_for(sender.future, 10)), asyncio.gather(sender.future)]
    await asyncio.sleep(0)
    assert "pending" in repr(sender.future)
    await sender.succeed(7)
    assert await asyncio.gather(*waiting) == [7, [7]]
    assert called == [7]
    assert sender.future.get_loop() is asyncio.get_running_loop()


@KINDS
@in_loop
async def test_a_failure_is_raised(kind: Callable[[], Sender]) -> None:
    before, behind = kind(), kind()
    waiting = asyncio.create_task(asyncio.wait_for(before.future, 10))
    await asyncio.sleep(0)
    for sender in (before, behind):
        await sender.fail(OSError("away"))
    with pytest.raises(OSError, match="away"):
        await waiting
    with pytest.raises(OSError, match="away"):
        await behind.future
    assert isinstance(behind.future.exception(), OSError)


@KINDS
@in_loop
async def test_what_was_cancelled_stays_so(kind: Callable[[], Sender]) -> None:
    sender = kind()
    assert sender.future.cancel()
    assert (sender.future.done(), sender.future.cancelled()) == (True, True)
    await sender.succeed(7)
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await sender.future


@pytest.mark.parametrize("settled", [False, True])
def test_a_loop_waits_for_it_from_outside(settled: bool) -> None:
    async def row() -> Row:
        return Row()

    loop = asyncio.new_event_loop()
    try:
        made = loop.run_until_complete(row())
        if settled:
            loop.run_until_complete(made.succeed(7))
        else:
            loop.call_later(0.01, made.batch.settle, [-1, 7, -2])
        assert loop.run_until_complete(made.future) == 7
    finally:
        loop.close()


@pytest.mark.parametrize("asked", [False, True])
def test_failures_that_nobody_asks_for_are_logged(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        row = Row()
        await row.fail(OSError("away"))
        if asked:
            assert row.future.exception()

    with caplog.at_level(logging.ERROR, "metaq"):
        asyncio.run(fail())
    logged = ["1 messages to orders were not acknowledged, and their futures were never awaited: away"]
    assert caplog.messages == ([] if asked else logged)
