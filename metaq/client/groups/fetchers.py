"""Fetches the partitions that a consumer owns: one thread per broker, whatever the number of partitions.

A thread has one connection, requests all partitions that are due at once, and ends with the last partition of its
broker. A broker that hangs delays only its own partitions.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from math import inf
from typing import Any, Final, Generic

from metaq.backends.metaq.polls import PartitionRequest, Polled, poll_all
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.owned import O, OffsetJump, Owned, Q
from metaq.client.groups.state import ConsumerState
from metaq.discovery.base import Directory
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

REQUESTS_MAX: Final = 64
"""Limit on partitions requested at once: half of the requests that a session allows in flight."""

_LOG: Final = logging.getLogger(__name__)

Asked = Sequence[tuple[Owned[Delivery, PartitionRequest, Polled], PartitionRequest]]


class FetchLog:
    """Logs problems with a broker, once while they stay the same for a partition. Thread-safe."""

    def __init__(self, group: str, broker: int | str) -> None:
        self._group, self._broker = group, broker
        self._lock = threading.Lock()
        self._said: dict[TopicPartition | None, str] = {}  # None: of all partitions

    def failed(self, error: Exception, where: TopicPartition | None = None) -> None:
        """A request failed: of partition ``where``, or of all partitions."""
        is_lost = isinstance(error, ConnectionFailed | DeadlineExceeded)
        reason = str(error) if isinstance(error, MetaqError) else f"not registered: {error!r}"
        self._note(None if is_lost else where, reason)

    def answered(self, places: Iterable[TopicPartition], outcomes: Iterable[object]) -> None:
        """The broker has answered requests of these partitions."""
        self._forget(None)
        for where, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, BrokerError):
                self._note(where, str(outcome))
            else:
                self._forget(where)

    def _note(self, where: TopicPartition | None, reason: str) -> None:
        with self._lock:
            is_known = reason in self._said.values()
            self._said[where] = reason
        if not is_known:
            _LOG.warning("group %s, broker %s: %s; trying again", self._group, self._broker, reason)

    def _forget(self, where: TopicPartition | None) -> None:
        with self._lock:
            reason = self._said.pop(where, None)
            is_over = reason is not None and reason not in self._said.values()
        if is_over:
            _LOG.info("group %s, broker %s answers again", self._group, self._broker)

    def retain(self, read: Callable[[], Collection[TopicPartition]]) -> None:
        """Forget partitions that are not among ``read`` any more."""
        with self._lock:
            if any(where is not None for where in self._said):
                kept = set(read())
                self._said = {where: reason for where, reason in self._said.items() if where is None or where in kept}

    def jumped(self, jumps: Sequence[OffsetJump]) -> None:
        """Offsets are not stored any more."""
        for jump in jumps:
            _LOG.warning(
                "group %s, %s: offset %d is not stored any more, continuing at %d",
                *(self._group, jump.where, jump.asked, jump.to),
            )


class PartitionsChanged(MetaqError):
    """The incarnation of ``partitions`` has changed: pending requests to them are void."""

    retryable = True

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        super().__init__(sorted(partitions))

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.args[0]))}: created again, or another broker is at this address"


class FetchThreads(ABC, Generic[Q, O]):
    """One thread per broker; ``close`` ends them. A subclass implements the requests."""

    def __init__(self, state: ConsumerState[Any, Q, O], group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._state, self._group, self._clock = state, group, clock
        self._threads: dict[int | str, threading.Thread] = {}
        state.on_brokers = self._start

    @abstractmethod
    def _fetch(self, broker: int | str) -> None:
        """Run the requests that ``_next`` returns for a broker, until it returns none."""

    def _start(self, brokers: set[int | str]) -> None:
        """Called with the lock of the state."""
        for broker in brokers - set(self._threads):
            name = f"metaq-fetch-{self._group}-{broker}"
            thread = threading.Thread(target=self._run, args=(broker,), name=name, daemon=True)
            self._threads[broker] = thread
            thread.start()

    def close(self, timeout_s: float) -> None:
        """Wait until the threads have ended, at most ``timeout_s``. ``state.closing`` must be set."""
        end_s = SYSTEM_CLOCK.monotonic() + timeout_s
        with self._state.lock:
            threads = list(self._threads.values())
            self._state.notify()
        for thread in threads:
            thread.join(max(0.0, end_s - SYSTEM_CLOCK.monotonic()))

    def _run(self, broker: int | str) -> None:
        try:
            self._fetch(broker)
        except Exception as error:  # raised by the reader
            self._state.fail(error)

    def _next(self, broker: int | str, limit: int = REQUESTS_MAX) -> list[tuple[Owned[Any, Q, O], Q]]:
        """Wait for requests that are due. An empty result ends the thread."""
        state = self._state
        with state.lock:
            while not state.closing:
                now_s = self._clock.monotonic()
                if asked := state.requests(broker, now_s, limit):
                    return asked
                if not any(where.partition.broker == broker for where in state.partitions):
                    break
                due_s = state.next_request_s(broker)
                state.changed.wait(None if due_s is None else max(0.0, due_s - now_s))
            del self._threads[broker]
            return []


class Fetchers(FetchThreads[PartitionRequest, Polled]):
    """The threads for MetaQ brokers. ``check`` returns the partitions of a broker whose incarnation has changed; it is
    called after each new connection, and every ``check_s`` seconds. ``why_away``: why the directory does not have a
    broker now, if that is known.
    """

    def __init__(
        self,
        state: ConsumerState[Delivery, PartitionRequest, Polled],
        directory: Directory,
        pool: SessionPool,
        group: str,
        check: Callable[[int | str], Collection[TopicPartition]],
        check_s: float = inf,
        clock: Clock = SYSTEM_CLOCK,
        why_away: Callable[[int | str], MetaqError | None] = lambda broker: None,
    ) -> None:
        super().__init__(state, group, clock)
        self._why_away = why_away
        self._directory, self._pool, self._check, self._check_s = directory, pool, check, check_s

    def _fetch(self, broker: int | str) -> None:
        log = FetchLog(self._group, broker)
        with ExitStack() as stack:
            session: Session | None = None
            check_at_s = -inf
            while asked := self._next(broker):
                outcomes: Sequence[Polled | None]
                log.retain(self._read)
                try:
                    if session is None or self._clock.monotonic() >= check_at_s:
                        self._require_unchanged(broker)
                        check_at_s = self._clock.monotonic() + self._check_s
                    session = session or stack.enter_context(self._pool.lease(self._address(broker)))
                    answers = poll_all(session, [request for _, request in asked])
                    log.answered([owned.where for owned, _ in asked], answers)
                    outcomes = answers
                except (MetaqError, KeyError, ValueError) as error:
                    log.failed(error)
                    outcomes = [None] * len(asked)
                    if session is not None:
                        session.close("failed")
                    stack.close()
                    session = None
                log.jumped(self._state.fetched(asked, outcomes, self._clock.monotonic()))

    def _require_unchanged(self, broker: int | str) -> None:
        if changed := self._check(broker):
            raise PartitionsChanged(changed)

    def _address(self, broker: int | str) -> Address:
        address = self._directory.brokers().get(int(broker))
        if address is None:
            raise self._why_away(broker) or KeyError(broker)
        return address

    def _read(self) -> Collection[TopicPartition]:
        with self._state.lock:
            return list(self._state.partitions)
