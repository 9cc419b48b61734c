"""The arguments of a scenario, and functions that scenarios share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.history import Outcome
from faults.trial import Trial

PATIENCE_S: Final = 120.0
LOOK_INTERVAL_S: Final = 0.01


class Skipped(Exception):
    """A scenario cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings of a scenario: ``base`` for its folder, ``seed`` for its choices, ``haste`` for a short version."""

    base: Path
    seed: str
    haste: bool = False

    @contextmanager
    def play(self, trial: Trial) -> Iterator[Trial]:
        """Start the broker; at the end, end it and the workers, and remove the folder unless something failed."""
        trial.broker.start()
        try:
            yield trial
        finally:
            trial.shift.over.set()
            trial.broker.kill()
        shutil.rmtree(trial.folder)


def acknowledged(trial: Trial) -> int:
    """Return the number of puts that were acknowledged so far."""
    return sum(put.outcome is Outcome.OK for put in list(trial.history.puts))


def wait_for(trial: Trial, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
    """Return after how many seconds ``condition`` holds.

    Raises:
        PromiseBroken: It does not hold in ``patience_s``.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > patience_s:
            raise trial.fail([f"waited {patience_s:g} s in vain: {what}"], {})
        time.sleep(LOOK_INTERVAL_S)
    return time.monotonic() - began


def wait_for_progress(trial: Trial, puts: int = 50) -> float:
    """Return after how many seconds ``puts`` more puts were acknowledged.

    Raises:
        PromiseBroken: They were not in time.
    """
    goal = acknowledged(trial) + puts
    return wait_for(trial, lambda: acknowledged(trial) >= goal, f"{puts} more puts are acknowledged")


def last_page(trial: Trial) -> None:
    """While no worker runs: end all transactions, check everything, stop the broker, and check its files.

    Raises:
        PromiseBroken: A guarantee was broken.
        BrokerTrouble: It does not stop cleanly.
    """
    with trial.session() as session:
        trial.wait_until_quiet(session)
        trial.check(session)
        trial.workers.conclude(session)
        trial.check(session)
    trial.broker.stop()
    trial.check_files()
