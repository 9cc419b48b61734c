"""More clients than the broker may have open files: connected ones are served, others refused, nothing is lost."""

from __future__ import annotations

import shutil
import threading
from typing import Final

from faults.broker_process import ServerSettings
from faults.kill_loop import TOPICS
from faults.scenarios.rudeness import CROWD, crowd
from faults.scenarios.stage import Skipped, Stage, last_page, wait_for_progress
from faults.trial import Rules, Trial

FILES_MAX: Final = 300
"""Enough for the broker's own files and the workers, but not for the idle clients."""

CROWDS: Final = 4

CROWDED_S, CROWDED_IN_HASTE_S = 4.0, 1.0


def few_files(stage: Stage) -> str:
    """Run the workers beside idle clients that use all descriptors; then disconnect these, restart, and check.

    Raises:
        Skipped: The limit cannot be set here.
    """
    if shutil.which("prlimit") is None:
        raise Skipped("there is no prlimit command")
    settings = ServerSettings(TOPICS, segment_bytes_max=16 << 10)
    trial = Trial(stage.base / f"few-files-{stage.seed}", settings, stage.seed, Rules(disk_is_full=True))
    trial.shift.refusals_expected = True
    trial.broker.files_max = FILES_MAX
    over = threading.Event()
    with stage.play(trial):
        trial.workers.start()
        wait_for_progress(trial)
        crowds = [threading.Thread(target=crowd, args=(trial.broker.address, over), daemon=True) for _ in range(CROWDS)]
        for thread in crowds:
            thread.start()
        trial.shift.over.wait(CROWDED_IN_HASTE_S if stage.haste else CROWDED_S)
        wait_for_progress(trial)
        over.set()
        for thread in crowds:
            thread.join()
        trial.workers.stop()
        refused = sum(bool(put.reason) for put in trial.history.puts)
        with trial.session() as session:
            trial.wait_until_quiet(session)
            trial.workers.sort_out(session)
            trial.check(session)
        trial.broker.kill()
        trial.broker.files_max = None
        trial.shift.refusals_expected, trial.rules = False, Rules()
        trial.broker.start()
        with trial.session() as session:
            trial.workers.sort_out(session)
        last_page(trial)
    return f"{CROWDS * CROWD} idle clients and {FILES_MAX} files; {refused} puts were refused, everything was there"
