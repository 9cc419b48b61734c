"""Sessions with RocketMQ's servers, kept for the next user in the same process."""

from __future__ import annotations

from functools import partial
from typing import Final

from metaq.backends.rocketmq.session import Session
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.pool import IDLE_MAX_PER_ADDRESS, Pool
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport
from metaq.protocols.remoting.acl import Credentials

__all__ = ["Credentials", "SessionPool"]

IDLE_S_MAX: Final = 100.0
"""RocketMQ's servers close connections after 120 s of silence; ours are dropped before that."""


class SessionPool(Pool[Session]):
    """Leases sessions by address, all with one account. Thread safe; each leased session belongs to one thread."""

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        credentials: Credentials | None = None,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
    ) -> None:
        connect = partial(Session.connect, timeouts=timeouts, transport=transport, clock=clock, credentials=credentials)
        super().__init__(connect, clock, idle_s_max=IDLE_S_MAX, idle_max_per_address=idle_max_per_address)
        self.timeouts = timeouts
