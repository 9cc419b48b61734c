"""A broker that stops while a commit is on its way into the partitions."""

from __future__ import annotations

from tx_harness import Harness, xid

X1, X2 = xid("b1"), xid("b2")


def test_a_partition_that_syncs_after_the_stop_disturbs_nobody(harness: Harness) -> None:
    harness.prepare_with(X1, b"one")
    harness.store.hold = True
    answers: list[object] = []
    harness.tx.commit(X1, False, None, answers.append)
    harness.settle()
    harness.tx.close()
    harness.store.release_held()  # what the last sync of the logs does: the journal is closed by then
    assert answers == []
    harness.start()
    assert harness.bodies() == [b"one"]
    assert harness.recover() == []


def test_branches_left_at_the_stop_are_committed_by_the_next_start(harness: Harness) -> None:
    harness.prepare_with(X1, b"one")
    harness.prepare_with(X2, b"two", partition=1)
    reported: list[object] = []
    harness.tx.decide("query", 1, [X1, X2], reported.append)
    harness.loop.run_one_job()  # the decision is durable, the first branch applied, the second one waits for its turn
    assert len(reported) == 1
    harness.tx.close()
    harness.settle()
    harness.start()
    assert (harness.bodies(), harness.bodies(partition=1)) == ([b"one"], [b"two"])
