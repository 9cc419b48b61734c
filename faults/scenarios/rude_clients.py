"""Clients that behave badly while others work: the others are not affected, and the broker's memory stays bounded."""

from __future__ import annotations

import threading
import time
from typing import Final

from faults.broker_process import ServerSettings
from faults.kill_loop import TOPICS
from faults.scenarios.rudeness import RUDE_KINDS, Dribbler
from faults.scenarios.stage import Stage, acknowledged, last_page, wait_for, wait_for_progress
from faults.trial import Trial

MIB: Final = 1 << 20
BODY_BYTES_MAX: Final = 2 * MIB
OUTPUT_BYTES_MAX: Final = MIB
MARGIN_BYTES: Final = 64 * MIB
"""Memory that the workers' own requests and Python's memory management may add."""

WARM_UP_BLOCK_BYTES: Final = 20 * MIB
"""Before this many blocks the broker has not compiled its faster code for blocks, which needs memory once."""

WARM_UP_PATIENCE_S: Final = 120.0
SETTLED_BYTES, SETTLED_LOOKS, SETTLED_INTERVAL_S = 4 * MIB, 4, 0.7
"""Memory is settled when this many consecutive measurements differ by less."""

WINDOW_S: Final = 2.0
"""In every period of this many seconds a polite client must make progress."""

RUDE_S, RUDE_IN_HASTE_S = 8.0, 4.0

SETTINGS: Final = ServerSettings(
    TOPICS,
    extra={
        "maxMessageSize": BODY_BYTES_MAX,
        "maxBatchSize": BODY_BYTES_MAX,
        "maxOutputBuffer": OUTPUT_BYTES_MAX,
        "maxPipelinedRequests": 1000,
    },
)


def rude_clients(stage: Stage) -> str:
    """Run the workers among rude clients, and watch their progress and the broker's memory."""
    trial = Trial(stage.base / f"rude-{stage.seed}", SETTINGS, stage.seed)
    over = threading.Event()
    dribblers = [Dribbler(f"dribble{n}", trial.shift, stage.seed) for n in range(3)]
    with stage.play(trial):
        trial.workers.workers = (*trial.workers.workers, *dribblers)
        trial.workers.start()
        before = _settled_memory(trial)
        rude = [threading.Thread(target=act, args=(trial.broker.address, over), daemon=True) for act in RUDE_KINDS]
        for thread in rude:
            thread.start()
        try:
            peak = _watch(trial, before, RUDE_IN_HASTE_S if stage.haste else RUDE_S)
        finally:
            over.set()
            for thread in rude:
                thread.join()
        trial.workers.stop()
        last_page(trial)
    grown = (peak - before) / MIB
    polite = len(trial.workers.workers)
    return f"{len(rude)} rude clients among {polite} polite ones, memory grew by {grown:.0f} MiB at most"


def memory_bytes_max() -> int:
    """Return by how much rude clients may make the broker grow: one body, and twice its output limit, for each."""
    return len(RUDE_KINDS) * (BODY_BYTES_MAX + 2 * OUTPUT_BYTES_MAX) + MARGIN_BYTES


def _settled_memory(trial: Trial) -> int:
    """Wait until the broker has loaded all code that the workers' requests need; return its memory in bytes."""
    wait_for(trial, lambda: _block_bytes(trial) > WARM_UP_BLOCK_BYTES, "enough blocks are put", WARM_UP_PATIENCE_S)
    seen = [0]
    while max(seen) - min(seen) > SETTLED_BYTES or len(seen) < SETTLED_LOOKS:
        wait_for_progress(trial)
        trial.shift.over.wait(SETTLED_INTERVAL_S)
        seen = [*seen, trial.broker.resident_bytes()][-SETTLED_LOOKS:]
    return seen[-1]


def _block_bytes(trial: Trial) -> int:
    return sum(put.frame_bytes for put in list(trial.history.puts) if len(put.messages) > 1)


def _watch(trial: Trial, before: int, rude_s: float) -> int:
    """Watch for ``rude_s``; return the broker's peak memory in bytes."""
    peak, end, limit = before, time.monotonic() + rude_s, memory_bytes_max()
    while time.monotonic() < end:
        done = acknowledged(trial)
        trial.shift.over.wait(WINDOW_S)
        peak = max(peak, trial.broker.resident_bytes())
        if acknowledged(trial) == done:
            raise trial.fail([f"no put was acknowledged for {WINDOW_S:g} s while rude clients were there"], {})
        if peak - before > limit:
            raise trial.fail([f"memory grew from {before} to {peak} bytes, allowed are {limit} more"], {})
    return peak
