"""Fires a shot when the wiretaps see its moment, and writes down every step that passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.fire.hold import Hold
from faults.fire.proxy import Cut, Sighting
from faults.fire.shots import Shot
from faults.fire.steps import Moment, Step, described
from metaq.protocols.text.commands import Reply, Result

Kill = Callable[[Shot, Sighting], bool]
"""Kills the victim; ``False`` if it is not there (any more): then the next such request is waited for."""


@dataclass(frozen=True, slots=True)
class Fired:
    """A shot has hit."""

    shot: Shot


class Record:
    """A text file with a line for every step and every kill: what to read when something is found."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Add a line, with the seconds since the start before it."""
        with self._lock:
            self._file.write(f"{time.monotonic() - self._began:9.3f} {line}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FaultInjector:
    """The observer of all taps. ``fired`` is called after a kill, in the thread of the tap."""

    def __init__(self, record: Record, kill: Kill, fired: Callable[[Fired], None]) -> None:
        self._record, self._kill, self._fired = record, kill, fired
        self._lock = threading.Lock()
        self._shot: Shot | None = None
        self._left = 0
        self.hold: Hold | None = None
        """A request to hold back, besides all shots."""

    def arm(self, shot: Shot) -> None:
        """Fire ``shot`` at the next request that fits it."""
        with self._lock:
            self._shot, self._left = shot, shot.nth

    def disarm(self) -> bool:
        """Do not fire any more; return whether there was a shot that had not been fired."""
        with self._lock:
            was_armed, self._shot = self._shot is not None, None
            return was_armed

    @contextmanager
    def ceasefire(self) -> Iterator[bool]:
        """Let no step pass meanwhile, so that nothing is fired; yields whether a shot waits."""
        with self._lock:
            yield self._shot is not None

    def asked(self, sighting: Sighting) -> None:
        self._record.write(_line("->", sighting, ""))
        self._look(Moment.BEFORE, sighting)
        if self.hold is not None:
            self.hold.asked(sighting)

    def done(self, sighting: Sighting, reply: Reply) -> None:
        text = f" = {reply.code} {reply.text[:200]!r}" if isinstance(reply, Result) else ""
        self._record.write(_line("<-", sighting, text))
        if self.hold is not None:
            self.hold.done(sighting, reply)
        self._look(Moment.UNANSWERED, sighting)

    def answered(self, sighting: Sighting) -> None:
        if self.hold is not None:
            self.hold.answered(sighting)
        self._look(Moment.AFTER, sighting)

    def _look(self, moment: Moment, sighting: Sighting) -> None:
        with self._lock:
            shot = self._shot
            if shot is None or (shot.step, shot.moment) != (sighting.step, moment):
                return
            self._left -= 1
            if self._left > 0 or not self._kill(shot, sighting):
                return
            self._shot = None
            self._record.write(f"## killed: {shot}")
        self._fired(Fired(shot))
        if moment is not Moment.AFTER:
            raise Cut


def _line(arrow: str, sighting: Sighting, rest: str) -> str:
    step = sighting.step
    what = described(sighting.command) if step is not Step.PUT or rest == "" else step.value
    return f"{arrow} broker {sighting.broker_id} port {sighting.peer_port}: {what}{rest}"
