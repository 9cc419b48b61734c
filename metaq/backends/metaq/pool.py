"""A pool of sessions with MetaQ brokers, shared within the process.

The address of a member of a pair stands for the pair's master: see ``pair_members``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from metaq.backends.metaq.pair_members import ASK_S, PairFacts, PairMembers, parse_pair
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.pool import IDLE_MAX_PER_ADDRESS, Pool
from metaq.net.retry import ELECTION_PAUSE_S, ELECTION_PAUSE_S_MAX, RetryPolicy
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport
from metaq.protocols.text.commands import Stats

IDLE_S_MAX: Final = 240.0
"""A MetaQ broker closes connections after 300 s of silence; the pool drops them before that."""


def pair_policy(retries: int, timeouts: Timeouts) -> RetryPolicy:
    """Return the retries of requests to a pair: they continue for the time of one request while it has no master."""
    return RetryPolicy(retries, ELECTION_PAUSE_S, timeouts.request_s, ELECTION_PAUSE_S_MAX)


class SessionPool(Pool[Session]):
    """Leases sessions by address. Thread-safe; a leased session belongs to one thread until it is returned."""

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
    ) -> None:
        self.members = PairMembers(self._ask_member)
        connect = partial(Session.connect, timeouts=timeouts, transport=transport, clock=clock, members=self.members)
        super().__init__(
            connect,
            clock,
            idle_s_max=IDLE_S_MAX,
            idle_max_per_address=idle_max_per_address,
            serving=self.members.serving,
        )
        self.timeouts, self._transport = timeouts, transport

    def hurried(self, seconds: float) -> SessionPool:
        """Return another pool for the same servers, whose sessions have a timeout of at most ``seconds``."""
        shorter = Timeouts(min(seconds, self.timeouts.connect_s), min(seconds, self.timeouts.request_s))
        return SessionPool(shorter, self._transport, self.clock)

    @contextmanager
    def member(self, address: Address) -> Iterator[Session]:
        """Open a session with the broker at ``address`` itself, also if that is not the master of its pair."""
        with closing(Session.connect(address, self.timeouts, self._transport, self.clock)) as session:
            yield session

    def _open(self, address: Address, until_s: float | None) -> Session:
        """Open a session, with the other member of a pair if the broker at ``address`` is away."""
        try:
            return super()._open(address, until_s)
        except MetaqError as error:
            moved = self.members.look(address) if error.away else address
            if moved == address:
                raise
        return super()._open(moved, until_s)

    def _ask_member(self, address: Address) -> PairFacts | None:
        """Return what the broker at ``address`` says about its pair; ``None`` if it has none, or does not answer."""
        try:
            with self.hurried(ASK_S).member(address) as session:
                return parse_pair(session.ask(Stats("", 0)))
        except MetaqError:
            return None


_SHARED: Final = SessionPool()


def shared_pool() -> SessionPool:
    """Return the pool that the whole process shares. It has no thread and opens no connection by itself."""
    return _SHARED
