"""A client whose closing is cancelled is closed all the same, without the cancelled task."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from metaq.client.shells import INTERRUPTED_S, AsyncClient, BlockingClient


class _Client:
    """What ``AsyncClient`` uses of a blocking client."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.timeouts: list[float | None] = []

    def _require_open(self) -> None:
        pass

    def close(self, timeout: float | None = None) -> None:
        self.timeouts.append(timeout)
        self.closed.set()


class _Consumer:
    """One whose broker hangs: leaving its group takes for ever; with ``error``, it fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ending = asyncio.Event()

    async def _end_with_client(self, timeout: float | None = None) -> None:
        self.ending.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


def test_a_client_is_closed_although_the_task_is_cancelled_while_a_consumer_leaves() -> None:
    async def run() -> _Client:
        blocking = _Client()
        client: AsyncClient[Any] = AsyncClient(cast("BlockingClient", blocking))
        consumers = [client._ends(_Consumer()) for _ in range(2)]
        closing = asyncio.create_task(client.close())
        for each in consumers:  # at the same time: one that hangs does not keep another in its group
            await asyncio.wait_for(each.ending.wait(), 60)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return blocking

    blocking = asyncio.run(run())
    assert blocking.closed.wait(60)
    assert blocking.timeouts == [INTERRUPTED_S]


def test_a_client_is_closed_although_a_consumer_fails_to_leave() -> None:
    async def run() -> _Client:
        blocking = _Client()
        client: AsyncClient[Any] = AsyncClient(cast("BlockingClient", blocking))
        consumer = client._ends(_Consumer(OSError("the disk is full")))
        with pytest.raises(OSError, match="the disk is full"):
            await client.close()
        assert consumer.ending.is_set()
        return blocking

    assert asyncio.run(run()).closed.wait(60)
