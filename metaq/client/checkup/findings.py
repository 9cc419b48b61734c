"""Findings, and checks that run in parallel, each with a deadline: a server that hangs costs only its own line."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from metaq.errors import MetaqError
from metaq.net.clock import SYSTEM_CLOCK

Level = Literal["ok", "warn", "fail"]

AT_ONCE: Final = 32
"""Limit on checks that run at the same time, each in a thread."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``fail``: something does not work; ``warn``: it may fail soon, or is not as it
    should be.
    """

    level: Level
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """A single check. ``find`` yields findings and may raise ``MetaqError``, ``OSError`` or ``ValueError``."""

    what: str
    find: Callable[[], Iterable[Finding]]


def ok(what: str, detail: str) -> Finding:
    return Finding("ok", what, detail)


def warn(what: str, detail: str) -> Finding:
    return Finding("warn", what, detail)


def fail(what: str, detail: str) -> Finding:
    return Finding("fail", what, detail)


def run_checks(checks: Sequence[Check], deadline_s: float) -> Iterator[Finding]:
    """Run the checks in parallel, and yield their findings in the order of ``checks``.

    A check that takes longer than ``deadline_s`` is abandoned, with a finding that says so.
    """
    for first in range(0, len(checks), AT_ONCE):
        yield from _run(checks[first : first + AT_ONCE], deadline_s)


def _run(checks: Sequence[Check], deadline_s: float) -> Iterator[Finding]:
    running = [(check, _start(check)) for check in checks]
    end_s = SYSTEM_CLOCK.monotonic() + deadline_s
    for check, found in running:
        while True:
            try:
                finding = found.get(timeout=max(0.0, end_s - SYSTEM_CLOCK.monotonic()))
            except queue.Empty:
                yield fail(check.what, f"no answer within {deadline_s:g} s")
                break
            if finding is None:
                break
            if isinstance(finding, BaseException):
                raise finding
            yield finding


def _start(check: Check) -> queue.Queue[Finding | BaseException | None]:
    """Run a check in a thread that does not keep the process alive; ``None`` follows its last finding."""
    found: queue.Queue[Finding | BaseException | None] = queue.Queue()

    def run() -> None:
        try:
            for finding in check.find():
                found.put(finding)
        except (MetaqError, OSError, ValueError) as error:
            found.put(fail(check.what, str(error)))
        except BaseException as error:
            found.put(error)
        found.put(None)

    threading.Thread(target=run, name=f"metaq-check-{check.what}", daemon=True).start()
    return found
