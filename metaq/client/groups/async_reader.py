"""Reading as a member of a group with asyncio. Parts and rules are the same as in the threaded reader.

The coordinator's thread joins the group and saves positions: clients of registries have threads of their own, and files
and databases block. Each system has a subclass that fetches messages.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from inspect import isawaitable
from itertools import islice
from types import TracebackType
from typing import Final, Self
from weakref import ref

from metaq.client.forks import notify_after_fork
from metaq.client.groups.core import ConsumerCore, Verdict
from metaq.client.groups.deliveries import D
from metaq.client.groups.member import GroupMember
from metaq.client.thread_calls import carry_out
from metaq.model import TopicPartition

CLOSE_S: Final = 10.0
"""Longest wait at the end for positions to be saved."""

_LOOK_S: Final = 0.5


class AsyncGroupReader(GroupMember[D]):
    """A member of a group that is read by one task, in one loop. Leaving the ``async with`` block leaves the group."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        super().__init__(core)
        self._waiters: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reads: asyncio.Task[object] | None = None
        """The task that the delivered messages belong to."""

    @abstractmethod
    def _start_fetching(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start fetching for partitions that this consumer will own. Called once, before it joins the group."""

    @abstractmethod
    async def _stop_fetching(self) -> None:
        """Stop fetching, after the group was left."""

    async def __aenter__(self) -> Self:
        if self._closed or self._loop is not None:
            raise ValueError("the consumer is closed, or in use")
        self._loop = loop = asyncio.get_running_loop()
        notify_after_fork(self._forked)
        self._state.wakers.append(lambda: from_any_thread(loop, self._wake))
        self._start_fetching(loop)
        self._core.coordinator.start(ref(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(settle=kind is None)

    # reading

    async def __aiter__(self) -> AsyncIterator[D]:
        """Yield messages as they arrive, until ``stop`` is called, or ``close`` by another task."""
        self._check_loop()
        state, monotonic = self._state, self._core.clock.monotonic
        try:
            while not self._closed and (delivery := await self._next(None)) is not None:
                yield delivery
                if (block := self._begin_stream()) is None:
                    continue
                since, until_s = self._streamed_since, self._streamed_until_s
                for message in islice(block.messages, block.taken, block.stream_end):
                    # first: a thread that changes the version and then looks must count this message as delivered
                    block.taken += 1
                    if state.version != since or monotonic() >= until_s:
                        block.taken -= 1
                        break
                    yield message
        except GeneratorExit:
            raise  # the program has received the last message
        except BaseException:  # it is unknown whether the program has received it
            self._take_back()
            raise

    async def fetch(self, max_messages: int = 500, timeout: float = 1.0) -> list[D]:
        """Return up to ``max_messages`` as soon as one is available; after ``timeout`` seconds an empty list."""
        if max_messages < 1 or timeout < 0:
            raise ValueError(f"max_messages {max_messages}, timeout {timeout}: expected 1 or more, 0 or more")
        found: list[D] = []
        try:
            if (first := await self._next(timeout)) is None:
                return found
            found.append(first)
            while len(found) < max_messages and (more := self._take_many(max_messages - len(found))):
                found += more
            while len(found) < max_messages and (one := await self._take()) is not None:
                found.append(one)
                found += self._take_many(max_messages - len(found))
        except BaseException as error:
            return self._broken_off(error)
        return found

    async def run(self, handler: Callable[[D], Awaitable[object]], workers: int = 1) -> None:
        """Await ``handler`` for each message until ``stop`` is called; see ``GroupReader.run``.

        ``workers``: how many partitions are handled at the same time.
        """
        if workers < 1:
            raise ValueError(f"workers {workers}: expected 1 or more")
        self._check_loop()
        if self._options.auto_ack:
            self._settle_handed()
        self._begin_call()
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(handler))
                group.create_task(self._report_changes())
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
        await asyncio.to_thread(self._core.coordinator.save)

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
        return await asyncio.to_thread(self._core.lag)

    async def close(self) -> None:
        """Settle the delivered messages (with ``auto_ack``), save positions, leave the group.

        Messages delivered to another task that still runs are not settled: it may not have processed them yet.
        """
        elsewhere = self._reads not in (None, asyncio.current_task()) and not (self._reads and self._reads.done())
        await self._close(settle=True, handed=not elsewhere)

    async def _close(self, *, settle: bool, handed: bool = True) -> None:
        if self._closed:
            return
        self._closed = self._stopped = True
        if settle and handed and self._options.auto_ack:
            self._settle_handed()
        if self._loop is None:
            self._has_left = True
            return
        try:
            if settle and self._options.on_revoked is not None and (assigned := self.assignment):
                await _maybe(self._options.on_revoked(assigned))
        finally:
            await self._leave()

    async def _end_with_client(self) -> None:
        """Leave the group at once, without settling the last delivered messages: the client is closed."""
        await self._close(settle=False)

    async def _leave(self) -> None:
        self._has_left = True
        self._state.close()
        try:
            await carry_out(self._core.coordinator.close, CLOSE_S)
        finally:  # also if this task is cancelled: the thread continues
            await self._stop_fetching()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    # how a message is taken

    async def _next(self, timeout: float | None, *, free_only: bool = False) -> D | None:
        self._check_loop()
        if not free_only:
            self._is_calling = False
            self._reads = asyncio.current_task()
            if self._options.auto_ack:
                self._settle_handed()
        self._raise_pending()
        if not free_only:
            self._begin_call()
        if not (self._stopped or self._state.changes) and (found := await self._take(free_only=free_only)) is not None:
            return found  # fast path: avoids the setup for waiting
        clock = self._core.clock
        deadline_s = None if timeout is None else clock.monotonic() + timeout
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            while not self._stopped:
                waiter.clear()
                if not free_only:
                    await self._run_changes()
                if (delivery := await self._take(free_only=free_only)) is not None:
                    return delivery
                left_s = _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - clock.monotonic())
                if left_s <= 0:
                    return None
                await self._wait(waiter, left_s)
        finally:
            self._waiters.discard(waiter)
        return None

    def _check_loop(self) -> None:
        if self._closed:
            raise ValueError(self._closed_text)
        if self._loop is None:
            raise ValueError("the consumer is not open; use it in an async with block")
        if asyncio.get_running_loop() is not self._loop:
            raise ValueError("the consumer belongs to the event loop that entered its async with block")

    async def _wait(self, waiter: asyncio.Event, left_s: float) -> None:
        with self._state.lock:
            left_s = self._state.wait_s(left_s, self._core.clock.monotonic())
        try:
            async with asyncio.timeout(left_s):
                await waiter.wait()
        except TimeoutError:
            pass

    async def _take(self, *, free_only: bool = False) -> D | None:
        while not self._stopped:
            with self._state.lock:
                if self._state.failure is not None:
                    raise self._state.failure
                delivery = self._state.take(self._core.clock.monotonic(), free_only=free_only)
            if delivery is None or free_only:
                return delivery
            if self._core.is_exhausted(delivery):
                await self._reject(delivery, None)
            elif not self._is_wanted(delivery):
                self._core.acknowledge(delivery)
            else:
                self._note_handed(delivery)
                return delivery
        return None

    async def _run_changes(self) -> None:
        if not self._state.changes:
            return
        with self._state.lock:
            calls = self._core.changes()
        try:
            for function, partitions in calls:
                await _maybe(function(partitions))
        finally:
            self._core.changes_done()

    async def _report_changes(self) -> None:
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            while not self._stopped:
                waiter.clear()
                await self._run_changes()
                await self._wait(waiter, _LOOK_S)
        finally:
            self._waiters.discard(waiter)

    # handlers

    async def _work(self, handler: Callable[[D], Awaitable[object]]) -> None:
        while (delivery := await self._next(None, free_only=True)) is not None:
            where = delivery.where
            try:
                await self._handle(handler, delivery)
            finally:
                self._state.handled(where)

    async def _handle(self, handler: Callable[[D], Awaitable[object]], delivery: D) -> None:
        try:
            if self._options.where is None or self._options.where(delivery):
                await handler(delivery)
                if not self._options.auto_ack:
                    return
        except BaseException as error:  # any error of the program's handler
            if _interrupts(error):
                self._state.give_back(delivery)
                raise
            if self._core.refused(delivery) is Verdict.REJECT:
                await self._reject(delivery, error)
            return
        self._core.acknowledge(delivery)

    async def _reject(self, delivery: D, error: BaseException | None) -> None:
        try:
            done = await asyncio.to_thread(self._core.reject, delivery, error)
        except asyncio.CancelledError:  # the message is delivered again: no task waits for the outcome
            self._state.schedule_retry(delivery, self._core.clock.monotonic())
            raise
        if done:
            self._core.acknowledge(delivery)


def _interrupts(error: BaseException) -> bool:
    """Whether ``error`` ends the running task; a ``CancelledError`` may also come from a future that the task
    awaited.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception)


async def _maybe(result: object) -> None:
    """Await the result of a program's function if it is awaitable."""
    if isawaitable(result):
        await result


def from_any_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *values: object) -> None:
    """Schedule ``call`` in the loop; do nothing if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *values)
