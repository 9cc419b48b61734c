"""A pool of sessions with RocketMQ's servers, shared within the process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from metaq.backends.rocketmq.session import Session
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock, wait_s_until
from metaq.net.pool import IDLE_MAX_PER_ADDRESS, Pool
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport
from metaq.protocols.remoting.acl import Credentials

__all__ = ["Credentials", "SessionPool"]

IDLE_S_MAX: Final = 100.0
"""RocketMQ's servers close connections after 120 s of silence; the pool drops them before that."""


class SessionPool(Pool[Session]):
    """Leases sessions by address, all with one account. Thread-safe; a leased session belongs to one thread."""

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        credentials: Credentials | None = None,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
    ) -> None:
        self._opened = partial(Session.connect, transport=transport, clock=clock, credentials=credentials)
        connect = partial(self._opened, timeouts=timeouts)
        super().__init__(connect, clock, idle_s_max=IDLE_S_MAX, idle_max_per_address=idle_max_per_address)
        self.timeouts = timeouts
        self._parts = transport, clock, credentials
        self._registries: dict[Hashable, Callable[[Address], bool]] = {}

    def register(self, name: Hashable, has_moved: Callable[[Address], bool]) -> None:
        """Add a registry. ``has_moved`` is called while the server at an address is silent, and tells whether another
        one has replaced it; then it is given up. It raises nothing.
        """
        self._registries[name] = has_moved

    def _has_moved(self, address: Address) -> bool:
        return any(has_moved(address) for has_moved in list(self._registries.values()))

    def hurried(self, seconds: float) -> SessionPool:
        """Return another pool for the same servers, whose sessions have a timeout of at most ``seconds``. It keeps none
        of them, so it need not be closed.
        """
        shorter = Timeouts(min(seconds, self.timeouts.connect_s), min(seconds, self.timeouts.request_s))
        return SessionPool(shorter, *self._parts, idle_max_per_address=0)

    @contextmanager
    def lease(self, address: Address, until_s: float | None = None) -> Iterator[Session]:
        """Lease a session; connecting and each request on it end at ``until_s``."""
        with super().lease(address, until_s) as session:
            session.until_s = until_s
            session.has_moved = self._has_moved if self._registries else None
            yield session

    def _open(self, address: Address, until_s: float | None) -> Session:
        if until_s is None:
            return super()._open(address, until_s)
        left_s = wait_s_until(until_s, self.clock)
        return self._opened(address, timeouts=replace(self.timeouts, connect_s=min(self.timeouts.connect_s, left_s)))
