"""Reading as a member of a group with asyncio: the event loop awaits and hands out messages.

Threads fetch them and save positions, as for the threaded reader: clients of registries have threads of their own, and
files and databases block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from inspect import isawaitable
from types import TracebackType
from typing import Self

from metaq.client.groups.core import ConsumerCore
from metaq.client.groups.deliveries import D
from metaq.client.groups.steps import LOOK_S, ReadingSteps
from metaq.client.shells import INTERRUPTED_S, leave_limit_s
from metaq.client.threads.thread_calls import call_in_thread, carry_out
from metaq.model import TopicPartition


class AsyncGroupReader(ReadingSteps[D]):
    """A member of a group that is read by one task, in one loop. Leaving the ``async with`` block leaves the group."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        super().__init__(core)
        self._waiters: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reads: asyncio.Task[object] | None = None
        """The task that the delivered messages belong to."""

    async def __aenter__(self) -> Self:
        if self._closed or self._loop is not None:
            raise ValueError("the consumer is closed, or in use")
        self._loop = asyncio.get_running_loop()
        self._state.wakers.append(self._wake_loop)
        self._join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(settle=kind is None, limit_s=leave_limit_s(kind))

    # reading

    async def __aiter__(self) -> AsyncIterator[D]:
        """Yield messages as they arrive, until ``stop`` is called, or ``close`` by another task."""
        self._require_usable()
        try:
            while not self._closed and (delivery := await self._next(None)) is not None:
                yield delivery
                for message in self._stream():
                    yield message
        except GeneratorExit:
            raise  # the program has received the last message
        except BaseException:  # it is unknown whether the program has received it
            self._take_back()
            raise

    async def fetch(self, max_messages: int = 500, timeout: float = 1.0) -> list[D]:
        """Return up to ``max_messages`` as soon as one is available; after ``timeout`` seconds an empty list."""
        return await self._fetch(max_messages, timeout)

    async def run(self, handler: Callable[[D], Awaitable[object]], workers: int = 1) -> None:
        """Await ``handler`` for each message until ``stop`` is called; see ``GroupReader.run``.

        ``workers``: how many partitions are handled at the same time.
        """
        if workers < 1:
            raise ValueError(f"workers {workers}: expected 1 or more")
        self._require_usable()
        if self._options.auto_ack:
            self._settle_handed()
        self._raise_pending()
        self._begin_call()
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(handler))
                group.create_task(self._report_changes(lambda: None, handler))
        except BaseExceptionGroup as failures:  # each worker raises the error that ends the consumer
            failure = failures.exceptions[0]
        except BaseException:
            if self._options.auto_ack:  # otherwise each handler has returned its message
                self._take_back()
            raise
        if failure is not None:
            raise failure

    # settling

    async def commit(self) -> None:
        """Settle all delivered messages, and store the positions before returning. See ``GroupReader.commit``."""
        self._require_own()
        self._settle_handed()
        await call_in_thread(self._core.coordinator.save)

    async def rollback(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Redeliver all unsettled messages after a pause; return their number."""
        return self._roll_back(partitions)

    async def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at ``offset``, at which a message must begin.

        Raises:
            PartitionLost: The partition does not belong to this consumer (any more).
        """
        self._seek(where, offset)

    # what is visible

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition in bytes (RocketMQ: messages); asks the brokers."""
        self._require_own()
        return await call_in_thread(self._core.lag)

    # the end

    async def close(self) -> None:
        """Settle the delivered messages (with ``auto_ack``), save positions, leave the group.

        Messages delivered to another task that still runs are not settled: it may not have processed them yet.
        """
        elsewhere = self._reads not in (None, asyncio.current_task()) and not (self._reads and self._reads.done())
        await self._leave(settle=True, handed=not elsewhere)

    async def _end_with_client(self, timeout: float | None = None) -> None:
        """Leave the group at once, without settling the last delivered messages: the client is closed."""
        await self._leave(settle=False, limit_s=None if timeout is None else max(timeout, INTERRUPTED_S))

    # how a task waits and calls

    def _require_usable(self) -> None:
        if self._closed:
            raise ValueError(self._closed_text)
        if self._loop is None:
            raise ValueError("the consumer is not open; use it in an async with block")
        if asyncio.get_running_loop() is not self._loop:
            raise ValueError("the consumer belongs to the event loop that entered its async with block")

    def _note_reader(self) -> None:
        self._reads = asyncio.current_task()

    def _wake_loop(self) -> None:
        """Wake the tasks that wait. Called by any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def _wait(self, version: int, longest_s: float) -> None:
        waiter = asyncio.Event()
        self._waiters.add(waiter)  # first: a change after the comparison sets it
        try:
            with self._state.lock:
                is_changed = version != self._state.version or self._stopped
                left_s = 0.0 if is_changed else self._state.wait_s(longest_s, self._core.clock.monotonic())
            async with asyncio.timeout(left_s):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    async def _settled(self, outcome: object) -> None:
        if isawaitable(outcome):
            await outcome

    async def _do(self, function: Callable[..., object], *values: object) -> None:
        await carry_out(function, *values)

    async def _apply_reject(self, delivery: D, error: BaseException | None) -> bool:
        try:
            return await call_in_thread(self._core.reject, delivery, error)
        except asyncio.CancelledError:  # the message is delivered again: no task waits for the outcome
            self._state.schedule_retry(delivery, self._core.clock.monotonic())
            raise

    def _interrupts(self, error: BaseException) -> bool:
        """A ``CancelledError`` may also come from a future that the handler awaited."""
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        return not isinstance(error, Exception)

    # handlers

    async def _work(self, handler: Callable[[D], Awaitable[object]]) -> None:
        while (delivery := await self._next_free()) is not None:
            try:
                await self._handle(handler, delivery)
            finally:
                self._state.handled(delivery)

    async def _next_free(self) -> D | None:
        """Reserve a partition that no other worker has, and return its next message."""
        while not self._stopped:
            version = self._state.version
            with self._state.lock:
                self._check()
                delivery = self._state.take(self._core.clock.monotonic(), free_only=True)
            if delivery is not None:
                return delivery
            await self._wait(version, LOOK_S)
        return None
