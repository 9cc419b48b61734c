"""The steps of reading as a member of a group, written once for threads and for asyncio.

Steps are coroutines. The threaded reader runs each of them with ``completed``: its waits block, so that a step never
suspends. The asyncio reader awaits them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import ref

from metaq.client.groups.core import ConsumerCore, Fetching, Verdict
from metaq.client.groups.deliveries import D
from metaq.client.groups.member import GroupMember
from metaq.net.forks import notify_after_fork

P = ParamSpec("P")
R = TypeVar("R")

CLOSE_S: Final = 10.0
"""Longest wait at the end for positions to be saved."""

FETCHES_END_S: Final = 2.0
"""Longest wait at the end for the threads that fetch: a broker may hang."""

LOOK_S: Final = 0.5
"""Longest wait between two checks for changes."""


class ReadingSteps(GroupMember[D], Generic[D]):
    """A member of a group whose messages are taken step by step; subclasses say how to wait and to call."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        super().__init__(core)
        self._fetching: Fetching | None = None

    # what differs between threads and asyncio

    @abstractmethod
    def _require_usable(self) -> None:
        """Join the group, or raise ``ValueError`` if the consumer cannot be used here and now."""

    @abstractmethod
    def _note_reader(self) -> None:
        """Remember which thread or task the delivered messages belong to."""

    @abstractmethod
    async def _wait(self, version: int, longest_s: float) -> None:
        """Wait until the state has another version than ``version``, or a refused message is due."""

    @abstractmethod
    async def _settled(self, outcome: object) -> None:
        """Wait for the outcome of one of the program's functions, if that has to be awaited."""

    @abstractmethod
    async def _do(self, function: Callable[..., object], *values: object) -> None:
        """Call a function that blocks, to its end even if the caller is interrupted."""

    @abstractmethod
    async def _apply_reject(self, delivery: D, error: BaseException | None) -> bool:
        """Call ``ConsumerCore.reject``, which blocks."""

    @abstractmethod
    def _interrupts(self, error: BaseException) -> bool:
        """Whether an error that a handler raised ends the reader instead of being a refusal."""

    # joining and leaving

    def _join(self) -> None:
        notify_after_fork(self._forked)
        self._fetching = self._core.fetching()
        self._core.coordinator.start(ref(self))

    async def _leave(self, *, settle: bool, handed: bool = True, limit_s: float | None = None) -> None:
        """Close the consumer; ``settle``: the delivered messages first, with ``auto_ack`` and unless ``handed`` is
        false. ``limit_s``: the longest wait for brokers and storages.
        """
        if self._closed:
            return
        self._closed = self._stopped = True
        if settle and handed and self._options.auto_ack:
            self._settle_handed()
        if self._fetching is None:
            self._has_left = True
            return
        try:
            if settle and self._options.on_revoked is not None and (assigned := self.assignment):
                await self._settled(self._options.on_revoked(assigned))
        finally:
            self._has_left = True
            self._state.close()
            close_s = CLOSE_S if limit_s is None else min(CLOSE_S, max(0.0, limit_s - FETCHES_END_S))
            try:
                await self._do(self._core.coordinator.close, close_s)
            finally:
                await self._do(self._fetching.close, FETCHES_END_S)

    # taking messages

    async def _fetch(self, max_messages: int, timeout: float) -> list[D]:
        if max_messages < 1 or not timeout >= 0:
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

    async def _next(self, timeout: float | None, *, filtered: bool = True) -> D | None:
        """Return the next message; ``None`` after ``timeout`` seconds, or when the consumer is stopped."""
        self._is_calling = False
        self._require_usable()
        self._note_reader()
        if self._options.auto_ack:
            self._settle_handed()
        self._raise_pending()
        self._begin_call()
        clock = self._core.clock
        deadline_s = None if timeout is None else clock.monotonic() + timeout
        while not self._stopped:
            await self._run_changes()
            version = self._state.version
            if (delivery := await self._take(filtered=filtered)) is not None:
                return delivery
            left_s = LOOK_S if deadline_s is None else min(LOOK_S, deadline_s - clock.monotonic())
            if left_s <= 0:
                return None
            await self._wait(version, left_s)
        return None

    async def _take(self, *, filtered: bool = True) -> D | None:
        """Take the next available message, if there is one."""
        while not self._stopped:
            with self._state.lock:
                self._check()
                delivery = self._state.take(self._core.clock.monotonic())
            if delivery is None:
                return None
            if self._core.is_exhausted(delivery):
                await self._reject(delivery, None)
            elif filtered and not self._is_wanted(delivery):
                self._core.acknowledge(delivery)
            else:
                self._note_handed(delivery)
                return delivery
        return None

    def _stream(self) -> Iterator[D]:
        """Yield messages after the delivered one, without a lock for each, as long as nothing else is due."""
        if (block := self._begin_stream()) is None:
            return
        state, monotonic = self._state, self._core.clock.monotonic
        since, until_s, where = self._streamed_since, self._streamed_until_s, self._options.where
        for message in islice(block.messages, block.taken, block.stream_end):
            # first: a thread that changes the version and then looks must count this message as delivered
            block.taken += 1
            if state.version != since or monotonic() >= until_s:
                block.taken -= 1
                break
            if where is None or self._is_wanted_of_stream(message):
                yield message

    def _is_wanted_of_stream(self, delivery: D) -> bool:
        """Apply the filter to the message that an iteration took last."""
        try:
            return bool(self._options.where is None or self._options.where(delivery))
        except Exception:
            self._end_stream()
            self._handed.clear()
            self._core.refused(delivery)
            raise

    # changes of the assignment

    def _check(self) -> None:
        if self._state.failure is not None:
            raise self._state.failure

    async def _run_changes(self) -> None:
        if not self._state.changes:
            return
        with self._state.lock:
            calls = self._core.changes()
        try:
            for function, partitions in calls:
                await self._settled(function(partitions))
        finally:
            self._core.changes_done()

    async def _report_changes(self, check: Callable[[], object], handler: Callable[[D], object]) -> None:
        """Run the callbacks of changes while others handle messages, and handle parked messages that are due.

        ``check`` raises if one of the others has ended.
        """
        while not self._stopped:
            version = self._state.version
            await self._run_changes()
            with self._state.lock:
                self._check()
                check()
            if not await self._retry_parked(handler):
                await self._wait(version, LOOK_S)

    # handlers

    async def _handle(self, handler: Callable[[D], object], delivery: D) -> None:
        if self._core.is_exhausted(delivery):  # workers take messages themselves
            await self._reject(delivery, None)
            return
        try:
            if self._options.where is None or self._options.where(delivery):
                await self._settled(handler(delivery))
                if not self._options.auto_ack:
                    return
        except BaseException as error:  # any error of the program's handler
            if self._interrupts(error):
                self._state.give_back(delivery)
                raise
            if self._core.refused(delivery) is Verdict.REJECT:
                await self._reject(delivery, error)
            return
        self._core.acknowledge(delivery)

    async def _retry_parked(self, handler: Callable[[D], object]) -> bool:
        """Handle a parked message again if one is due; return whether there was one.

        One that ``where`` leaves out stays parked.
        """
        found: list[tuple[int, D]] = []
        if self._core.parked_due():
            await self._do(lambda: found.extend(self._core.take_parked()))
        for number, delivery in found:
            try:
                if self._options.where is not None and not self._options.where(delivery):
                    continue
                await self._settled(handler(delivery))
            except BaseException as error:  # any error of the program's handler
                if self._interrupts(error):
                    raise
                self._core.keep_parked(delivery, error)
            else:
                await self._do(self._core.discard_parked, number)
        return bool(found)

    async def _reject(self, delivery: D, error: BaseException | None) -> None:
        if await self._apply_reject(delivery, error):
            self._core.acknowledge(delivery)


def completed(step: Callable[P, Coroutine[Any, Any, R]], *values: P.args, **named: P.kwargs) -> R:
    """Return the result of a step that never suspends; nothing is called after it, where Ctrl-C would lose it."""
    try:
        step(*values, **named).send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    raise AssertionError(f"{step!r} has suspended")
