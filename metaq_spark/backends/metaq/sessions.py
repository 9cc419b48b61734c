"""Connections for work that goes on after a broker's restart: opened again and again, as the options allow."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.retry import persist
from metaq_spark.backends.metaq.cluster import pool_with
from metaq_spark.backends.metaq.options import BrokerOptions


class RetryingSessions:
    """Leases sessions of a pool; tries to connect as often as ``policy`` says."""

    def __init__(self, options: BrokerOptions, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.pool = pool or pool_with(options.timeouts, options.tls)
        self.policy = options.retry_policy
        self.clock = clock

    def lease(self, address: Address) -> AbstractContextManager[Session]:
        """An open session, as ``SessionPool.lease``; it is opened here, and given back by the ``with`` block.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is none, even after retries.
        """
        stack = ExitStack()
        session = persist(lambda: stack.enter_context(self.pool.lease(address)), self.policy, self.clock)
        return _Opened(session, stack)


class _Opened(AbstractContextManager[Session]):
    """A lease that has been entered already."""

    def __init__(self, session: Session, stack: ExitStack) -> None:
        self._session, self._stack = session, stack

    def __enter__(self) -> Session:
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
