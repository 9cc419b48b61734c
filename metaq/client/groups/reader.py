"""Reading as a member of a group with threads: an iterator, a call for a batch, or a loop that calls a handler.

Each system has a subclass that fetches messages.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import ref

from metaq.client.forks import notify_after_fork
from metaq.client.groups.core import ConsumerCore, Verdict
from metaq.client.groups.deliveries import D
from metaq.client.groups.in_hand import Block
from metaq.client.groups.member import GroupMember
from metaq.client.groups.workers import Workers
from metaq.model import TopicPartition

CLOSE_S: Final = 10.0
"""Longest wait at the end for positions to be saved, and for each thread to end."""

_LOOK_S: Final = 0.5
"""Longest wait between two checks for changes."""


class Fetcher(Protocol):
    """Fetches messages for a consumer."""

    def close(self, timeout_s: float) -> None: ...


class GroupReader(GroupMember[D]):
    """A member of a group that is read by one thread. Leaving the ``with`` block leaves the group."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        super().__init__(core)
        self._fetching: Fetcher | None = None
        self._at_exit = partial(_close_forgotten, ref(self))
        self._reads = threading.get_ident()
        """The thread that the delivered messages belong to."""

    @abstractmethod
    def _start_fetching(self) -> Fetcher:
        """Start fetching for partitions that this consumer will own. Called once, before it joins the group."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(settle=kind is None)

    # reading

    def __iter__(self) -> Iterator[D]:
        """Yield messages as they arrive, until ``stop`` is called, or ``close`` by another thread."""
        self._start()
        state, monotonic = self._state, self._core.clock.monotonic
        try:
            while not self._closed and (delivery := self._next(None)) is not None:
                yield delivery
                if (block := self._begin_stream(filters=True)) is None:
                    continue
                since, until_s, where = self._streamed_since, self._streamed_until_s, self._options.where
                for message in islice(block.messages, block.taken, block.stream_end):
                    # first: a thread that changes the version and then looks must count this message as delivered
                    block.taken += 1
                    if state.version != since or monotonic() >= until_s:
                        block.taken -= 1
                        break
                    if where is None or self._is_wanted_of_stream(message):
                        yield message
        except GeneratorExit:
            raise  # the program has received the last message
        except BaseException:  # it is unknown whether the program has received it
            self._take_back()
            raise

    def fetch(self, max_messages: int = 500, timeout: float = 1.0) -> list[D]:
        """Return up to ``max_messages`` as soon as one is available; after ``timeout`` seconds an empty list."""
        if max_messages < 1 or timeout < 0:
            raise ValueError(f"max_messages {max_messages}, timeout {timeout}: expected 1 or more, 0 or more")
        found: list[D] = []
        try:
            if (first := self._next(timeout)) is None:
                return found
            found.append(first)
            while len(found) < max_messages and (more := self._take_many(max_messages - len(found))):
                found += more
            while len(found) < max_messages and (one := self._take()) is not None:
                found.append(one)
                found += self._take_many(max_messages - len(found))
        except BaseException as error:
            return self._broken_off(error)
        return found

    def run(self, handler: Callable[[D], object], workers: int = 1) -> None:
        """Call ``handler`` with each message until ``stop`` is called.

        A message is settled when ``handler`` returns (with ``auto_ack``). If it raises, the message is delivered again,
        up to ``max_attempts`` times with growing pauses, before anything else of its partition; then it is rejected as
        ``on_reject`` says. With several ``workers``, several partitions are handled at the same time, each in order.

        If ``run`` is interrupted, by Ctrl-C or by an exception of a handler that is not an ``Exception``, the next call
        delivers the unfinished message again, before others of its partition. That does not count as another attempt.
        """
        if workers < 1:
            raise ValueError(f"workers {workers}: expected 1 or more")
        self._start()
        if workers == 1:
            self._run_alone(handler)
            return
        if self._options.auto_ack:
            self._settle_handed()
        threads = Workers(self._state, workers, lambda delivery: self._handle(handler, delivery), self._core.clock)
        try:
            while not self._stopped:
                self._run_changes()
                with self._state.lock:
                    self._check()
                    threads.check()
                    if not (self._stopped or self._state.changes):
                        self._state.changed.wait(_LOOK_S)
        finally:
            threads.stop(self._options.drain_s if self._stopped else 0.0)

    # settling

    def commit(self) -> None:
        """Settle all delivered messages, and store the positions before returning.

        Raises:
            MetaqError: The positions cannot be stored now. They are kept, and stored later.
        """
        self._require_own()
        self._settle_handed()
        self._core.coordinator.save()

    def rollback(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Redeliver all unsettled messages after a pause; return their number.

        The first of each partition counts as refused once: after ``max_attempts`` it is rejected.
        """
        return self._roll_back(partitions)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at ``offset``, at which a message must begin.

        Raises:
            PartitionLost: The partition does not belong to this consumer (any more).
        """
        self._seek(where, offset)

    # what is visible

    def lag(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition in bytes (RocketMQ: messages); asks the brokers."""
        self._require_own()
        return self._core.lag()

    # the end

    def close(self) -> None:
        """Settle the delivered messages (with ``auto_ack``), save positions, leave the group. Further calls do nothing.

        Messages delivered to another thread that still runs are not settled: it may not have processed them yet.
        """
        self._close(settle=True, handed=not self._is_read_elsewhere())

    def _end_with_client(self, timeout: float | None = None) -> None:
        """Leave the group at once, without settling the last delivered messages: the client is closed."""
        self._close(settle=False)

    def _close(self, *, settle: bool, handed: bool = True) -> None:
        if self._closed:
            return
        self._closed = self._stopped = True
        atexit.unregister(self._at_exit)
        if settle and handed and self._options.auto_ack:
            self._settle_handed()
        if self._fetching is None:
            self._has_left = True
            return
        try:
            if settle and self._options.on_revoked is not None and (assigned := self.assignment):
                self._options.on_revoked(assigned)
        finally:
            self._has_left = True
            self._state.close()
            self._core.coordinator.close(CLOSE_S)
            self._fetching.close(CLOSE_S)

    def _is_read_elsewhere(self) -> bool:
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        return self._reads in others

    def _start(self) -> None:
        if self._closed:
            raise ValueError(self._closed_text)
        if self._fetching is None:
            notify_after_fork(self._forked)
            self._fetching = self._start_fetching()
            self._core.coordinator.start(ref(self))
            atexit.register(self._at_exit)

    # how a message is taken

    def _next(self, timeout: float | None, *, filtered: bool = True) -> D | None:
        self._is_calling = False
        self._start()
        self._reads = threading.get_ident()
        if self._options.auto_ack:
            self._settle_handed()
        self._raise_pending()
        self._begin_call()
        clock = self._core.clock
        deadline_s = None if timeout is None else clock.monotonic() + timeout
        while not self._stopped:
            self._run_changes()
            version = self._state.version
            if (delivery := self._take(filtered=filtered)) is not None:
                return delivery
            with self._state.lock:
                left_s = _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - clock.monotonic())
                if left_s <= 0:
                    return None
                if version == self._state.version:
                    self._wait(left_s)
        return None

    def _wait(self, left_s: float) -> None:
        """Wait for a change. The caller has the lock."""
        self._state.changed.wait(self._state.wait_s(left_s, self._core.clock.monotonic()))

    def _check(self) -> None:
        if self._state.failure is not None:
            raise self._state.failure

    def _take(self, *, filtered: bool = True) -> D | None:
        """Take the next available message, if there is one."""
        while not self._stopped:
            with self._state.lock:
                self._check()
                delivery = self._state.take(self._core.clock.monotonic())
            if delivery is None:
                return None
            if self._core.is_exhausted(delivery):
                self._reject(delivery, None)
            elif filtered and not self._is_wanted(delivery):
                self._core.acknowledge(delivery)
            else:
                self._note_handed(delivery)
                return delivery
        return None

    def _run_changes(self) -> None:
        if not self._state.changes:
            return
        with self._state.lock:
            calls = self._core.changes()
        try:
            for function, partitions in calls:
                function(partitions)
        finally:
            self._core.changes_done()

    def _is_wanted_of_stream(self, delivery: D) -> bool:
        """Apply the filter to the message that an iteration took last."""
        try:
            return bool(self._options.where is None or self._options.where(delivery))
        except Exception:
            self._end_stream()
            self._handed.clear()
            self._core.refused(delivery)
            raise

    # handlers

    def _run_alone(self, handler: Callable[[D], object]) -> None:
        """Handle messages in this thread."""
        self._is_handled = True
        try:
            while (delivery := self._next(None, filtered=False)) is not None:
                block = self._begin_stream(filters=True)
                self._handed.clear()
                if block is None:
                    self._handle(handler, delivery)
                else:
                    self._handle_block(handler, delivery, block)
        except BaseException:
            self._take_back()  # unfinished messages are not settled
            raise
        finally:
            self._is_handled = False

    def _handle_block(self, handler: Callable[[D], object], delivery: D, block: Block[D]) -> None:
        """Handle a message and the streamed ones behind it: taking one settles the one before."""
        state, since, where = self._state, self._streamed_since, self._options.where
        until_s, monotonic = self._streamed_until_s, self._core.clock.monotonic
        try:
            if where is None or where(delivery):
                handler(delivery)
            for message in islice(block.messages, block.taken, block.stream_end):
                block.taken += 1  # first, as in the iteration
                if state.version != since or monotonic() >= until_s:
                    block.taken -= 1
                    break
                delivery = message
                if where is None or where(message):
                    handler(message)
        except Exception as error:  # any error of the program's handler
            self._end_stream()
            if self._core.refused(delivery) is Verdict.REJECT:
                self._reject(delivery, error)
            return
        self._end_stream()
        self._core.acknowledge(delivery)

    def _handle(self, handler: Callable[[D], object], delivery: D) -> None:
        try:
            if self._options.where is None or self._options.where(delivery):
                handler(delivery)
                if not self._options.auto_ack:
                    return
        except Exception as error:  # any error of the program's handler
            if self._core.refused(delivery) is Verdict.REJECT:
                self._reject(delivery, error)
            return
        except BaseException:
            self._state.give_back(delivery)
            raise
        self._core.acknowledge(delivery)

    def _reject(self, delivery: D, error: BaseException | None) -> None:
        if self._core.reject(delivery, error):
            self._core.acknowledge(delivery)


def _close_forgotten(forgotten: ref[GroupReader[Any]]) -> None:
    """At the end of the program: leave the group."""
    reader = forgotten()
    if reader is not None and not reader._closed:
        warnings.warn(f"{reader!r} was never closed; use it in a with block", ResourceWarning, stacklevel=2)
        reader._close(settle=False)
