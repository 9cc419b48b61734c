"""What the clients' outer classes have in common: blocks that close what they have used, and full windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from metaq.client.submissions import M, OnOverflow, P, S, Submissions
from metaq.client.thread_calls import call_in_thread, carry_out
from metaq.net.pool import Pool

INTERRUPTED_S: Final = 5.0
"""How long a block that is left by Ctrl-C waits for what was submitted."""


class ClosedByBlock(ABC):
    """Something with ``close``, which leaving its ``with`` block calls: by Ctrl-C it does not wait for long."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(_leave_limit_s(kind))

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Send what was submitted, for ``timeout`` seconds at most, and close."""


class Ended(Protocol):
    """What a client ends when it is closed."""

    def _end_with_client(self, timeout: float | None = None) -> None:
        """Close it; what it has not finished within ``timeout`` seconds, or at once, is left."""


E = TypeVar("E", bound=Ended)


class Client(ClosedByBlock):
    """A client of servers, over a pool of connections. What it has made ends with it."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._connections = pool
        self._made: WeakSet[Ended] = WeakSet()

    def _ends(self, made: E) -> E:
        """Have something that was made ended with the client."""
        self._made.add(made)
        return made

    def _require_open(self) -> None:
        """Raise ``ValueError`` if the client is closed."""
        self._connections.check_open()

    def close(self, timeout: float | None = None) -> None:
        """Send what producers have taken, each for ``timeout`` seconds at most, and close everything.

        Consumers leave their groups; what was handed out last is not settled, unless they are closed before. What the
        client has made cannot be used any more: it raises ``ValueError``. Further calls do nothing.
        """
        self._end_all(timeout)
        self._connections.end()

    def _end_all(self, timeout: float | None) -> None:
        for made in list(self._made):
            made._end_with_client(timeout)


class ClosedByAsyncBlock:
    """Around something that a ``with`` block closes, for ``async with``: it is closed in a thread, also if the task is
    cancelled.
    """

    def __init__(self, blocking: ClosedByBlock) -> None:
        self._blocking = blocking

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(_leave_limit_s(kind))

    async def close(self, timeout: float | None = None) -> None:
        """Send what was submitted, for ``timeout`` seconds at most, and close."""
        await carry_out(self._blocking.close, timeout)


class EndedAwaited(Protocol):
    """What a client for asyncio ends when it is closed."""

    async def _end_with_client(self) -> None:
        """Close it at once."""


A = TypeVar("A", bound=EndedAwaited)


class AsyncClient(ClosedByAsyncBlock):
    """Around a client. What it has made ends with it."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._client = client
        self._made: WeakSet[EndedAwaited] = WeakSet()

    def _ends(self, made: A) -> A:
        """Have something that was made ended with the client, in the loop that closes it."""
        self._client._require_open()
        self._made.add(made)
        return made

    async def close(self, timeout: float | None = None) -> None:
        """As ``Client.close``."""
        for made in list(self._made):
            await made._end_with_client()
        await super().close(timeout)


class SubmittingProducer(ClosedByBlock, Generic[M, P, S]):
    """A producer whose messages are stored by a thread of its own: its ``submissions``."""

    submissions: Submissions[M, P, S]

    def _end_with_client(self, timeout: float | None = None) -> None:
        """As ``close``."""
        self.close(timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was submitted is settled; return whether that was within ``timeout`` seconds."""
        return self.submissions.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what was submitted and wait for it, for ``timeout`` seconds at most. Further calls do nothing.

        A ``with`` block that is left by Ctrl-C waits for 5 seconds.
        """
        self.submissions.close(timeout)


class AsyncSubmittingProducer(ClosedByAsyncBlock):
    """Around such a producer."""

    def __init__(self, producer: SubmittingProducer[Any, Any, Any]) -> None:
        super().__init__(producer)
        self._submitting = producer

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was submitted is settled; return whether that was within ``timeout`` seconds."""
        return await call_in_thread(self._submitting.flush, timeout)


class EndedByAsyncBlock:
    """Something with a ``with`` block, for ``async with``: the block is left in a thread, also by a task that is
    cancelled."""

    def __init__(self, block: AbstractContextManager[object, None]) -> None:
        self._block = block

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await carry_out(self._block.__exit__, kind, error, trace)


def _leave_limit_s(kind: type[BaseException] | None) -> float | None:
    """How long a block that ``kind`` leaves waits for what was submitted."""
    return None if kind is None or issubclass(kind, Exception) else INTERRUPTED_S


def behind_loop(on_overflow: OnOverflow[M]) -> tuple[OnOverflow[M], bool]:
    """What the producer behind a loop does when its window is full, and whether the loop awaits space: no thread
    must wait for it."""
    waits = on_overflow == "block"
    return ("raise" if waits else on_overflow), waits
