"""Base classes of the clients: blocks that close what they used, and full windows."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from metaq.client.sending.submissions import M, OnOverflow, P, S, Submissions
from metaq.client.threads.thread_calls import InThreads, begin_in_thread, carry_out
from metaq.net.pool import Pool

INTERRUPTED_S: Final = 5.0
"""Seconds that a block left by Ctrl-C waits for submitted messages, or for a group to be left."""


class ClosedByBlock(ABC):
    """Something whose ``with`` block calls ``close`` at the end; after Ctrl-C it waits for a short time only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(leave_limit_s(kind))

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Send what was submitted, for ``timeout`` seconds at most, and close."""


class Ended(Protocol):
    """What a client closes when it is closed itself."""

    def _end_with_client(self, timeout: float | None = None) -> None:
        """Close it; after ``timeout`` seconds, or at once, unfinished work is dropped."""


E = TypeVar("E", bound=Ended)
F = TypeVar("F")


class BlockingClient(ClosedByBlock):
    """A client of servers, over a pool of connections. Objects that it made end with it."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._connections = pool
        self._made: WeakSet[Ended] = WeakSet()

    def _ends(self, made: E) -> E:
        """Register an object that ends with the client."""
        self._made.add(made)
        return made

    def _require_open(self) -> None:
        """Raise ``ValueError`` if the client is closed."""
        self._connections.check_open()

    def _while_open(self, findings: Iterator[F]) -> Iterator[F]:
        """Yield ``findings``; raise ``ValueError`` when the client is closed."""
        self._require_open()
        for each in findings:
            yield each
            self._require_open()

    def close(self, timeout: float | None = None) -> None:
        """Send the messages that producers hold, each for ``timeout`` seconds at most, and close everything.

        Consumers leave their groups, with a ``timeout`` within that or 5 seconds, whichever is longer; messages
        delivered last are not settled, unless the consumers are closed before.
        Objects that the client made raise ``ValueError`` from then on, except ``parked``. Further calls do nothing.
        """
        self._end_all(timeout)
        self._connections.end()

    def _end_all(self, timeout: float | None) -> None:
        for made in list(self._made):
            made._end_with_client(timeout)


Closed = TypeVar("Closed", bound=ClosedByBlock)


class ClosedByAsyncBlock(InThreads[Closed]):
    """``async with`` for an object with a ``with`` block: it is closed in a thread, even if the task is cancelled."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(leave_limit_s(kind))

    async def close(self, timeout: float | None = None) -> None:
        """Send what was submitted, for ``timeout`` seconds at most, and close."""
        await carry_out(self._blocking.close, timeout)


class EndedAwaited(Protocol):
    """What an asyncio client closes when it is closed itself."""

    async def _end_with_client(self, timeout: float | None = None) -> None:
        """Close it at once; ``timeout``: as of the client."""


A = TypeVar("A", bound=EndedAwaited)


Blocking = TypeVar("Blocking", bound=BlockingClient)


class AsyncClient(ClosedByAsyncBlock[Blocking]):
    """``async with`` around a client. Objects that it made end with it."""

    def __init__(self, client: Blocking) -> None:
        super().__init__(client)
        self._made: WeakSet[EndedAwaited] = WeakSet()

    def _ends(self, made: A) -> A:
        """Register an object that ends with the client, in the loop that closes it."""
        self._blocking._require_open()
        self._made.add(made)
        return made

    async def close(self, timeout: float | None = None) -> None:
        """Close the client; see ``BlockingClient.close``. A task that is cancelled meanwhile does not wait for it."""
        try:
            await asyncio.gather(*(made._end_with_client(timeout) for made in list(self._made)))
        except BaseException:  # above all a cancelled task: a consumer waits for a broker that hangs
            begin_in_thread(self._blocking.close, INTERRUPTED_S)
            raise
        await super().close(timeout)


class SubmittingProducer(ClosedByBlock, Generic[M, P, S]):
    """A producer whose messages are stored by a thread: its ``submissions``."""

    submissions: Submissions[M, P, S]

    def _end_with_client(self, timeout: float | None = None) -> None:
        self.close(timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all submitted messages are settled; return ``False`` after ``timeout`` seconds."""
        return self.submissions.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what was submitted and wait for it, for ``timeout`` seconds at most. Further calls do nothing.

        A ``with`` block that is left by Ctrl-C waits for 5 seconds.
        """
        self.submissions.close(timeout)


Block = TypeVar("Block", bound=AbstractContextManager[object, None])


class EndedByAsyncBlock(InThreads[Block]):
    """``async with`` for an object with a ``with`` block, left in a thread, even if the task is cancelled."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await carry_out(self._blocking.__exit__, kind, error, trace)


def leave_limit_s(kind: type[BaseException] | None) -> float | None:
    """Return how long a block that is left by exception type ``kind`` waits; ``None``: as long as ``close``."""
    return None if kind is None or issubclass(kind, Exception) else INTERRUPTED_S


def behind_loop(on_overflow: OnOverflow[M]) -> tuple[OnOverflow[M], bool]:
    """Return the overflow policy of the producer behind a loop, and whether the loop awaits space.

    No thread may wait for space, because the loop does.
    """
    waits = on_overflow == "block"
    return ("raise" if waits else on_overflow), waits
