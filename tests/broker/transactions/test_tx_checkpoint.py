"""The journal does not grow for ever, whatever stays open, and small files change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.decisions import Decision
from metaq_broker.transactions.heuristics import Outcome
from metaq_broker.transactions.seams import TransactionLimits
from tx_world import NoSync, World, local, xid

SMALL = CheckpointSettings(checkpoints_max=3, file_bytes=20_000)
BOUND = (SMALL.checkpoints_max + 2) * SMALL.file_bytes


def small_world(tmp_path: Path, **settings: object) -> World:
    return World(tmp_path, NoSync(), checkpoint=SMALL, **settings)


def run(world: World, count: int, first: int = 0) -> int:
    """Commit ``count`` local transactions; return the largest size that the journal had."""
    largest = 0
    for number in range(first, first + count):
        world.begin(local(number))
        world.put(local(number), b"message %05d" % number)
        assert world.commit(local(number)) == "200"
        largest = max(largest, world.tx.journal_bytes)
    return largest


@pytest.mark.slow
def test_ten_thousand_transactions_leave_a_small_journal(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    assert run(world, 10_000) < 2 * SMALL.file_bytes
    world.restart()
    assert len(world.bodies()) == 10_000


def test_whatever_is_kept_for_long_is_carried_along(tmp_path: Path) -> None:
    """A forgotten prepared transaction, an open one with messages in the journal, a decision, a heuristic outcome."""
    world = small_world(tmp_path, limits=TransactionLimits(spill_bytes=200))
    world.prepare_with(xid("forgotten"), *(b"p%d" % number for number in range(100)))
    world.begin(xid("slow"))
    world.put(xid("slow"), bytes(300))
    world.prepare_with(xid("decided"), b"d")
    world.decide("q1", 3, [xid("decided"), xid("elsewhere")])
    world.prepare_with(xid("by hand"), b"h")
    world.by_operator(xid("by hand"), Outcome.COMMITTED)
    assert run(world, 2_000) < BOUND
    world.put(xid("slow"), b"end of slow")
    world.prepare(xid("slow"))
    assert run(world, 1_000, 2_000) < BOUND
    for _ in range(2):
        world.restart()
        assert set(world.recover()) == {str(xid(name)) for name in ("forgotten", "slow", "by hand")}
        assert world.decide("q1", 3, []) == Decision(3, (xid("decided"), xid("elsewhere")))
        assert "code=7" in world.commit(xid("by hand"), False)
    before = len(world.bodies())
    assert world.commit(xid("forgotten"), False) == "200"
    assert world.commit(xid("slow"), False) == "200"
    assert world.bodies()[before:] == [*(b"p%d" % number for number in range(100)), bytes(300), b"end of slow"]


def test_more_kept_than_fits_does_not_make_it_run_for_ever(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    for number in range(40):
        world.prepare_with(xid(f"b{number}"), bytes(5_000))
    largest = run(world, 500)
    assert largest < BOUND + 2 * 40 * 5_200 + SMALL.file_bytes
    world.restart()
    assert len(world.recover()) == 40
    for number in range(40):
        assert world.commit(xid(f"b{number}"), False) == "200"
    assert run(world, 500, 500) < BOUND + 2 * 40 * 5_200 + SMALL.file_bytes
    world.pass_time(3600)
    assert world.tx.journal_bytes < 2 * SMALL.file_bytes


def test_the_interval_makes_notes_durable_and_frees_files(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    world.prepare_with(xid("b"), bytes(19_000))
    world.prepare_with(xid("c"), bytes(19_000))
    world.rollback(xid("b"))
    world.rollback(xid("c"))
    world.pass_time(3599)
    before = world.tx.journal_bytes
    world.pass_time(1)
    assert world.tx.journal_bytes < before
    world.restart()
    assert world.recover() == []


def test_an_unfinished_commit_keeps_its_records(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    world.begin(xid("stuck"))
    world.put(xid("stuck"), b"stuck", partition=1)
    world.store.broken.add(("orders", 1))
    assert world.commit(xid("stuck")).startswith("500 ")
    assert run(world, 2_000) < BOUND
    world.restart()
    assert world.bodies(partition=1) == [b"stuck"]
    assert len(world.bodies()) == 2_000


def test_without_room_on_the_disk_finished_transactions_are_noted_later(tmp_path: Path) -> None:
    from metaq_broker.testing import Fault, FaultyFiles

    files = FaultyFiles(tmp_path)
    world = World(tmp_path, files, checkpoint=SMALL)
    world.begin(xid("a"))
    world.put(xid("a"), b"a")
    world.store.hold = True
    answers: list[object] = []
    world.tx.commit(xid("a"), True, None, answers.append)
    world.settle()
    world.store.hold = False
    # 1 the partition's bytes, 2 the note of the journal
    files.fault = Fault(at=2, error=28, calls=frozenset({"pwrite"}))
    world.store.release_held()
    assert answers == [None]
    files.fault = None
    assert run(world, 2_000) < 2 * SMALL.file_bytes
    world.revive(files.restart())
    assert world.report.completed == 0
    assert world.bodies().count(b"a") == 1
