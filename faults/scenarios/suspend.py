"""The broker is suspended and resumed under load: clients run into their deadlines and return, and nothing is lost."""

from __future__ import annotations

from random import Random
from typing import Final

from faults.broker_process import ServerSettings
from faults.history import Outcome
from faults.kill_loop import TOPICS
from faults.scenarios.stage import Stage, last_page, wait_for_progress
from faults.trial import Trial
from metaq.net.transport import Timeouts

DEADLINES: Final = Timeouts(connect_s=0.3, request_s=0.5)
SUSPENDED_S: Final = ((0.1, 0.4), (0.8, 1.5))
"""Shorter and longer than the clients' deadlines, in seconds."""


def suspend(stage: Stage) -> str:
    """Suspend the broker a few times, for shorter and for longer than its clients wait."""
    random = Random(stage.seed)
    times = 2 if stage.haste else 8
    trial = Trial(stage.base / f"suspend-{stage.seed}", ServerSettings(TOPICS), stage.seed, timeouts=DEADLINES)
    back_s = []
    with stage.play(trial):
        trial.workers.start()
        for number in range(times):
            wait_for_progress(trial)
            trial.broker.suspend()
            trial.shift.over.wait(random.uniform(*SUSPENDED_S[(number + 1) % 2]))
            trial.broker.resume()
            back_s.append(wait_for_progress(trial))
        trial.workers.stop()
        unknown = sum(put.outcome is Outcome.UNKNOWN for put in trial.history.puts)
        if not unknown:
            raise trial.fail(["no client ran into its deadline: the broker was not suspended at all"], {})
        last_page(trial)
    return f"suspended {times} times, {unknown} puts without an answer, work went on within {max(back_s):.2f} s"
