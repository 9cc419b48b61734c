"""A clean stop under load: the broker ends in time with status 0, and its files have every acknowledged message."""

from __future__ import annotations

from random import Random

from faults.broker_process import ServerSettings
from faults.kill_loop import TOPICS
from faults.scenarios.stage import Stage, last_page, wait_for_progress
from faults.trial import Trial


def stop_under_load(stage: Stage) -> str:
    """Stop the broker with SIGTERM a few times while the workers run."""
    random = Random(stage.seed)
    times = 1 if stage.haste else 6
    trial = Trial(stage.base / f"stop-{stage.seed}", ServerSettings(TOPICS), stage.seed)
    stops_s = []
    with stage.play(trial):
        for _ in range(times):
            trial.workers.start()
            wait_for_progress(trial)
            trial.shift.over.wait(random.uniform(0.0, 0.5))
            stops_s.append(trial.broker.stop())
            trial.workers.stop()
            trial.check_files()
            trial.broker.start()
            with trial.session() as session:
                trial.workers.sort_out(session)
                trial.check(session)
        last_page(trial)
    return f"stopped {times} times under load, in {max(stops_s):.2f} s at most; the files had everything"
