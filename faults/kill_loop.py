"""The kill loop: load, a kill at a random moment, a restart under the same load, a check of everything; repeated.

Rounds are grouped into series. A series has its own data folder and history, so that every round can be checked against
the whole history of its folder, and a long run needs no more memory than a short one.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from faults.broker_process import BrokerTrouble, ServerSettings
from faults.figures import Figures
from faults.trial import Rules, Trial

TOPICS: Final = {"orders": 3, "logs": 2, "big": 1}
LOAD_S, HASTY_LOAD_S = (0.02, 1.0), (0.02, 0.3)
"""Seconds of load before a kill, from and to."""

RESUME_S, HASTY_RESUME_S = (0.05, 0.4), (0.02, 0.1)
"""Seconds of load after the restart."""

START_KILL_CHANCE: Final = 0.2
START_KILL_S: Final = (0.0, 0.35)
CLEAN_STOP_CHANCE: Final = 0.1
THRESHOLD_CHANCE: Final = 0.25
"""The fraction of series that acknowledge puts before they are synced; a killed process must not lose them either."""

THRESHOLD_INTERVAL_MS: Final = 100
SEGMENT_BYTES: Final = (8 << 10, 64 << 10, 64 << 10, 1 << 20)


@dataclass(frozen=True, slots=True)
class KillOptions:
    """``rounds`` 0 = until ``duration_s`` has passed; ``duration_s`` 0 = no limit; ``haste`` = shorter rounds."""

    seed: int
    rounds: int
    duration_s: float = 0.0
    rounds_per_series: int = 12
    retention: bool = False
    haste: bool = False
    rocketmq: bool = False
    """Whether RocketMQ's clients take part."""


class KillLoop:
    """``tell`` gets one line for each round."""

    def __init__(self, options: KillOptions, base: Path, report: Callable[[str], None]) -> None:
        self._options = options
        self._base = base
        self._report = report
        self._end = time.monotonic() + (options.duration_s or float("inf"))
        self.figures = Figures()

    def run(self) -> None:
        """Run all rounds.

        Raises:
            PromiseBroken: The data folder is kept.
            BrokerTrouble: It did not start or stop; the data folder is kept.
            WorkersFailed: A worker is stuck or failed; the data folder is kept.
        """
        series = 0
        while self._left():
            series += 1
            self._series(f"{self._options.seed}.{series}")
        if self._options.retention and not self.figures.deleted_bytes:
            raise BrokerTrouble("retention was asked for, and the broker deleted nothing")

    def _left(self) -> int:
        """Return how many rounds may still begin; a large number if only the time is limited."""
        if time.monotonic() >= self._end:
            return 0
        return self._options.rounds - self.figures.rounds if self._options.rounds else 1 << 30

    def _series(self, seed: str) -> None:
        folder, random = self._base / f"kill-{seed}", Random(seed)
        settings, rules = choose_settings(random, self._options.retention, self._options.rocketmq)
        self._report(f"series {seed}: {settings.describe()}")
        trial = Trial(folder, settings, seed, rules)
        try:
            self._rounds(trial, random, seed)
        finally:
            trial.broker.kill()
        self.figures.add(trial.history)
        shutil.rmtree(folder)
        gc.collect()

    def _rounds(self, trial: Trial, random: Random, seed: str) -> None:
        trial.broker.start()
        for number in range(1, self._options.rounds_per_series + 1):
            if not self._left():
                break
            self._round(trial, random, f"{seed}.{number}")
        self._last_page(trial)

    def _round(self, trial: Trial, random: Random, name: str) -> None:
        began, workers, broker = time.monotonic(), trial.workers, trial.broker
        workers.start()
        load_s = random.uniform(*(HASTY_LOAD_S if self._options.haste else LOAD_S))
        trial.shift.over.wait(load_s)
        how = self._end_broker(trial, random)
        restart_s = broker.start()
        self.figures.restarts_s.append(restart_s)
        trial.shift.over.wait(random.uniform(*(HASTY_RESUME_S if self._options.haste else RESUME_S)))
        workers.stop()
        with trial.session() as session:
            trial.wait_until_quiet(session)
            workers.sort_out(session)
            trial.check(session)
        self.figures.rounds += 1
        waiting = workers.unfinished.prepared_count
        text = f"{how} after {load_s:.2f} s, ready again in {restart_s:.2f} s, {waiting} branches wait"
        took_s = time.monotonic() - began
        self._report(f"round {self.figures.rounds:4}  seed {name:12} {text}, all is there ({took_s:.1f} s)")

    def _end_broker(self, trial: Trial, random: Random) -> str:
        broker = trial.broker
        if random.random() < CLEAN_STOP_CHANCE:
            self.figures.stops += 1
            broker.stop()
            return "stopped"
        self.figures.prepared_over_a_kill += trial.workers.unfinished.prepared_count
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
        """End all transactions, check everything once more, stop cleanly, and check the files."""
        with trial.session() as session:
            trial.workers.conclude(session)
            trial.wait_until_quiet(session)
            image = trial.check(session)
        self.figures.deleted_bytes += sum(partition.start for partition in image.values())
        trial.broker.stop()
        self.figures.stops += 1
        trial.check_files()


def choose_settings(random: Random, retention: bool, rocketmq: bool = False) -> tuple[ServerSettings, Rules]:
    """Return the configuration of a series, and the rules for the checker that follow from it."""
    extra: dict[str, object] = {}
    rules = Rules(retention=retention)
    if retention:
        extra |= {"deletePolicy": "delete,2s", "deleteWhen": "0/1 * * * * ?"}
    if random.random() < THRESHOLD_CHANCE:
        extra |= {"unflushThreshold": random.choice((10, 1000)), "unflushInterval": THRESHOLD_INTERVAL_MS}
        rules = Rules(retention, readable_at_once=False, quiet_s=10 * THRESHOLD_INTERVAL_MS / 1000)
    extra["flushTxLogAtCommit"] = random.choice((0, 1, 1, 1, 2))
    extra["checkpointInterval"] = random.choice((200, 3_600_000))
    extra["indexInterval"] = random.choice((256, 4096))
    return ServerSettings(TOPICS, random.choice(SEGMENT_BYTES), extra=extra, rocketmq=rocketmq), rules
