"""What transactions ask of retention, and what they refuse when the disk is nearly full."""

from __future__ import annotations

from collections.abc import Iterable

from metaq_broker.transactions.outcomes import Outcome
from tx_harness import Harness, local, xid

from metaq.formats.frames import encode_frame

L1, X1, X2 = local(1), xid("b1"), xid("b2")
FULL = "disk is nearly full"


def test_nothing_is_looked_for_where_no_commit_is_under_way(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"open")
    harness.prepare_with(X1, b"prepared")
    assert harness.tx.needed_from("orders", 0) is None


def test_an_unfinished_commit_is_looked_for_from_where_its_partition_ended(harness: Harness) -> None:
    harness.store.put(("orders", 0), encode_frame(7, 0, b"before"))
    harness.begin(L1)
    harness.put(L1, b"m")
    harness.store.hold = True
    answers: list[object] = []
    harness.tx.commit(L1, True, "A", answers.append)
    harness.settle()
    assert harness.tx.needed_from("orders", 0) == 26
    assert harness.tx.needed_from("orders", 1) is None
    harness.tx.connection_lost("A")
    assert harness.tx.needed_from("orders", 0) == 26
    harness.store.release_held()
    assert harness.tx.needed_from("orders", 0) is None


def test_a_decided_and_an_operators_commit_count_as_well(harness: Harness) -> None:
    harness.prepare_with(X1, b"decided")
    harness.prepare_with(X2, b"by hand", partition=1)
    harness.store.hold = True
    harness.tx.decide("query", 1, [X1], lambda decision: None)
    harness.tx.end_heuristically(X2, Outcome.COMMITTED, lambda refusal: None)
    harness.settle()
    assert (harness.tx.needed_from("orders", 0), harness.tx.needed_from("orders", 1)) == (0, 0)
    harness.store.release_held()
    assert (harness.tx.needed_from("orders", 0), harness.tx.needed_from("orders", 1)) == (None, None)


def test_a_refused_commit_is_looked_for_until_a_restart_finishes_it(harness: Harness) -> None:
    harness.prepare_with(X1, b"m")
    harness.store.broken.add(("orders", 0))
    harness.commit(X1, False)
    assert harness.tx.needed_from("orders", 0) == 0
    harness.restart()
    assert harness.tx.needed_from("orders", 0) is None
    assert harness.bodies() == [b"m"]


def test_the_finished_notes_can_be_waited_for(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"m")
    harness.commit(L1)
    reported: list[object] = []
    harness.tx.when_on_disk(reported.append)
    assert reported == []  # the note that L1 is finished waits for nobody, so nobody has synced it yet
    harness.settle()
    assert reported == [None]


def test_a_full_disk_promises_nothing_new_and_keeps_what_was_promised(harness: Harness) -> None:
    asked: list[list[tuple[str, int]]] = []

    def check_space(partition_keys: Iterable[tuple[str, int]]) -> str | None:
        asked.append(sorted(partition_keys))
        return FULL

    harness.prepare_with(X1, b"prepared")
    harness.begin(X2)
    harness.put(X2, b"open")
    harness.begin(L1)
    harness.put(L1, b"local", partition=1)
    harness.check_space = check_space
    assert harness.prepare(X2) == f"500 XAException:code=-3,msg={FULL}"
    assert harness.commit(X2) == f"500 XAException:code=-3,msg={FULL}"
    assert harness.commit(L1) == f"500 {FULL}"
    assert asked == [[("orders", 0)], [("orders", 0)], [("orders", 1)]]
    assert harness.commit(X1, False) == "200"
    assert harness.rollback(X2) == "200"
    harness.check_space = lambda partition_keys: None
    assert harness.commit(L1) == "200"
    assert (harness.bodies(), harness.bodies(partition=1)) == ([b"prepared"], [b"local"])


def test_empty_transactions_end_on_a_full_disk(harness: Harness) -> None:
    harness.check_space = lambda partition_keys: FULL
    for key in (X1, X2, L1):
        harness.begin(key)
    assert (harness.prepare(X1), harness.commit(X2), harness.commit(L1)) == ("200 3", "200", "200")
