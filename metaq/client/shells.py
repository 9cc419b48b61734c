"""What the clients' outer classes have in common: blocks that close what they have used, and full windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, Self

from metaq.client.submissions import M, OnOverflow, P, S, Submissions
from metaq.client.thread_calls import call_in_thread, carry_out

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


class SubmittingProducer(ClosedByBlock, Generic[M, P, S]):
    """A producer whose messages are stored by a thread of its own: its ``submissions``."""

    submissions: Submissions[M, P, S]

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
