"""The disk becomes full: puts fail with an error, reads continue, and with free space no acknowledged message is
missing.

The disk is a small file system in memory; mounting it needs root. A ballast file occupies the space that is freed
later.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from faults.broker_process import ServerSettings
from faults.history import Outcome, Put
from faults.kill_loop import TOPICS
from faults.load.putters import SinglePutter
from faults.load.worker import put_command
from faults.scenarios.stage import Skipped, Stage, last_page, wait_for
from faults.trial import Rules, Trial
from metaq.backends.metaq.session import Session

DISK_BYTES: Final = 16 << 20
BALLAST_BYTES: Final = 6 << 20
"""Space for what the guard keeps free, what was written before its next check, and what a restart writes."""
FULL_S: Final = 1.0
FULL_WORDS: Final = ("disk is nearly full", "disk is full", "No space left")


def disk_full(stage: Stage) -> str:
    """Fill the disk under load, check, free space, check, restart, check again; with and without the broker's guard.

    Raises:
        Skipped: No file system can be mounted here.
    """
    guarded, unguarded = (_act(stage, guarded) for guarded in (True, False))
    return (
        f"{guarded} puts were refused by the guard of the disk and {unguarded} on a full disk without it; "
        "with free space everything was there and puts were taken"
    )


def _act(stage: Stage, guarded: bool) -> int:
    folder = stage.base / f"disk-full-{stage.seed}"
    with small_disk(folder / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"\x01" * BALLAST_BYTES)
        extra = {"diskCheckInterval": 200} if guarded else {"diskFreeMinBytes": 0}
        settings = ServerSettings(TOPICS, segment_bytes_max=256 << 10, extra=extra)
        trial = Trial(folder, settings, stage.seed, Rules(disk_is_full=True), data=disk / "data")
        trial.shift.refusals_expected = True
        with _broker(trial):
            refused = _fill(trial)
            _restart_while_full(trial)
            ballast.unlink()
            if guarded:
                wait_for(trial, lambda: _takes_puts(trial), "puts are accepted again without a restart")
            _after(trial, Random(stage.seed))
    shutil.rmtree(folder)
    return refused


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield ``folder`` with a file system of its own, of ``DISK_BYTES``.

    Raises:
        Skipped: It cannot be mounted.
    """
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        raise Skipped("there is no mount command") from None
    if done.returncode != 0:
        raise Skipped(f"a small file system cannot be mounted, that takes root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def _broker(trial: Trial) -> Iterator[None]:
    trial.broker.start()
    try:
        yield
    finally:
        trial.shift.over.set()
        trial.broker.kill()


def _refusals(trial: Trial) -> int:
    return sum(any(words in put.reason for words in FULL_WORDS) for put in list(trial.history.puts))


def _fill(trial: Trial) -> int:
    """Run the workers until puts are refused, and some time longer; return how many were refused."""
    trial.workers.start()
    wait_for(trial, lambda: _refusals(trial) > 20, "puts are refused because the disk is full")
    trial.shift.over.wait(FULL_S)
    trial.workers.stop()
    with trial.session() as session:
        trial.wait_until_quiet(session)
        trial.workers.sort_out(session)
        trial.check(session)
    return _refusals(trial)


def _restart_while_full(trial: Trial) -> None:
    """Start the broker on the full disk and check that readers get everything."""
    trial.broker.kill()
    trial.broker.start()
    with trial.session() as session:
        trial.workers.sort_out(session)
        trial.check(session)


def _after(trial: Trial, random: Random) -> None:
    """With free space again: restart, check, and put into every partition."""
    if random.random() < 0.5:
        trial.broker.kill()
    else:
        trial.broker.stop()
    trial.broker.start()
    trial.shift.refusals_expected = False
    trial.rules = Rules()
    with trial.session() as session:
        trial.workers.sort_out(session)
        trial.check(session)
        _put_everywhere(trial, session)
    last_page(trial)


def _takes_puts(trial: Trial) -> bool:
    with trial.session() as session:
        return all(put.outcome is Outcome.OK for put in _put_everywhere(trial, session))


def _put_everywhere(trial: Trial, session: Session) -> list[Put]:
    """Put a message into every partition; return the puts with their outcomes."""
    putter = SinglePutter(f"late{len(trial.history.puts)}", trial.shift, "late")
    puts = []
    for partition_key in trial.shift.partition_keys:
        letter = putter.small_letter()
        puts.append(putter.history.put_begins(putter.name, partition_key, (letter.sent,)))
        putter.settle(puts[-1], session.call(put_command(partition_key, letter)))
    return puts
