"""Decisions: what an exactly-once sink builds on. Each test is one way a driver, a task or the broker may fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions.decisions import Decision
from metaq_broker.transactions.interfaces import TransactionLimits
from metaq_broker.transactions.outcomes import Outcome, QueryOver, TransactionRefused
from tx_harness import Harness, local, xid

from metaq.model import Xid

A, B, C = xid("a"), xid("b"), xid("c")
FOREIGN = xid("on another broker")


def prepared(harness: Harness, *keys: Xid) -> None:
    for key in keys:
        harness.prepare_with(key, key.branch)


def test_a_decision_commits_its_branches_here(harness: Harness) -> None:
    prepared(harness, A, B, C)
    assert harness.decide("q1", 1, [A, FOREIGN, B]) == Decision(1, (A, FOREIGN, B))
    assert harness.bodies() == [b"a", b"b"]
    assert harness.recover() == [str(C)]
    assert harness.tx.decision("q1") == Decision(1, (A, FOREIGN, B))
    assert harness.tx.decision("q2") is None


def test_commits_after_the_decision_answer_200_again_and_again(harness: Harness) -> None:
    prepared(harness, A)
    harness.decide("q1", 1, [A, FOREIGN])
    for _ in range(2):
        assert harness.commit(A, False) == "200"
        harness.restart()
    assert harness.bodies() == [b"a"]
    assert "code=-4" in harness.commit(FOREIGN, False)


def test_a_commit_waits_for_the_messages_of_the_decision(harness: Harness) -> None:
    prepared(harness, A)
    harness.store.hold = True
    assert harness.decide("q1", 1, [A]) == Decision(1, (A,))
    answers: list[object] = []
    harness.tx.commit(A, False, None, answers.append)
    harness.settle()
    assert answers == []
    harness.store.release_held()
    assert answers == [None]


def test_a_replayed_batch_learns_the_first_decision(harness: Harness) -> None:
    prepared(harness, A)
    harness.decide("q1", 1, [A, FOREIGN])
    harness.restart()
    prepared(harness, B)
    assert harness.decide("q1", 1, [B]) == Decision(1, (A, FOREIGN))
    assert harness.recover() == [str(B)]
    assert harness.rollback(B) == "200"
    assert harness.bodies() == [b"a"]


def test_two_drivers_that_decide_at_once_get_one_answer(harness: Harness) -> None:
    prepared(harness, A, B)
    answers: list[object] = []
    harness.tx.decide("q1", 1, [A], answers.append)
    harness.tx.decide("q1", 1, [B], answers.append)
    assert answers == []
    harness.settle()
    assert answers == [Decision(1, (A,)), Decision(1, (A,))]
    assert harness.bodies() == [b"a"]


def test_a_zombie_is_refused_with_both_batches_named(harness: Harness) -> None:
    prepared(harness, A, B)
    harness.decide("q1", 5, [A])
    assert harness.decide("q1", 4, [B]) == "409 batch 4 of query q1 comes too late: batch 5 has been decided"
    assert harness.recover() == [str(B)]
    assert harness.decide("q2", 4, [B]) == Decision(4, (B,))


def test_known_branches_that_are_not_prepared_refuse_the_whole_decision(harness: Harness) -> None:
    prepared(harness, A)
    harness.begin(B)
    harness.put(B, b"b")
    reply = harness.decide("q1", 1, [A, B, FOREIGN])
    assert reply == f"500 XAException:code=-6,msg=batch 1 of query q1 cannot be decided, not prepared: {B}"
    assert harness.tx.decision("q1") is None
    assert harness.recover() == [str(A)]
    assert harness.bodies() == []


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.COMPLETED])
def test_a_branch_that_an_operator_dropped_cannot_be_decided(harness: Harness, outcome: Outcome) -> None:
    prepared(harness, A, B)
    harness.by_operator(A, outcome)
    assert str(A) in harness.decide("q1", 1, [A, B])
    assert harness.recover() == [str(B), str(A)]


def test_a_branch_that_an_operator_committed_can_be_decided(harness: Harness) -> None:
    prepared(harness, A, B)
    harness.by_operator(A, Outcome.COMMITTED)
    assert harness.decide("q1", 1, [A, B]) == Decision(1, (A, B))
    assert harness.bodies() == [b"a", b"b"]
    assert "code=7" in harness.commit(A, False)


def test_a_branch_whose_commit_is_on_its_way_can_be_decided(harness: Harness) -> None:
    prepared(harness, A)
    answers: list[object] = []
    harness.tx.commit(A, False, None, answers.append)
    assert harness.decide("q1", 1, [A]) == Decision(1, (A,))
    assert answers == [None]
    assert harness.bodies() == [b"a"]
    assert harness.commit(A, False) == "200"


def test_decided_branches_can_be_neither_rolled_back_nor_begun_again(harness: Harness) -> None:
    prepared(harness, A)
    harness.decide("q1", 1, [A])
    refusal = f"500 XAException:code=-6,msg=XA transaction '{A}' was committed with batch 1 of query q1"
    assert harness.rollback(A) == refusal
    assert harness.begin(A) == refusal


def test_local_transactions_are_no_branches(harness: Harness) -> None:
    harness.begin(local(1))
    assert harness.decide("q1", 1, [local(1)]) == "500 XAException:code=-4,msg=TX:sess1:1 is not a valid xid"


def test_an_empty_batch_can_be_decided(harness: Harness) -> None:
    assert harness.decide("q1", 1, []) == Decision(1, ())
    harness.restart()
    assert harness.decide("q1", 1, [A]) == Decision(1, ())


def test_the_last_two_decisions_of_a_query_are_remembered(harness: Harness) -> None:
    for batch_id, key in enumerate((A, B, C)):
        prepared(harness, key)
        harness.decide("q1", batch_id, [key])
    for _ in range(2):
        assert "code=-4" in harness.commit(A, False)
        assert harness.commit(B, False) == "200"
        assert harness.commit(C, False) == "200"
        harness.restart()
    assert harness.tx.decision("q1") == Decision(2, (C,))


def test_forgetting_a_query(harness: Harness) -> None:
    prepared(harness, A)
    harness.decide("q1", 7, [A])
    harness.tx.forget_decisions("q1")
    harness.tx.forget_decisions("nobody")
    for _ in range(2):
        assert harness.tx.decision("q1") is None
        assert "code=-4" in harness.commit(A, False)
        harness.restart()
    assert harness.bodies() == [b"a"]
    assert harness.decide("q1", 1, []) == Decision(1, ())


def test_decisions_have_a_limit(tmp_path: Path) -> None:
    harness = Harness(tmp_path, limits=TransactionLimits(decision_bytes_max=100))
    assert harness.decide("q1", 1, [A]) == Decision(1, (A,))
    assert harness.decide("q1", 2, [A]) == Decision(2, (A,))
    assert harness.decide("q2", 1, [A] * 10).startswith("500 decisions of all queries would take more than 100 bytes")
    for batch_id in range(3, 20):  # the older ones make room
        assert harness.decide("q1", batch_id, [A]) == Decision(batch_id, (A,))


def test_a_crash_between_decision_and_commits(tmp_path: Path) -> None:
    """Driver and broker die after the decision: the next driver finds it and only has to repeat the commits."""
    files = FaultyFiles(tmp_path)
    harness = Harness(tmp_path, files)
    prepared(harness, A, B)
    answers: list[object] = []
    harness.tx.decide("q1", 1, [A, B], answers.append)
    harness.loop.run_one_job()  # durable, A appended, B not
    assert answers == [Decision(1, (A, B))]
    assert harness.bodies() == [b"a"]
    harness.revive(files.restart())
    assert harness.report.completed == 1
    assert harness.decide("q1", 1, [C]) == Decision(1, (A, B))
    assert harness.commit(A, False) == "200"
    assert harness.commit(B, False) == "200"
    assert harness.bodies() == [b"a", b"b"]


def test_many_branches_are_appended_one_a_quantum(harness: Harness) -> None:
    keys = [xid(f"b{number}") for number in range(50)]
    for number, key in enumerate(keys):
        harness.prepare_with(key, b"m%d" % number, partition=number % 4)
    assert harness.decide("q1", 1, keys) == Decision(1, tuple(keys))
    stored = [body for partition in range(4) for body in harness.bodies(partition=partition)]
    assert sorted(stored) == sorted(b"m%d" % number for number in range(50))


def test_what_was_decided_last_is_reported_when_it_is_durable(harness: Harness) -> None:
    heard: list[object] = []
    harness.tx.decide("q1", 7, [FOREIGN], lambda _: None)
    harness.tx.last_decided("q1", heard.append)
    harness.tx.last_decided("q2", heard.append)
    assert heard == []
    harness.settle()
    assert heard == [Decision(7, (FOREIGN,)), None]


def test_a_query_that_is_over_leaves_nothing_behind(harness: Harness) -> None:
    """A prepare on its way is done before the answer, one that comes later is refused: RECOVER then shows all."""
    early, late = xid("early"), xid("late")
    for key in (early, late):
        harness.begin(key)
        harness.put(key, b"x")
    prepared(harness, A)
    harness.decide("q", 0, [A])
    answers: list[object] = []
    harness.tx.prepare(early, lambda vote: answers.append(vote))
    harness.tx.end_query(early.unique, answers.append)
    harness.tx.prepare(late, answers.append)
    harness.settle()
    assert answers == [QueryOver(late), 0, None]
    assert harness.recover() == [str(early)]
    assert harness.rollback(early) == harness.rollback(late) == "200"
    assert "is over" in harness.begin(xid("later"))
    harness.restart()  # nothing can be under way any more
    assert harness.begin(xid("later")) == "200"


def test_recover_lists_a_branch_whose_prepare_is_under_way(harness: Harness) -> None:
    """It is prepared when the answer is certain. A RECOVER behind a decision thus lists all that it supersedes."""
    prepared(harness, A)
    harness.begin(B)
    harness.put(B, b"x")
    answers: list[object] = []
    harness.tx.prepare(B, answers.append)
    harness.tx.decide("q", 0, [A], answers.append)
    keys = harness.recover()
    harness.tx.when_certain(answers.append)
    harness.settle()
    assert (keys, answers) == ([str(B)], [0, Decision(0, (A,)), None])
    assert harness.rollback(B) == "200"


def test_the_end_of_a_query_forgets_its_decisions(harness: Harness) -> None:
    prepared(harness, A)
    harness.decide(A.unique, 3, [A])
    answers: list[object] = []
    for name in (A.unique, "nobody"):
        harness.tx.end_query(name, answers.append)
    harness.settle()
    assert (answers, harness.tx.decision(A.unique)) == ([None, None], None)
    harness.restart()
    assert harness.tx.decision(A.unique) is None
    assert harness.bodies() == [b"a"]


# ---- what a batch contains, and which branches are this broker's


@pytest.mark.parametrize("restarted", [False, True])
def test_contents_are_returned_with_the_first_decision(harness: Harness, restarted: bool) -> None:
    prepared(harness, A)
    assert harness.decide("q1", 1, [A, FOREIGN], "first") == Decision(1, (A, FOREIGN), "first")
    if restarted:
        harness.restart()
    assert harness.decide("q1", 1, [B], "second") == Decision(1, (A, FOREIGN), "first")
    assert harness.decide("q1", 2, [], None) == Decision(2, (), None)


def test_an_own_branch_that_is_unknown_refuses_the_decision(harness: Harness) -> None:
    prepared(harness, A)
    reply = harness.decide("q1", 1, [A, FOREIGN, B], "x", [0, 2])
    assert reply == f"500 XAException:code=-4,msg=batch 1 of query q1 cannot be decided, unknown on this broker: {B}"
    assert harness.tx.decision("q1") is None
    assert harness.recover() == [str(A)]
    assert harness.decide("q1", 1, [A, FOREIGN], "x", [0]) == Decision(1, (A, FOREIGN), "x")


def test_a_missing_branch_that_an_operator_accepts_counts_as_committed(harness: Harness) -> None:
    harness.tx.accept_missing(B)
    harness.restart()
    assert harness.decide("q1", 1, [B], "x", [0]) == Decision(1, (B,), "x")
    assert harness.commit(B, False).startswith(f"500 XAException:code=7,msg=XA transaction '{B}' has been heur")
    prepared(harness, A)
    with pytest.raises(TransactionRefused, match="NotMissing"):
        harness.tx.accept_missing(A)
    harness.decide("q1", 2, [A], "x", [0])
    with pytest.raises(TransactionRefused, match="NotMissing"):
        harness.tx.accept_missing(A)
