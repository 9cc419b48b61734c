"""Fetches what a consumer owns: one thread for each broker, however many partitions it has.

A thread keeps one connection, asks for all partitions that are due at once, and ends with the last partition of its
broker. A broker that hangs delays nobody else's partitions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from metaq.backends.metaq.polls import PartitionRequest, Polled, poll_all
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.client.groups.partition import Jump, OwnedPartition
from metaq.client.groups.state import GroupState
from metaq.discovery.base import Directory
from metaq.errors import BrokerError, MetaqError
from metaq.net.clock import SYSTEM_CLOCK, Clock

REQUESTS_MAX: Final = 64
"""Partitions that are asked for at once; half of what a session lets be under way is free for that."""

_LOG: Final = logging.getLogger(__name__)

Asked = Sequence[tuple[OwnedPartition, PartitionRequest]]


class FetchLog:
    """Says what went wrong with a broker, once as long as it stays the same."""

    def __init__(self, group: str, broker_id: int) -> None:
        self._group, self._broker_id, self._said = group, broker_id, ""

    def failed(self, reason: str) -> None:
        """The broker could not be asked, or refused something."""
        if reason != self._said:
            _LOG.warning("group %s, broker %d: %s; trying again", self._group, self._broker_id, reason)
            self._said = reason

    def answered(self, outcomes: Sequence[Polled]) -> None:
        """The broker has answered."""
        refusals = [str(outcome) for outcome in outcomes if isinstance(outcome, BrokerError)]
        if refusals:
            self.failed(refusals[0])
        elif self._said:
            _LOG.info("group %s, broker %d answers again", self._group, self._broker_id)
            self._said = ""

    def jumped(self, jumps: Sequence[Jump]) -> None:
        """Offsets are not there any more."""
        for jump in jumps:
            _LOG.warning(
                "group %s, %s: nothing at offset %d any more, going on at %d",
                *(self._group, jump.where, jump.asked, jump.to),
            )


class Fetchers:
    """The threads. ``close`` ends them."""

    def __init__(
        self, state: GroupState, directory: Directory, pool: SessionPool, group: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._state, self._directory, self._pool, self._group, self._clock = state, directory, pool, group, clock
        self._threads: dict[int, threading.Thread] = {}
        state.on_brokers = self._start

    def _start(self, broker_ids: set[int]) -> None:
        """Called with the lock of the state."""
        for broker_id in broker_ids - set(self._threads):
            name = f"metaq-fetch-{self._group}-{broker_id}"
            thread = threading.Thread(target=self._run, args=(broker_id,), name=name, daemon=True)
            self._threads[broker_id] = thread
            thread.start()

    def close(self, timeout_s: float) -> None:
        """Wait until the threads have ended, at most ``timeout_s`` for one; ``state.closing`` is set."""
        with self._state.lock:
            threads = list(self._threads.values())
            self._state.notify()
        for thread in threads:
            thread.join(timeout_s)

    def _run(self, broker_id: int) -> None:
        try:
            self._fetch(broker_id)
        except Exception as error:  # the reader raises it
            self._state.fail(error)

    def _fetch(self, broker_id: int) -> None:
        log = FetchLog(self._group, broker_id)
        with ExitStack() as stack:
            session: Session | None = None
            while asked := self._next(broker_id):
                outcomes: Sequence[Polled | None]
                try:
                    if session is None:
                        session = self._connect(broker_id, stack)
                    answers = poll_all(session, [request for _, request in asked])
                    log.answered(answers)
                    outcomes = answers
                except (MetaqError, KeyError, ValueError) as error:
                    log.failed(str(error) if isinstance(error, MetaqError) else f"not registered: {error!r}")
                    outcomes = [None] * len(asked)
                    if session is not None:
                        session.close("failed")
                    stack.close()
                    session = None
                log.jumped(self._state.fetched(asked, outcomes, self._clock.monotonic()))

    def _connect(self, broker_id: int, stack: ExitStack) -> Session:
        return stack.enter_context(self._pool.lease(self._directory.brokers()[broker_id]))

    def _next(self, broker_id: int) -> Asked:
        """Wait for requests that are due; none: the thread has nothing to do any more."""
        state = self._state
        with state.lock:
            while not state.closing:
                now_s = self._clock.monotonic()
                if asked := state.requests(broker_id, now_s, REQUESTS_MAX):
                    return asked
                if not any(where.partition.broker == broker_id for where in state.partitions):
                    break
                due_s = state.next_request_s(broker_id)
                state.changed.wait(None if due_s is None else max(0.0, due_s - now_s))
            del self._threads[broker_id]
            return ()
