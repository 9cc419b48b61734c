"""Puts, rolls, transactions, retention and restarts in one story, with an accident at any call that changes the disk.

The parts have stories of their own in which every call is hit; here calls are sampled, evenly over the whole story.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest
from examples import spread
from log_harness import LogHarness
from metaq_broker.log.retention.policy import Removal
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import TransactionLimits
from promises import Promises
from tx_harness import local, xid

from metaq.model import TransactionId, Xid

P0, P1, P2 = ("orders", 0), ("orders", 1), ("payments", 2)
SAMPLES = 24


class Recorder(Promises):
    """Promises about a world of real partitions, to whom it happens what the story says."""

    harness: LogHarness

    def put_together(self, key: TransactionId, *partition_keys: tuple[str, int], size: int = 0) -> None:
        """Begin, put, and commit, or prepare if it is an XA branch. (Commits without messages leave no trace.)"""
        if not self.begin(key, *partition_keys, size=size):
            return
        if isinstance(key, Xid):
            self.prepare(key)
        else:
            self.commit(key)


def open_harness(root: Path, files: FaultyFiles, before: LogHarness | None = None) -> LogHarness:
    return LogHarness(
        root,
        files,
        checkpoint=CheckpointSettings(checkpoints_max=1, file_bytes=1_500),
        limits=TransactionLimits(spill_bytes=300),
        gone={} if before is None else before.gone,
    )


def scenario(p: Recorder) -> None:
    for number in range(3):
        for partition_key in (P0, P0, P1):
            p.put_plain(partition_key)
        p.put_together(local(number), P0, P1, P0, size=60)
    p.put_together(xid("stays"), P0, P2, size=200)
    p.harness.retire(Removal.DELETE)
    p.put_together(xid("commits"), P1, P1, P2, size=150)
    p.put_plain(P1)
    p.commit(xid("commits"), one_phase=False)
    p.harness.restart()
    p.put_together(xid("rolls back"), P0)
    p.rollback(xid("rolls back"))
    p.begin(xid("open"), P1, size=300)
    for number in range(3, 6):
        p.put_plain(P2)
        p.put_together(local(number), P1, P2, size=90)
    p.harness.retire(Removal.ARCHIVE)
    p.harness.pass_time(3600)
    p.put_plain(P0)
    p.put_together(local(6), P0, P1, P2)


def accident(root: Path, fault: Fault | None) -> tuple[FaultyFiles, Recorder]:
    """Tell the story until ``fault`` stops it, or to its end."""
    root.mkdir()
    files, reported = FaultyFiles(root, fault), Recorder()
    with contextlib.suppress(PowerCut, OSError, AttributeError):
        reported.harness = open_harness(root, files)
        scenario(reported)
    return files, reported


def check_and_go_on(harness: LogHarness, p: Recorder, round_: int) -> None:
    p.harness = harness
    p.check(harness)
    harness.check_files()
    if p.known.get(xid("stays")) is not None and p.known[xid("stays")].fates == {"prepared"} and round_:
        assert p.commit(xid("stays"), one_phase=False) == "200"
    assert p.begin(local(100 + round_), P0, P1, P2)
    assert p.commit(local(100 + round_)) == "200"
    harness.retire(Removal.DELETE)
    p.put_plain(P0)
    p.check(harness)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    files, reported = accident(tmp_path_factory.mktemp("count") / "root", None)
    reported.check(reported.harness)
    assert [listed.key for listed in reported.harness.tx.prepared()] == [xid("stays")]
    assert all(log.start_offset > 0 for log in reported.harness.partitions.logs.logs())
    assert len(files.calls) > 3 * SAMPLES
    return len(files.calls)


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (1, Fault(0, None, 0.0)),
        (2, Fault(0, None, 0.6)),
        (3, Fault(0, errno.EIO, 0.5)),
        (4, Fault(0, errno.ENOSPC, 0.5)),
        (5, Fault(0, errno.EIO, 0.5, lasting=True)),
    ],
    ids=["power", "torn", "broken once", "full", "broken"],
)
def test_an_accident_at_call_n(calls: int, first: int, fault: Fault, tmp_path: Path) -> None:
    for at in spread(range(first, calls + 1, max(1, calls // SAMPLES))):
        root = tmp_path / f"at{at}"
        files, reported = accident(root, Fault(at, fault.error, fault.kept, fault.lasting))
        before = getattr(reported, "harness", None)
        for round_ in range(2):
            ends_with_power = fault.error is None or at % 2
            files = files.crash(Random(at * 10 + round_)) if ends_with_power else files.restart()
            before = open_harness(root, files, before)
            check_and_go_on(before, reported, round_)


def test_partitions_that_failed_recover_by_command(calls: int, tmp_path: Path) -> None:
    """Without a restart: the operator reopens what failed, and everything goes on as it was promised."""
    reopened = 0
    for at in range(20, calls // 2, 3):
        fault = Fault(at, errno.EIO, 0.5, calls=frozenset({"pwrite", "fdatasync"}))
        files, reported = accident(tmp_path / f"at{at}", fault)
        harness = getattr(reported, "harness", None)
        if harness is None or not any(log.failure for log in harness.partitions.logs.logs()):
            continue
        files.fault = None
        reopened += 1
        harness.reopen_failed()
        assert not any(log.failure for log in harness.partitions.logs.logs())
        for partition_key in (P0, P1, P2):
            reported.put_plain(partition_key)
        harness.tx.close()
        harness.partitions.logs.close(clean=True)
        reported.check(open_harness(harness.root, files.restart(), harness))
    assert reopened > 3
