"""Sync jobs that the kernel runs: those that are a sync of one file and nothing else. See ``flush.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from metaq_broker.log.sync.sync import SyncJob

Owner = TypeVar("Owner")


class KernelSyncs(Protocol):
    """What of ``metaq_broker.log.sync.kernel_syncs`` is needed here."""

    def fileno(self) -> int:
        """Return what is ready to be read when syncs have ended."""

    def submit(self, descriptor: int, token: int, /) -> bool:
        """Begin a sync of an open file; say whether it was begun."""

    def take(self) -> list[tuple[int, int]]:
        """Return the tokens of those that have ended, with the number of the error or 0."""

    def close(self) -> None:
        """Give everything back."""


class KernelJobs(Generic[Owner]):
    """``open_kernel`` is called for the first job; ``ended`` when some have ended: ``take`` them."""

    def __init__(self, open_kernel: Callable[[], KernelSyncs | None], ended: Callable[[], None]) -> None:
        self._open_kernel: Callable[[], KernelSyncs | None] | None = open_kernel
        self._ended = ended
        self._kernel: KernelSyncs | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._submitted: dict[int, tuple[Owner, SyncJob, float]] = {}
        self._tokens = 0

    def submit(self, loop: asyncio.AbstractEventLoop, owner: Owner, job: SyncJob) -> bool:
        """Have the kernel run a job; say whether it does."""
        if (descriptor := job.only_file) is None:
            return False
        if self._open_kernel is not None:
            self._kernel, self._open_kernel, self._loop = self._open_kernel(), None, loop
            if self._kernel is not None:
                loop.add_reader(self._kernel.fileno(), self._ended)
        if self._kernel is None or not self._kernel.submit(descriptor, self._tokens + 1):
            return False
        self._tokens += 1
        self._submitted[self._tokens] = owner, job, loop.time()
        return True

    def take(self) -> list[tuple[Owner, SyncJob, float]]:
        """Return jobs that have ended, with the seconds they took; one that failed knows its ``failure``."""
        assert self._kernel is not None
        assert self._loop is not None
        now, found = self._loop.time(), []
        for token, number in self._kernel.take():
            owner, job, began = self._submitted.pop(token)
            if number:
                job.failure = OSError(number, "the sync failed")
            found.append((owner, job, now - began))
        return found

    def close(self) -> None:
        """Give everything back. No job is under way."""
        if self._kernel is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._kernel.fileno())
            self._kernel.close()
            self._kernel = None
