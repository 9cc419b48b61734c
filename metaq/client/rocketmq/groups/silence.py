"""Finds out that a silent broker has been replaced: a frozen master closes no connection, and pulls wait at it anyway.

A broker that has nothing to deliver is silent, too. So the name servers are asked after a second of silence, and then
each time the silence has grown by a quarter, up to every ``LOOK_S_MAX``: a consumer that gets messages all the time
notices soon, and one that gets none asks as rarely as Java's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.model import Address
from metaq.net.clock import Clock

LOOK_S: Final = 1.0
LOOK_S_MAX: Final = 30.0
GROWTH: Final = 0.25
"""The share of the silence so far after which the next look follows."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    """Pulls wait at ``address``; its last messages came at ``heard_s``, and it is looked for at ``look_s``."""

    address: Address
    heard_s: float
    look_s: float


class SilentMasters:
    """Calls ``replaced(address)`` when a silent master is not the master any more. A thread runs from the first pull
    until ``close``. ``has_moved`` asks the name servers.
    """

    def __init__(
        self, has_moved: Callable[[str, Address], bool], replaced: Callable[[Address], None], clock: Clock
    ) -> None:
        self._has_moved, self._replaced, self._clock = has_moved, replaced, clock
        self._changed = threading.Condition()
        self._waiting: dict[str, _Waiting] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def waits(self, broker_name: str, address: Address) -> None:
        """A pull was sent to a master."""
        known = self._waiting.get(broker_name)
        if known is None or known.address != address:
            self.heard(broker_name, address)

    def heard(self, broker_name: str, address: Address) -> None:
        """A master has sent messages, or gets its first pull."""
        now_s = self._clock.monotonic()
        with self._changed:
            self._waiting[broker_name] = _Waiting(address, now_s, now_s + LOOK_S)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="metaq-silent-masters", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._is_closed:
            for name, waiting in list(self._waiting.items()):
                if self._clock.monotonic() >= waiting.look_s:
                    self._look(name, waiting)
            with self._changed:
                now_s = self._clock.monotonic()
                first_s = min((waiting.look_s for waiting in self._waiting.values()), default=now_s + LOOK_S)
                if not self._is_closed:
                    self._changed.wait(max(0.01, first_s - now_s))

    def _look(self, name: str, waiting: _Waiting) -> None:
        if self._has_moved(name, waiting.address):
            _LOG.warning("broker %s: %s is silent, and not the master any more", name, waiting.address)
            with self._changed:
                if self._waiting.get(name) is waiting:
                    del self._waiting[name]
            self._replaced(waiting.address)
        else:
            now_s = self._clock.monotonic()
            waiting.look_s = now_s + min(max(LOOK_S, GROWTH * (now_s - waiting.heard_s)), LOOK_S_MAX)
