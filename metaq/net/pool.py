"""A pool of idle connections, shared within the process.

Spark forks its Python workers and uses each for many tasks, so connections outlive tasks, and a process may inherit its
parent's sockets. Sharing one would mix two conversations; so idle sessions are stored by process id, and a child drops
inherited ones without writing to them (closing its copy of the descriptor does not end the parent's connection).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock

IDLE_MAX_PER_ADDRESS: Final = 8


class Pooled(Protocol):
    """What a pool needs of a session, in any protocol."""

    @property
    def address(self) -> Address: ...

    @property
    def quiet(self) -> bool:
        """Whether the session can be reused: no request in flight, no unexpected data received. Never waits."""

    def close(self, reason: str = "") -> None: ...


S = TypeVar("S", bound=Pooled)


class _Idle(Generic[S]):
    """The idle sessions of one process, newest last."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection in a block with this lock may close a generator that has leased a session.
        self.lock = threading.RLock()
        self.sessions: dict[Address, list[tuple[S, float]]] = {}

    def drain(self) -> None:
        with self.lock:
            dropped, self.sessions = self.sessions, {}
        for kept in dropped.values():
            for session, _ in kept:
                session.close("dropped by the pool")


class Pool(Generic[S]):
    """Leases sessions by address. Thread-safe; a leased session belongs to one thread until it is returned.

    ``connect`` opens a session. ``clock`` is the clock of the sessions. A session that was idle for ``idle_s_max`` is
    not reused: the peer may be about to close it. At most ``idle_max_per_address`` are kept. ``serving`` returns the
    address to connect to for the one that is asked for; by default they are the same.
    """

    def __init__(
        self,
        connect: Callable[[Address], S],
        clock: Clock = SYSTEM_CLOCK,
        *,
        idle_s_max: float,
        idle_max_per_address: int = IDLE_MAX_PER_ADDRESS,
        serving: Callable[[Address], Address] | None = None,
    ) -> None:
        if idle_max_per_address < 0:
            raise ValueError(f"idle_max_per_address={idle_max_per_address}: expected 0 or more")
        self._connect, self.clock, self._idle_s_max = connect, clock, idle_s_max
        self._idle_max_per_address, self._serving = idle_max_per_address, serving
        self._idle_by_process: dict[int, _Idle[S]] = {}
        self._closed = self._ended = False
        self.opened = 0
        """Number of sessions opened so far. If it has not changed between two leases, no server was restarted."""

    @contextmanager
    def lease(self, address: Address, until_s: float | None = None) -> Iterator[S]:
        """Lease an open session to ``address`` for the ``with`` block: an idle one, or a new one.

        ``until_s``: the caller's deadline on the clock, for pools whose sessions support it. A session returns to the
        pool if the block ends without an error, or with its generator, and no request is in flight; otherwise it is
        closed.

        Raises:
            ValueError: The pool has ended.
            ConnectionFailed, DeadlineExceeded: No session is idle and no new one can be opened.
        """
        self.check_open()
        process, address = os.getpid(), address if self._serving is None else self._serving(address)
        session = self._take_idle(address)
        if session is None:
            session = self._open(address, until_s)
            self.opened += 1
        try:
            yield session
        except GeneratorExit:  # a generator with such a block is closed before its end: no error
            self._put_back(session, process)
            raise
        except BaseException as error:
            session.close(f"{type(error).__name__} while leased")
            raise
        self._put_back(session, process)

    def _open(self, address: Address, until_s: float | None) -> S:
        return self._connect(address)

    def close(self) -> None:
        """Close this process's idle sessions; leased ones are closed when they are returned."""
        self._closed = True
        self._idle().drain()

    def end(self) -> None:
        """Close the pool, and lease no more sessions: the client that owns the pool is closed."""
        self._ended = True
        self.close()

    def check_open(self) -> None:
        """Check that the pool leases sessions.

        Raises:
            ValueError: The pool has ended.
        """
        if self._ended:
            raise ValueError("the client is closed")

    def idle_count(self, address: Address) -> int:
        """Return the number of idle sessions to ``address`` in this process."""
        idle = self._idle()
        with idle.lock:
            return len(idle.sessions.get(address, ()))

    def _idle(self) -> _Idle[S]:
        process = os.getpid()
        idle = self._idle_by_process.get(process)
        if idle is None:
            # setdefault: two concurrent threads get the same object. No lock: a fork may have copied it while a thread
            # held it that does not exist in this process.
            idle = self._idle_by_process.setdefault(process, _Idle())
            for inherited in [pid for pid in list(self._idle_by_process) if pid != process]:
                self._drop_inherited(inherited)
        return idle

    def _drop_inherited(self, process: int) -> None:
        inherited = self._idle_by_process.pop(process, None)
        for kept in list(inherited.sessions.values()) if inherited else ():
            for session, _ in kept:
                session.close("belongs to the parent process")

    def _take_idle(self, address: Address) -> S | None:
        """Return the newest idle session that is usable; unusable ones found before it are closed."""
        idle = self._idle()
        while True:
            with idle.lock:
                kept = idle.sessions.get(address)
                if not kept:
                    return None
                session, since_s = kept.pop()
            # If it is readable without a request, the broker closed it, or a response is left over.
            if session.quiet and self.clock.monotonic() - since_s < self._idle_s_max:
                return session
            session.close("gone stale in the pool")

    def _put_back(self, session: S, process: int) -> None:
        """End the lease of a session that was leased in ``process``."""
        if process != os.getpid():
            session.close("belongs to the parent process")
            return
        if not session.quiet:
            session.close("returned in the middle of a conversation")
            return
        idle = self._idle()
        with idle.lock:
            kept = idle.sessions.setdefault(session.address, [])
            kept.append((session, self.clock.monotonic()))
            # close() sets _closed before it takes the lock to drain: a session kept here is drained there, or not kept.
            surplus = kept.pop(0)[0] if len(kept) > (0 if self._closed else self._idle_max_per_address) else None
        if surplus is not None:
            surplus.close("one idle session too many")

    def __repr__(self) -> str:
        idle = self._idle()
        with idle.lock:
            counts = ", ".join(f"{address}: {len(kept)}" for address, kept in idle.sessions.items() if kept)
        return f"<{type(self).__name__} idle {{{counts}}}>"
