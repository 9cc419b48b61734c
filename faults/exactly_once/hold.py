"""Delays a request at the proxy, as a slow network would, and records what follows its release."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from faults.exactly_once.proxy import ObservedStep
from faults.exactly_once.steps import Step
from metaq.protocols.text.commands import Reply


@dataclass(frozen=True, slots=True)
class DelayedRequest:
    """Event: the request has arrived and is delayed."""

    sighting: ObservedStep


class Hold:
    """Waits for the ``nth`` request of a step, then calls ``caught`` in the proxy's thread and delays the request."""

    def __init__(self, step: Step, nth: int, caught: Callable[[DelayedRequest], None]) -> None:
        self._step, self._left, self._caught = step, nth, caught
        self._lock = threading.Lock()
        self._held: ObservedStep | None = None
        self._released, self._over = threading.Event(), threading.Event()
        self.heard: list[tuple[ObservedStep, Reply]] = []
        """All steps that were answered after the release."""

    def asked(self, sighting: ObservedStep) -> None:
        """Delay the request, if it is the chosen one."""
        with self._lock:
            if self._held is not None or sighting.step is not self._step:
                return
            self._left -= 1
            if self._left > 0:
                return
            self._held = sighting
        self._caught(DelayedRequest(sighting))
        self._released.wait()

    def done(self, sighting: ObservedStep, reply: Reply) -> None:
        if self._released.is_set():
            self.heard.append((sighting, reply))

    def answered(self, sighting: ObservedStep) -> None:
        """Notice that the delayed request was answered."""
        if sighting is self._held:
            self._over.set()

    def release(self, patience_s: float) -> bool:
        """Release the request; return whether it was answered in time."""
        self._released.set()
        return self._over.wait(patience_s)
