"""Asks one of several name servers, and another one when it does not answer.

Every name server knows every route, so one is enough. A failed call is repeated at the others within its deadline. Each
gets an equal share of the remaining time, so that a server that accepts connections and never answers cannot use it up.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from metaq.errors import ConnectionFailed, MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.clock import Clock

R = TypeVar("R")


class NameServers:
    """The list of name servers and the current one. Thread-safe."""

    def __init__(self, addresses: Sequence[Address], clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._addresses: tuple[Address, ...] = ()
        self._current = 0
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._addresses

    @property
    def current(self) -> Address | None:
        """The name server that is asked first; ``None`` if the list is empty."""
        with self._lock:
            return self._addresses[self._current] if self._addresses else None

    def replace(self, addresses: Sequence[Address]) -> None:
        """Replace the list. The current server stays if it is in the list, else a random one is chosen, to spread the
        load.
        """
        with self._lock:
            asked = self._addresses[self._current] if self._addresses else None
            self._addresses = tuple(dict.fromkeys(addresses))
            if asked in self._addresses:
                self._current = self._addresses.index(asked)
            else:
                self._current = random.randrange(len(self._addresses)) if self._addresses else 0

    def ask(self, question: Callable[[Address, float], R], timeout_s: float) -> R:
        """Return what ``question(address, seconds)`` returns at the first server that answers.

        Raises:
            MetaqError: The error of the last one; errors that would occur at any server are raised at once.
        """
        deadline = self._clock.monotonic() + timeout_s
        servers = self._in_order()
        if not servers:
            raise ConnectionFailed("(none)", "name server call", "no name server is configured")
        for left, address in zip(range(len(servers), 0, -1), servers, strict=True):
            share_s = (deadline - self._clock.monotonic()) / left
            try:
                answer = question(address, max(0.001, share_s))
            except MetaqError as error:
                if left == 1 or not _elsewhere(error) or self._clock.monotonic() >= deadline:
                    raise
            else:
                self._prefer(address)
                return answer
        raise AssertionError("the loop returns or raises")

    def _in_order(self) -> tuple[Address, ...]:
        with self._lock:
            return self._addresses[self._current :] + self._addresses[: self._current]

    def _prefer(self, address: Address) -> None:
        with self._lock:
            if address in self._addresses:
                self._current = self._addresses.index(address)


def _elsewhere(error: MetaqError) -> bool:
    """Return whether another server may succeed."""
    return error.retryable or isinstance(error, ProtocolError)
