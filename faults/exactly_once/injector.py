"""Kills a process when the inspecting proxies see the planned moment, and records every step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.exactly_once.hold import Hold
from faults.exactly_once.planned_kills import PlannedKill
from faults.exactly_once.proxy import Cut, ObservedStep
from faults.exactly_once.steps import Moment, Step, described
from metaq.protocols.text.commands import Reply, Result

Kill = Callable[[PlannedKill, ObservedStep], bool]
"""Kills the victim; ``False`` if it does not exist, so that the next matching request is awaited."""


@dataclass(frozen=True, slots=True)
class KillDone:
    """Event: a planned kill was carried out."""

    planned: PlannedKill


class Record:
    """A log file with a line for every step and every kill, for the analysis of findings."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Append a line with the seconds since the start."""
        with self._lock:
            self._file.write(f"{time.monotonic() - self._began:9.3f} {line}\n")

    def close(self) -> None:
        self._file.close()


class FaultInjector:
    """The observer of all proxies. ``done`` is called after a kill, in the proxy's thread."""

    def __init__(self, record: Record, kill: Kill, done: Callable[[KillDone], None]) -> None:
        self._record, self._kill, self._done = record, kill, done
        self._lock = threading.Lock()
        self._planned: PlannedKill | None = None
        self._left = 0
        self.hold: Hold | None = None
        """A request to delay, in addition to the planned kills."""

    def arm(self, planned: PlannedKill) -> None:
        """Kill at the next request that matches ``planned``."""
        with self._lock:
            self._planned, self._left = planned, planned.nth

    def disarm(self) -> bool:
        """Cancel the planned kill; return whether it was still due."""
        with self._lock:
            was_armed, self._planned = self._planned is not None, None
            return was_armed

    @contextmanager
    def ceasefire(self) -> Iterator[bool]:
        """Block all steps, so that nothing is killed; yields whether a kill is due."""
        with self._lock:
            yield self._planned is not None

    def asked(self, sighting: ObservedStep) -> None:
        self._record.write(_line("->", sighting, ""))
        self._look(Moment.BEFORE, sighting)
        if self.hold is not None:
            self.hold.asked(sighting)

    def done(self, sighting: ObservedStep, reply: Reply) -> None:
        text = f" = {reply.code} {reply.text[:200]!r}" if isinstance(reply, Result) else ""
        self._record.write(_line("<-", sighting, text))
        if self.hold is not None:
            self.hold.done(sighting, reply)
        self._look(Moment.UNANSWERED, sighting)

    def answered(self, sighting: ObservedStep) -> None:
        if self.hold is not None:
            self.hold.answered(sighting)
        self._look(Moment.AFTER, sighting)

    def _look(self, moment: Moment, sighting: ObservedStep) -> None:
        with self._lock:
            planned = self._planned
            if planned is None or (planned.step, planned.moment) != (sighting.step, moment):
                return
            self._left -= 1
            if self._left > 0 or not self._kill(planned, sighting):
                return
            self._planned = None
            self._record.write(f"## killed: {planned}")
        self._done(KillDone(planned))
        if moment is not Moment.AFTER:
            raise Cut


def _line(arrow: str, sighting: ObservedStep, rest: str) -> str:
    step = sighting.step
    what = described(sighting.command) if step is not Step.PUT or rest == "" else step.value
    return f"{arrow} broker {sighting.broker_id} port {sighting.peer_port}: {what}{rest}"
