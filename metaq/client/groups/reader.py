"""Reading as a member of a group with threads: an iterator, a call for a batch, or a loop that calls a handler."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self
from weakref import ref

from metaq.client.groups.core import ConsumerCore, Verdict
from metaq.client.groups.deliveries import D
from metaq.client.groups.in_hand import MessageBlock
from metaq.client.groups.steps import LOOK_S, ReadingSteps, completed
from metaq.client.groups.workers import Workers
from metaq.client.shells import INTERRUPTED_S, leave_limit_s
from metaq.model import TopicPartition


class GroupReader(ReadingSteps[D]):
    """A member of a group that is read by one thread. Leaving the ``with`` block leaves the group."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        super().__init__(core)
        self._at_exit = partial(_close_forgotten, ref(self))
        self._reads = threading.get_ident()
        """The thread that the delivered messages belong to."""

    def __enter__(self) -> Self:
        self._require_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(settle=kind is None, limit_s=leave_limit_s(kind))

    # reading

    def __iter__(self) -> Iterator[D]:
        """Yield messages as they arrive, until ``stop`` is called, or ``close`` by another thread."""
        self._require_usable()
        try:
            while not self._closed and (delivery := completed(self._next, None)) is not None:
                yield delivery
                yield from self._stream()
        except GeneratorExit:
            raise  # the program has received the last message
        except BaseException:  # it is unknown whether the program has received it
            self._take_back()
            raise

    def fetch(self, max_messages: int = 500, timeout: float = 1.0) -> list[D]:
        """Return up to ``max_messages`` as soon as one is available; after ``timeout`` seconds an empty list."""
        return completed(self._fetch, max_messages, timeout)

    def run(self, handler: Callable[[D], object], workers: int = 1) -> None:
        """Call ``handler`` with each message until ``stop`` is called.

        A message is settled when ``handler`` returns (with ``auto_ack``). If it raises, the message is delivered again,
        up to ``max_attempts`` times with growing pauses, before anything else of its partition; then it is rejected as
        ``on_reject`` says. With several ``workers``, several partitions are handled at the same time, each in order. Of
        MetaQ, messages that this machine has parked are handled again after ``parked_retry_s``, in the calling thread.

        If ``run`` is interrupted, by Ctrl-C or by an exception of a handler that is not an ``Exception``, the next call
        delivers the unfinished message again, before others of its partition. That does not count as another attempt.
        """
        if workers < 1:
            raise ValueError(f"workers {workers}: expected 1 or more")
        self._require_usable()
        if workers == 1:
            self._run_alone(handler)
            return
        if self._options.auto_ack:
            self._settle_handed()
        threads = Workers(
            self._state, workers, lambda delivery: completed(self._handle, handler, delivery), self._core.clock
        )
        try:
            completed(self._report_changes, threads.check, handler)
        finally:
            threads.stop(self._options.drain_s if self._stopped else 0.0)

    # settling

    def commit(self) -> None:
        """Settle all delivered messages, and store the positions before returning.

        Raises:
            MetaqError: The positions cannot be stored now. They are kept, and stored later. So are, without an error,
                those in partitions of a broker of a list that has been away for longer than ``session_s``.
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
        self._close(settle=False, limit_s=None if timeout is None else max(timeout, INTERRUPTED_S))

    def _close(self, *, settle: bool, handed: bool = True, limit_s: float | None = None) -> None:
        atexit.unregister(self._at_exit)
        completed(self._leave, settle=settle, handed=handed, limit_s=limit_s)

    def _is_read_elsewhere(self) -> bool:
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        return self._reads in others

    # how a thread waits and calls

    def _require_usable(self) -> None:
        if self._closed:
            raise ValueError(self._closed_text)
        if self._fetching is None:
            self._join()
            atexit.register(self._at_exit)

    def _note_reader(self) -> None:
        self._reads = threading.get_ident()

    async def _wait(self, version: int, longest_s: float) -> None:
        with self._state.lock:
            if version == self._state.version and not self._stopped:
                self._state.changed.wait(self._state.wait_s(longest_s, self._core.clock.monotonic()))

    async def _settled(self, outcome: object) -> None:
        """Do nothing: the function has returned."""

    async def _do(self, function: Callable[..., object], *values: object) -> None:
        function(*values)

    async def _apply_reject(self, delivery: D, error: BaseException | None) -> bool:
        return self._core.reject(delivery, error)

    def _interrupts(self, error: BaseException) -> bool:
        return not isinstance(error, Exception)

    # handlers

    def _run_alone(self, handler: Callable[[D], object]) -> None:
        self._is_handled = True
        try:
            while not self._stopped:
                wait_s = 0.0 if completed(self._retry_parked, handler) else LOOK_S
                if (delivery := completed(self._next, wait_s, filtered=False)) is None:
                    continue
                block = self._begin_stream()
                self._handed.clear()
                if block is None:
                    completed(self._handle, handler, delivery)
                else:
                    self._handle_block(handler, delivery, block)
        except BaseException:
            self._take_back()  # unfinished messages are not settled
            raise
        finally:
            self._is_handled = False

    def _handle_block(self, handler: Callable[[D], object], delivery: D, block: MessageBlock[D]) -> None:
        """Handle a message and the streamed ones after it: taking one settles the one before."""
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
                completed(self._reject, delivery, error)
            return
        self._end_stream()
        self._core.acknowledge(delivery)


def _close_forgotten(forgotten: ref[GroupReader[Any]]) -> None:
    """At the end of the program: leave the group."""
    reader = forgotten()
    if reader is not None and not reader._closed:
        warnings.warn(f"{reader!r} was never closed; use it in a with block", ResourceWarning, stacklevel=2)
        reader._close(settle=False)
