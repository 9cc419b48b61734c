"""``GroupConsumer`` for asyncio. Fetches run as tasks of the event loop that entered the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaq.backends.metaq.async_session import AsyncSession
from metaq.backends.metaq.polls import Polled
from metaq.client.groups.async_reader import AsyncGroupReader, from_any_thread
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.fetchers import REQUESTS_MAX, Asked, FetchLog, PartitionsChanged
from metaq.client.groups.metaq_group import Cluster, MetaqCore
from metaq.client.groups.options import ConsumerOptions
from metaq.client.groups.parking import ParkedMessages
from metaq.client.thread_calls import call_in_thread
from metaq.errors import MetaqError

if TYPE_CHECKING:
    import ssl


class AsyncGroupConsumer(AsyncGroupReader[Delivery]):
    """``GroupConsumer`` for ``async with`` and ``async for``. One task reads; use a consumer in one event loop only.

    ``on_assigned`` and ``on_revoked`` may be functions or coroutine functions.
    """

    def __init__(self, cluster: Cluster, options: ConsumerOptions, tls: ssl.SSLContext | None = None) -> None:
        self._metaq, self._tls = MetaqCore(cluster, options), tls
        super().__init__(self._metaq)
        self._tasks: dict[int | str, asyncio.Task[None]] = {}

    @property
    def parked(self) -> ParkedMessages:
        """The messages that this group gave up on this machine."""
        return self._metaq.parked

    def _start_fetching(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.on_brokers = lambda brokers: from_any_thread(loop, self._start_tasks, brokers)

    async def _stop_fetching(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_tasks(self, brokers: set[int | str]) -> None:
        for broker in brokers - set(self._tasks):
            self._tasks[broker] = asyncio.create_task(self._fetch(broker), name=f"metaq-fetch-{broker}")

    async def _fetch(self, broker: int | str) -> None:
        log, session = FetchLog(self._core.group, broker), None
        try:
            while asked := await self._due(broker):
                outcomes: Sequence[Polled | None]
                try:
                    if session is None:
                        session = await self._connect(broker)
                    answers = await session.poll_all([request for _, request in asked])
                    log.answered(answers)
                    outcomes = answers
                except (MetaqError, KeyError, ValueError) as error:
                    log.failed(error)
                    outcomes = [None] * len(asked)
                    if session is not None:
                        await session.close()
                    session = None
                log.jumped(self._metaq.state.fetched(asked, outcomes, self._core.clock.monotonic()))
        except Exception as error:  # the reader raises it
            self._metaq.state.fail(error)
        finally:
            if session is not None:
                await session.close()

    async def _connect(self, broker: int | str) -> AsyncSession:
        cluster = self._metaq.cluster
        if changed := await call_in_thread(self._metaq.coordinator.check_incarnations, broker):
            raise PartitionsChanged(changed)
        addresses = await call_in_thread(cluster.directory.brokers)
        return await AsyncSession.connect(addresses[int(broker)], cluster.pool.timeouts, self._tls)

    async def _due(self, broker: int | str) -> Asked:
        """Wait until requests are due. An empty result ends the task."""
        state, waiter = self._metaq.state, asyncio.Event()
        self._waiters.add(waiter)
        try:
            while True:
                waiter.clear()
                now_s = self._core.clock.monotonic()
                with state.lock:
                    asked = [] if state.closing else state.requests(broker, now_s, REQUESTS_MAX)
                    due_s = state.next_request_s(broker)
                    over = not any(where.partition.broker == broker for where in state.partitions)
                if asked:
                    return asked
                if state.closing or over:
                    del self._tasks[broker]
                    return ()
                await self._wait(waiter, 60.0 if due_s is None else max(0.0, due_s - now_s))
        finally:
            self._waiters.discard(waiter)
