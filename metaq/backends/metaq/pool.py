"""A pool of sessions with MetaQ brokers, shared within the process."""

from __future__ import annotations

from functools import partial
from typing import Final

from metaq.backends.metaq.session import Session
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.pool import IDLE_MAX_PER_ADDRESS, Pool
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport

IDLE_S_MAX: Final = 240.0
"""A MetaQ broker closes connections after 300 s of silence; the pool drops them before that."""


class SessionPool(Pool[Session]):
    """Leases sessions by address. Thread-safe; a leased session belongs to one thread until it is returned."""

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
    ) -> None:
        connect = partial(Session.connect, timeouts=timeouts, transport=transport, clock=clock)
        super().__init__(connect, clock, idle_s_max=IDLE_S_MAX, idle_max_per_address=idle_max_per_address)
        self.timeouts, self._transport = timeouts, transport

    def hurried(self, seconds: float) -> SessionPool:
        """Return another pool for the same servers, whose sessions have a timeout of at most ``seconds``."""
        shorter = Timeouts(min(seconds, self.timeouts.connect_s), min(seconds, self.timeouts.request_s))
        return SessionPool(shorter, self._transport, self.clock)


_SHARED: Final = SessionPool()


def shared_pool() -> SessionPool:
    """Return the pool that the whole process shares. It has no thread and opens no connection by itself."""
    return _SHARED
