"""The kill loop: load, a kill at a random moment, a restart under the same load, a look at everything; and again.

Rounds are grouped into chapters. A chapter has its own data folder and history, so that every round can be judged
against all that ever happened to its folder, and a long run needs no more memory than a short one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from torture.broker_process import BrokerTrouble, ServerSettings
from torture.figures import Figures
from torture.trial import Rules, Trial

TOPICS: Final = {"orders": 3, "logs": 2, "big": 1}
LOAD_S: Final = (0.02, 1.0)
"""How long the load runs before a kill, in seconds."""

RESUME_S: Final = (0.05, 0.4)
"""How long it goes on after the restart."""

START_KILL_CHANCE: Final = 0.2
START_KILL_S: Final = (0.0, 0.35)
CLEAN_STOP_CHANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class KillOptions:
    """``rounds`` 0 = until ``duration_s`` is over; ``duration_s`` 0 = no limit of time."""

    seed: int
    rounds: int
    duration_s: float = 0.0
    rounds_per_chapter: int = 12
    retention: bool = False


class KillLoop:
    """See the module. ``tell`` gets one line a round."""

    def __init__(self, options: KillOptions, base: Path, tell: Callable[[str], None]) -> None:
        self._options = options
        self._base = base
        self._tell = tell
        self._end = time.monotonic() + (options.duration_s or float("inf"))
        self.figures = Figures()

    def run(self) -> None:
        """Run all rounds.

        Raises:
            AnomaliesFound: The data folder is kept.
            BrokerTrouble: It did not start or stop; the data folder is kept.
            CrewTrouble: A worker is stuck or broke; the data folder is kept.
        """
        chapter = 0
        while self._left():
            chapter += 1
            self._chapter(f"{self._options.seed}.{chapter}")

    def _left(self) -> int:
        """Rounds that may still begin; a large number if only the time is limited."""
        if time.monotonic() >= self._end:
            return 0
        return self._options.rounds - self.figures.rounds if self._options.rounds else 1 << 30

    def _chapter(self, seed: str) -> None:
        folder = self._base / f"kill-{seed}"
        rules = Rules(retention=self._options.retention)
        trial = Trial(folder, _settings(self._options.retention), seed, rules)
        try:
            self._rounds(trial, Random(seed), seed)
        finally:
            trial.broker.kill()
        self.figures.add(trial.history)
        shutil.rmtree(folder)

    def _rounds(self, trial: Trial, random: Random, seed: str) -> None:
        trial.broker.start()
        for number in range(1, self._options.rounds_per_chapter + 1):
            if not self._left():
                break
            self._round(trial, random, f"{seed}.{number}")
        self._last_page(trial)

    def _round(self, trial: Trial, random: Random, name: str) -> None:
        began, crew, broker = time.monotonic(), trial.crew, trial.broker
        crew.start()
        load_s = random.uniform(*LOAD_S)
        trial.shift.over.wait(load_s)
        how = self._end_broker(trial, random)
        restart_s = broker.start()
        self.figures.restarts_s.append(restart_s)
        trial.shift.over.wait(random.uniform(*RESUME_S))
        crew.stop()
        with trial.session() as session:
            crew.sort_out(session)
            trial.judge(session)
        self.figures.rounds += 1
        text = f"{how} after {load_s:.2f} s, ready again in {restart_s:.2f} s, {crew.desk.prepared_count} branches wait"
        took_s = time.monotonic() - began
        self._tell(f"round {self.figures.rounds:4}  seed {name:12} {text}, all is there ({took_s:.1f} s)")

    def _end_broker(self, trial: Trial, random: Random) -> str:
        broker = trial.broker
        if random.random() < CLEAN_STOP_CHANCE:
            self.figures.stops += 1
            broker.stop()
            return "stopped"
        self.figures.prepared_over_a_kill += trial.crew.desk.prepared_count
        self.figures.kills += 1
        broker.kill()
        if random.random() >= START_KILL_CHANCE:
            return "killed"
        broker.begin()
        trial.shift.over.wait(random.uniform(*START_KILL_S))
        if not broker.alive:
            raise BrokerTrouble(f"the broker ended while it started:\n{broker.log_tail()}")
        broker.kill()
        self.figures.kills += 1
        self.figures.kills_at_start += 1
        return "killed twice"

    def _last_page(self, trial: Trial) -> None:
        """End all transactions, look at everything once more, stop cleanly, and look at the files."""
        with trial.session() as session:
            trial.crew.conclude(session)
            trial.judge(session)
        trial.broker.stop()
        self.figures.stops += 1
        trial.judge_files()


def _settings(retention: bool) -> ServerSettings:
    if not retention:
        return ServerSettings(TOPICS)
    return ServerSettings(TOPICS, extra={"deletePolicy": "delete,2s", "deleteWhen": "0/1 * * * * ?"})
