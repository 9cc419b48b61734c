"""The journal does not grow for ever, whatever stays open, and small files change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.decisions import Decision
from metaq_broker.transactions.interfaces import TransactionLimits
from metaq_broker.transactions.outcomes import Outcome
from stored import QuickFiles
from tx_harness import Harness, local, xid

SMALL = CheckpointSettings(checkpoints_max=3, file_bytes=20_000)
BOUND = (SMALL.checkpoints_max + 2) * SMALL.file_bytes


def small_harness(tmp_path: Path, **settings: object) -> Harness:
    return Harness(tmp_path, QuickFiles(), checkpoint=SMALL, **settings)


def run(harness: Harness, count: int, first: int = 0) -> int:
    """Commit ``count`` local transactions; return the largest size that the journal had."""
    largest = 0
    for number in range(first, first + count):
        harness.begin(local(number))
        harness.put(local(number), b"message %05d" % number)
        assert harness.commit(local(number)) == "200"
        largest = max(largest, harness.tx.journal_bytes)
    return largest


@pytest.mark.slow
def test_ten_thousand_transactions_leave_a_small_journal(tmp_path: Path) -> None:
    harness = small_harness(tmp_path)
    assert run(harness, 10_000) < 2 * SMALL.file_bytes
    harness.restart()
    assert len(harness.bodies()) == 10_000


def test_whatever_is_kept_for_long_is_carried_along(tmp_path: Path) -> None:
    """A forgotten prepared transaction, an open one with messages in the journal, a decision, a heuristic outcome."""
    harness = small_harness(tmp_path, limits=TransactionLimits(spill_bytes=200))
    harness.prepare_with(xid("forgotten"), *(b"p%d" % number for number in range(100)))
    harness.begin(xid("slow"))
    harness.put(xid("slow"), bytes(300))
    harness.prepare_with(xid("decided"), b"d")
    harness.decide("q1", 3, [xid("decided"), xid("elsewhere")])
    harness.prepare_with(xid("by hand"), b"h")
    harness.by_operator(xid("by hand"), Outcome.COMMITTED)
    assert run(harness, 2_000) < BOUND
    harness.put(xid("slow"), b"end of slow")
    harness.prepare(xid("slow"))
    assert run(harness, 1_000, 2_000) < BOUND
    for _ in range(2):
        harness.restart()
        assert set(harness.recover()) == {str(xid(name)) for name in ("forgotten", "slow", "by hand")}
        assert harness.decide("q1", 3, []) == Decision(3, (xid("decided"), xid("elsewhere")))
        assert "code=7" in harness.commit(xid("by hand"), False)
    before = len(harness.bodies())
    assert harness.commit(xid("forgotten"), False) == "200"
    assert harness.commit(xid("slow"), False) == "200"
    assert harness.bodies()[before:] == [*(b"p%d" % number for number in range(100)), bytes(300), b"end of slow"]


def test_more_kept_than_fits_does_not_make_it_run_for_ever(tmp_path: Path) -> None:
    harness = small_harness(tmp_path)
    for number in range(40):
        harness.prepare_with(xid(f"b{number}"), bytes(5_000))
    largest = run(harness, 500)
    assert largest < BOUND + 2 * 40 * 5_200 + SMALL.file_bytes
    harness.restart()
    assert len(harness.recover()) == 40
    for number in range(40):
        assert harness.commit(xid(f"b{number}"), False) == "200"
    assert run(harness, 500, 500) < BOUND + 2 * 40 * 5_200 + SMALL.file_bytes
    harness.pass_time(3600)
    assert harness.tx.journal_bytes < 2 * SMALL.file_bytes


def test_the_interval_makes_notes_durable_and_frees_files(tmp_path: Path) -> None:
    harness = small_harness(tmp_path)
    harness.prepare_with(xid("b"), bytes(19_000))
    harness.prepare_with(xid("c"), bytes(19_000))
    harness.rollback(xid("b"))
    harness.rollback(xid("c"))
    harness.pass_time(3599)
    before = harness.tx.journal_bytes
    harness.pass_time(1)
    assert harness.tx.journal_bytes < before
    harness.restart()
    assert harness.recover() == []


def test_an_unfinished_commit_keeps_its_records(tmp_path: Path) -> None:
    harness = small_harness(tmp_path)
    harness.begin(xid("stuck"))
    harness.put(xid("stuck"), b"stuck", partition=1)
    harness.store.broken.add(("orders", 1))
    assert harness.commit(xid("stuck")).startswith("500 ")
    assert run(harness, 2_000) < BOUND
    harness.restart()
    assert harness.bodies(partition=1) == [b"stuck"]
    assert len(harness.bodies()) == 2_000


@pytest.mark.parametrize("count", range(0, 1200, 150))
def test_unfinished_commits_keep_their_order(tmp_path: Path, count: int) -> None:
    """However many of them were written anew, as their journal file was removed."""
    harness = small_harness(tmp_path)
    stuck = [xid(f"stuck {number}") for number in range(4)]
    for key in stuck:
        harness.prepare_with(key, str(key).encode(), partition=1)
    harness.store.full.add(("orders", 1))
    for number, key in enumerate(reversed(stuck)):
        assert harness.commit(key, False).startswith("500 ")
        run(harness, 60, 1000 * number)
    run(harness, count, 10_000)
    assert harness.bodies(partition=1) == []
    harness.restart()  # its partitions have space
    assert harness.bodies(partition=1) == [str(key).encode() for key in reversed(stuck)]


def test_branches_of_a_decision_are_committed_in_its_order_after_a_restart(tmp_path: Path) -> None:
    harness = small_harness(tmp_path)
    branches = [xid(f"branch {number}") for number in range(4)]
    for key in reversed(branches):
        harness.prepare_with(key, str(key).encode())
    harness.store.full.add(("orders", 0))
    harness.decide("q1", 3, branches)
    harness.restart()
    assert harness.bodies() == [str(key).encode() for key in branches]


def test_without_space_on_the_disk_finished_transactions_are_noted_later(tmp_path: Path) -> None:
    from metaq_broker.testing import Fault, FaultyFiles

    files = FaultyFiles(tmp_path)
    harness = Harness(tmp_path, files, checkpoint=SMALL)
    harness.begin(xid("a"))
    harness.put(xid("a"), b"a")
    harness.store.hold = True
    answers: list[object] = []
    harness.tx.commit(xid("a"), True, None, answers.append)
    harness.settle()
    harness.store.hold = False
    # 1 the partition's bytes, 2 the note of the journal
    files.fault = Fault(at=2, error=28, calls=frozenset({"pwrite"}))
    harness.store.release_held()
    assert answers == [None]
    files.fault = None
    assert run(harness, 2_000) < 2 * SMALL.file_bytes
    harness.revive(files.restart())
    assert harness.report.completed == 0
    assert harness.bodies().count(b"a") == 1
