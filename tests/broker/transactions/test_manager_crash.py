"""Stop, tear or fail every single call that changes the disk, then see whether every promise is kept.

The script uses everything that writes a record, with journal files so small that checkpoints run in between. After each
accident the broker is started again, twice, and has to be right both times and to go on working.
"""

from __future__ import annotations

import contextlib
import errno
from functools import partial
from pathlib import Path
from random import Random

import pytest
from examples import spread
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from metaq_broker.transactions import applier
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import TransactionLimits
from metaq_broker.transactions.outcomes import Outcome
from promises import Promises
from stored import ends_before_the_cut
from tx_harness import Harness, local, xid

P0, P1, P2 = ("orders", 0), ("orders", 1), ("payments", 2)
CHECKPOINT = CheckpointSettings(checkpoints_max=1, file_bytes=900)
LIMITS = TransactionLimits(spill_bytes=300)
POWER_CUT = None


@pytest.fixture(autouse=True)
def few_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some transactions of the script are read by a worker, the others at once."""
    monkeypatch.setattr(applier, "AT_ONCE_BYTES", 150)


def open_harness(root: Path, files: FaultyFiles) -> Harness:
    return Harness(root, files, checkpoint=CHECKPOINT, limits=LIMITS)


def script(p: Promises) -> None:
    p.put_plain(P0)
    p.begin(local(1), P0, P1, P0)
    p.commit(local(1))
    p.begin(xid("stays"), P0, P2, size=200)
    p.put(xid("stays"), P0, size=200)
    p.prepare(xid("stays"))
    p.begin(xid("commits"), P1, P1)
    p.prepare(xid("commits"))
    p.put_plain(P1)
    p.commit(xid("commits"), one_phase=False)
    p.begin(xid("rolls back"), P0, P1)
    p.prepare(xid("rolls back"))
    p.rollback(xid("rolls back"))
    p.begin(xid("open"), P0, P0, size=300)
    branches = (xid("d1"), xid("d2"), xid("elsewhere"))
    for branch in branches[:2]:
        p.begin(branch, P0, P2)
        p.prepare(branch)
    p.decide("q1", 1, branches)
    p.begin(xid("by hand"), P2)
    p.prepare(xid("by hand"))
    p.by_operator(xid("by hand"), Outcome.COMMITTED, "committed")
    p.begin(xid("dropped"), P2)
    p.prepare(xid("dropped"))
    p.by_operator(xid("dropped"), Outcome.ROLLED_BACK, "absent")
    p.harness.forget(xid("dropped"))
    for number in range(2, 8):
        p.begin(local(number), P0, P1)
        p.commit(local(number))
    p.decide("q1", 2, (xid("elsewhere"),))
    p.begin(xid("one phase"), P1, P2)
    p.commit(xid("one phase"))
    p.harness.pass_time(3600)


def accident(root: Path, fault: Fault | None) -> tuple[FaultyFiles, Promises]:
    """Run the script until ``fault`` stops it, or to its end."""
    root.mkdir()
    files, promises = FaultyFiles(root, fault), Promises()
    with contextlib.suppress(PowerCut, OSError):
        promises.harness = open_harness(root, files)
        script(promises)
    return files, promises


def changing_calls(root: Path) -> int:
    files, promises = accident(root, None)
    assert len(promises.harness.tx.prepared()) == 1
    return len(files.calls)


def check_and_go_on(harness: Harness, p: Promises, round_: int) -> None:
    p.harness = harness
    p.check(harness)
    for key in (xid("stays"), xid("d1"), xid("d2"), xid("commits")):
        if key in p.known and p.known[key].fates == {"prepared"}:
            p.commit(key, one_phase=False)
            assert p.known[key].fates == {"committed"}
    assert p.begin(local(100 + round_), P0, P1, P2)
    assert p.commit(local(100 + round_)) == "200"
    p.check(harness)


def test_the_script_keeps_its_promises_without_accidents(tmp_path: Path) -> None:
    root = tmp_path / "whole"
    files, promises = accident(root, None)
    promises.check(promises.harness)
    check_and_go_on(open_harness(root, files.restart()), promises, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.97])
def test_kill_at_every_call(tmp_path: Path, kept: float) -> None:
    """The process dies inside call N; a write has arrived in part. What was written before stays."""
    for at in spread(range(1, changing_calls(tmp_path / "count") + 1)):
        root = tmp_path / f"at{at}"
        files, promises = accident(root, Fault(at, POWER_CUT, kept))
        for round_ in range(2):
            files = files.restart()
            check_and_go_on(open_harness(root, files), promises, round_)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_power_loss_at_every_call(tmp_path: Path, seed: int) -> None:
    """The power goes at call N: only what was synced is sure, of the rest any part may be there."""
    for at in spread(range(1, changing_calls(tmp_path / "count") + 1)):
        root = tmp_path / f"at{at}"
        files, promises = accident(root, Fault(at, POWER_CUT, 0.5))
        for round_ in range(2):
            files = files.crash(Random(seed * 1_000_000 + at * 10 + round_))
            check_and_go_on(open_harness(root, files), promises, round_)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [Fault(0, errno.ENOSPC, 0.5), Fault(0, errno.EIO), Fault(0, errno.EIO, 0.5, lasting=True)],
    ids=["full", "broken once", "broken"],
)
def test_every_call_fails(tmp_path: Path, fault: Fault) -> None:
    """Call N fails, the broker goes on as well as it can; after a power cut the disk is well again."""
    for at in spread(range(1, changing_calls(tmp_path / "count") + 1)):
        root = tmp_path / f"at{at}"
        files, promises = accident(root, Fault(at, fault.error, fault.kept, fault.lasting))
        for round_ in range(2):
            files = files.crash(Random(at * 10 + round_))
            check_and_go_on(open_harness(root, files), promises, round_)


@pytest.mark.long
@pytest.mark.slow
def test_power_loss_twice_during_recovery(tmp_path: Path) -> None:
    """The second cut hits the recovery from the first one, at every call of it."""
    total = changing_calls(tmp_path / "count")
    for at in spread(range(total // 3, total, 7)):
        for again in range(1, 40):
            root = tmp_path / f"at{at}-{again}"
            files, promises = accident(root, Fault(at, POWER_CUT, 0.5))
            files = files.crash(Random(at))
            files.fault = Fault(again, POWER_CUT, 0.5)
            done = ends_before_the_cut(partial(open_harness, root, files))
            files = files.crash(Random(at + again))
            check_and_go_on(open_harness(root, files), promises, 0)
            if done:
                break
