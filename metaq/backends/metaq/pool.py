"""Idle connections, kept for the next user in the same process.

Spark forks its Python workers and uses each for many tasks, so connections outlive tasks, and a process may find itself
with its parent's sockets. Sharing one would mix two conversations; so idle sessions are filed by process id, and
a child drops those it inherited without writing to them (closing its copy of the descriptor does not end the parent's
connection).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from metaq.backends.metaq.session import Session
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport

IDLE_MAX_PER_ADDRESS: Final = 8
IDLE_S_MAX: Final = 240.0
"""A MetaQ broker closes connections after 300 s of silence; ours are dropped before that."""


class _Idle:
    """The idle sessions of one process, newest last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sessions: dict[Address, list[tuple[Session, float]]] = {}

    def drain(self) -> None:
        with self.lock:
            sessions = [session for kept in self.sessions.values() for session, _ in kept]
            self.sessions.clear()
        for session in sessions:
            session.close("dropped by the pool")


class SessionPool:
    """Leases sessions by address. Thread safe; each leased session belongs to one thread until it is returned."""

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
    ) -> None:
        if idle_max_per_address < 0:
            raise ValueError(f"idle_max_per_address={idle_max_per_address}: expected 0 or more")
        self.timeouts, self._transport, self._clock = timeouts, transport, clock
        self._idle_max_per_address = idle_max_per_address
        self._idle_by_process: dict[int, _Idle] = {}

    @contextmanager
    def lease(self, address: Address) -> Iterator[Session]:
        """An open session to ``address`` for the ``with`` block: an idle one, or a new one.

        It goes back to the pool if the block ends well and nothing is under way on it; otherwise it is closed.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is none idle and no new one can be opened.
        """
        process = os.getpid()
        session = self._take_idle(address) or Session.connect(address, self.timeouts, self._transport, self._clock)
        try:
            yield session
        except BaseException as error:
            session.close(f"{type(error).__name__} while leased")
            raise
        if process == os.getpid():
            self._put_back(session)
        else:
            session.close("belongs to the parent process")

    @property
    def clock(self) -> Clock:
        """What the sessions of this pool tell the time with."""
        return self._clock

    def close(self) -> None:
        """Close this process's idle sessions. Leased ones are closed by their users' ``with`` blocks as usual."""
        self._idle().drain()

    def idle_count(self, address: Address) -> int:
        """How many sessions to ``address`` wait in this process."""
        idle = self._idle()
        with idle.lock:
            return len(idle.sessions.get(address, ()))

    def _idle(self) -> _Idle:
        process = os.getpid()
        idle = self._idle_by_process.get(process)
        if idle is None:
            # setdefault: of two threads that get here first, both use the same one. No lock: a fork may have copied it
            # locked, by a thread that does not exist in this process.
            idle = self._idle_by_process.setdefault(process, _Idle())
            for inherited in [pid for pid in list(self._idle_by_process) if pid != process]:
                self._drop_inherited(inherited)
        return idle

    def _drop_inherited(self, process: int) -> None:
        inherited = self._idle_by_process.pop(process, None)
        for kept in list(inherited.sessions.values()) if inherited else ():
            for session, _ in kept:
                session.close("belongs to the parent process")

    def _take_idle(self, address: Address) -> Session | None:
        """The newest idle session that is still good; the bad ones met on the way are closed."""
        idle = self._idle()
        while True:
            with idle.lock:
                kept = idle.sessions.get(address)
                if not kept:
                    return None
                session, since_s = kept.pop()
            # Readable without having been asked means that the broker closed it, or that it is out of step.
            if session.quiet and self._clock.monotonic() - since_s < IDLE_S_MAX:
                return session
            session.close("gone stale in the pool")

    def _put_back(self, session: Session) -> None:
        if not session.quiet:
            session.close("returned in the middle of a conversation")
            return
        idle = self._idle()
        with idle.lock:
            kept = idle.sessions.setdefault(session.address, [])
            kept.append((session, self._clock.monotonic()))
            surplus = kept.pop(0)[0] if len(kept) > self._idle_max_per_address else None
        if surplus is not None:
            surplus.close("one idle session too many")

    def __repr__(self) -> str:
        idle = self._idle()
        with idle.lock:
            counts = ", ".join(f"{address}: {len(kept)}" for address, kept in idle.sessions.items() if kept)
        return f"<SessionPool idle {{{counts}}}>"


_SHARED: Final = SessionPool()


def shared_pool() -> SessionPool:
    """The pool that everything in this process may share. It has no thread and no connection of its own."""
    return _SHARED
