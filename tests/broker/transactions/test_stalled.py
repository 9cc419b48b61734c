"""Commits that a partition does not take, for want of space or as it is read-only: the broker finishes them itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from log_harness import LogHarness
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.transactions.outcomes import Outcome
from metaq_broker.transactions.stalled import RETRY_S_MAX
from stored import QuickFiles
from tx_harness import Harness, local, xid

B1, B2, B3 = xid("b1"), xid("b2"), xid("b3")
L1, L2 = local(1), local(2)
STALLED = "is committed, and readable once the broker can store its messages"


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path)


@pytest.fixture
def harness(tmp_path: Path, files: FaultyFiles) -> LogHarness:
    return LogHarness(tmp_path, files)


def fill_partitions(harness: LogHarness, *partition_keys: tuple[str, int]) -> None:
    """Have the disk of these partitions be full, and that of the journal not."""
    harness.store.full.update(partition_keys)


def empty_partitions(harness: LogHarness) -> None:
    harness.store.full.clear()
    harness.pass_time(RETRY_S_MAX)


def test_a_branch_is_readable_when_there_is_space_again(harness: LogHarness) -> None:
    harness.prepare_with(B1, b"m", b"n")
    fill_partitions(harness, ("orders", 0))
    reply = harness.commit(B1, one_phase=False)
    assert reply.startswith("500 XAException:code=-3")
    assert STALLED in reply
    assert harness.tx.stuck_commits() == [str(B1)]
    assert STALLED in harness.commit(B1, one_phase=False)
    harness.pass_time(3600)
    assert harness.bodies() == []
    empty_partitions(harness)
    assert harness.bodies() == [b"m", b"n"]
    assert harness.tx.stuck_commits() == []
    assert harness.tx.open_count == 0
    harness.restart()
    assert harness.report.completed == 0
    assert harness.bodies() == [b"m", b"n"]


def test_a_local_commit_is_readable_though_its_client_is_gone(harness: LogHarness) -> None:
    harness.begin(L1)
    harness.put(L1, b"m")
    fill_partitions(harness, ("orders", 0))
    assert STALLED in harness.commit(L1)
    harness.tx.connection_lost("A")
    assert harness.tx.stuck_commits() == harness.tx.users_of("orders", 0) == [str(L1)]
    empty_partitions(harness)
    assert (harness.bodies(), harness.tx.stuck_commits()) == ([b"m"], [])


def test_branches_of_a_decision_are_committed_in_the_end(harness: LogHarness) -> None:
    for number, branch in enumerate((B1, B2, B3)):
        harness.prepare_with(branch, b"%d" % number, partition=number)
    fill_partitions(harness, ("orders", 0), ("orders", 2))
    decision = harness.decide("q1", 1, (B1, B2, B3))
    assert decision.batch_id == 1
    assert [STALLED in harness.commit(each, one_phase=False) for each in (B1, B2, B3)] == [True, False, True]
    empty_partitions(harness)
    assert [harness.commit(each, one_phase=False) for each in (B1, B2, B3)] == ["200"] * 3
    assert [harness.bodies(partition=number) for number in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_an_operators_commit_is_finished_too(harness: LogHarness) -> None:
    harness.prepare_with(B1, b"m")
    fill_partitions(harness, ("orders", 0))
    assert STALLED in harness.by_operator(B1, Outcome.COMMITTED)
    empty_partitions(harness)
    assert harness.bodies() == [b"m"]


def test_later_commits_to_the_partition_wait_behind(harness: LogHarness) -> None:
    for number, branch in enumerate((B1, B2, B3)):
        harness.prepare_with(branch, b"%d" % number)
    fill_partitions(harness, ("orders", 0))
    assert STALLED in harness.commit(B1, one_phase=False)
    harness.store.full.clear()  # nobody has noticed yet
    assert STALLED in harness.commit(B2, one_phase=False)
    harness.begin(L1)
    harness.put(L1, b"other", partition=1)
    assert harness.commit(L1) == "200"
    assert STALLED in harness.commit(B3, one_phase=False)
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"0", b"1", b"2"]
    assert harness.bodies(partition=1) == [b"other"]


def test_later_commits_wait_while_other_partitions_of_the_first_are_appended(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles())
    harness.begin(L1)
    harness.put(L1, b"first")
    harness.put(L1, b"other", partition=1)
    harness.prepare_with(B2, b"second")
    harness.prepare_with(B3, b"third")
    reported: list[object] = []
    harness.store.hold, harness.store.full = True, {("orders", 0)}
    harness.tx.commit(L1, True, "A", reported.append)
    harness.settle()
    assert reported == []
    harness.store.full.clear()  # there is space for less than the first needs
    harness.tx.commit(B2, False, None, reported.append)
    harness.pass_time(2 * RETRY_S_MAX)
    harness.store.hold = False
    harness.store.release_held()
    assert len(reported) == 2
    assert STALLED in harness.commit(B3, one_phase=False)
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"first", b"second", b"third"]
    assert harness.bodies(partition=1) == [b"other"]
    assert harness.tx.stuck_commits() == []


def test_partitions_that_have_their_messages_get_them_once(harness: LogHarness) -> None:
    harness.begin(L1)
    for partition in range(3):
        harness.put(L1, b"%d" % partition, partition=partition)
    fill_partitions(harness, ("orders", 0), ("orders", 2))
    assert STALLED in harness.commit(L1)
    harness.store.full.discard(("orders", 0))
    harness.pass_time(RETRY_S_MAX)
    assert [harness.bodies(partition=number) for number in range(3)] == [[b"0"], [b"1"], []]
    harness.begin(L2)
    harness.put(L2, b"later")
    assert harness.commit(L2) == "200"
    empty_partitions(harness)
    assert [harness.bodies(partition=number) for number in range(3)] == [[b"0", b"later"], [b"1"], [b"2"]]


def test_a_partition_that_was_recovered_gets_what_is_missing(harness: LogHarness, files: FaultyFiles) -> None:
    harness.prepare_with(B1, b"before")
    assert harness.commit(B1, one_phase=False) == "200"
    harness.prepare_with(B2, b"m", b"n")
    files.fault = Fault(2, errno.EIO, calls=frozenset({"fdatasync"}), lasting=True)  # the first is the journal's
    assert STALLED in harness.commit(B2, one_phase=False)
    files.fault = None
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"before"], "it is read-only"
    harness.reopen_failed()
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"before", b"m", b"n"]
    harness.check_files()


def test_a_stop_leaves_the_rest_to_the_next_start(harness: LogHarness) -> None:
    harness.prepare_with(B1, b"m")
    fill_partitions(harness, ("orders", 0))
    assert STALLED in harness.commit(B1, one_phase=False)
    harness.restart()
    assert harness.report.completed == 1
    assert harness.bodies() == [b"m"]


def test_a_start_with_a_full_disk_goes_on_trying(harness: LogHarness, files: FaultyFiles) -> None:
    harness.prepare_with(B1, b"m", b"n")
    fill_partitions(harness, ("orders", 0))
    assert STALLED in harness.commit(B1, one_phase=False)
    harness.tx.close()
    harness.partitions.logs.close(clean=True)
    harness.full_at_start = {("orders", 0)}
    harness.start()
    assert (harness.report.completed, harness.bodies()) == (1, [])
    assert harness.tx.stuck_commits() == [str(B1)]
    empty_partitions(harness)
    assert harness.bodies() == [b"m", b"n"]


class FullOnce(set[tuple[str, int]]):
    """Full partitions that have space again when they have refused a unit: less than that one needs."""

    def __contains__(self, partition_key: object) -> bool:
        is_full = super().__contains__(partition_key)
        self.difference_update([partition_key] if is_full else [])  # type: ignore[list-item]
        return is_full


def test_a_start_appends_no_later_commit_before_one_without_space(harness: LogHarness) -> None:
    for number, branch in enumerate((B1, B2)):
        harness.prepare_with(branch, b"%d" % number)
    fill_partitions(harness, ("orders", 0))
    assert all(STALLED in harness.commit(branch, one_phase=False) for branch in (B1, B2))
    harness.tx.close()
    harness.partitions.logs.close(clean=True)
    harness.full_at_start = FullOnce({("orders", 0)})
    harness.start()
    assert harness.tx.stuck_commits() == [str(B1), str(B2)]
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"0", b"1"]


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_disk_that_is_full_from_any_call_on(kept: float, tmp_path: Path) -> None:
    """Whatever call finds no space first: when there is some again, all that is committed is there, once."""

    def story(root: Path, fault: Fault | None) -> tuple[int, list[str], list[str]]:
        root.mkdir()
        files = FaultyFiles(root)
        harness = LogHarness(root, files)
        for number, branch in enumerate((B1, B2, B3)):
            for partition in (0, 1):
                harness.begin(branch)
                harness.put(branch, b"%d" % number * 150, partition=partition)
            assert harness.prepare(branch) == "200 0"
        before = len(files.calls)
        files.fault = fault
        replies = [harness.commit(each, one_phase=False) for each in (B1, B2, B3)]
        calls = len(files.calls) - before
        files.fault = None
        harness.pass_time(RETRY_S_MAX)
        harness.pass_time(RETRY_S_MAX)
        for number, (branch, reply) in enumerate(zip((B1, B2, B3), replies, strict=True)):
            again = reply if reply == "200" or STALLED in reply else harness.commit(branch, one_phase=False)
            if "outcome of transaction" in again:
                continue  # the journal is of no use: a restart tells
            for partition in (0, 1):
                assert harness.bodies(partition=partition).count(b"%d" % number * 150) == 1
        harness.restart()
        harness.check_files()
        for partition in (0, 1):
            found = harness.bodies(partition=partition)
            assert len(found) == len(set(found))
        return calls, replies, harness.bodies()

    calls, replies, _ = story(tmp_path / "count", None)
    assert replies == ["200"] * 3
    stalled = 0
    writes = frozenset({"pwrite", "create"})
    for at in range(1, calls + 1):
        _, replies, _ = story(tmp_path / str(at), Fault(at, errno.ENOSPC, kept, lasting=True, calls=writes))
        stalled += any(STALLED in reply for reply in replies)
    assert stalled


def test_a_plain_store_tells_the_same(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles())
    harness.prepare_with(B1, b"m")
    harness.store.broken.add(("orders", 0))
    assert STALLED in harness.commit(B1, one_phase=False)
    harness.store.broken.clear()
    harness.pass_time(RETRY_S_MAX)
    assert harness.bodies() == [b"m"]
