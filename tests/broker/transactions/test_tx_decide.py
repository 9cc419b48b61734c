"""Decisions: what an exactly-once sink builds on. Each test is one way a driver, a task or the broker may fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions.decisions import Decision
from metaq_broker.transactions.heuristics import Outcome
from metaq_broker.transactions.refusals import TransactionRefused
from metaq_broker.transactions.seams import TransactionLimits
from tx_world import World, local, xid

from metaq.model import Xid

A, B, C = xid("a"), xid("b"), xid("c")
FOREIGN = xid("on another broker")


def prepared(world: World, *keys: Xid) -> None:
    for key in keys:
        world.prepare_with(key, key.branch)


def test_a_decision_commits_its_branches_here(world: World) -> None:
    prepared(world, A, B, C)
    assert world.decide("q1", 1, [A, FOREIGN, B]) == Decision(1, (A, FOREIGN, B))
    assert world.bodies() == [b"a", b"b"]
    assert world.recover() == [str(C)]
    assert world.tx.decision("q1") == Decision(1, (A, FOREIGN, B))
    assert world.tx.decision("q2") is None


def test_commits_after_the_decision_answer_200_again_and_again(world: World) -> None:
    prepared(world, A)
    world.decide("q1", 1, [A, FOREIGN])
    for _ in range(2):
        assert world.commit(A, False) == "200"
        world.restart()
    assert world.bodies() == [b"a"]
    assert "code=-4" in world.commit(FOREIGN, False)


def test_a_commit_waits_for_the_messages_of_the_decision(world: World) -> None:
    prepared(world, A)
    world.store.hold = True
    assert world.decide("q1", 1, [A]) == Decision(1, (A,))
    answers: list[object] = []
    world.tx.commit(A, False, None, answers.append)
    world.settle()
    assert answers == []
    world.store.release_held()
    assert answers == [None]


def test_a_replayed_batch_learns_the_first_decision_and_commits_nothing_new(world: World) -> None:
    prepared(world, A)
    world.decide("q1", 1, [A, FOREIGN])
    world.restart()
    prepared(world, B)
    assert world.decide("q1", 1, [B]) == Decision(1, (A, FOREIGN))
    assert world.recover() == [str(B)]
    assert world.rollback(B) == "200"
    assert world.bodies() == [b"a"]


def test_two_drivers_that_decide_at_once_get_one_answer(world: World) -> None:
    prepared(world, A, B)
    answers: list[object] = []
    world.tx.decide("q1", 1, [A], answers.append)
    world.tx.decide("q1", 1, [B], answers.append)
    assert answers == []
    world.settle()
    assert answers == [Decision(1, (A,)), Decision(1, (A,))]
    assert world.bodies() == [b"a"]


def test_a_zombie_is_refused_with_both_batches_named(world: World) -> None:
    prepared(world, A, B)
    world.decide("q1", 5, [A])
    assert world.decide("q1", 4, [B]) == "409 batch 4 of query q1 comes too late: batch 5 has been decided"
    assert world.recover() == [str(B)]
    assert world.decide("q2", 4, [B]) == Decision(4, (B,))


def test_known_branches_that_are_not_prepared_refuse_the_whole_decision(world: World) -> None:
    prepared(world, A)
    world.begin(B)
    world.put(B, b"b")
    reply = world.decide("q1", 1, [A, B, FOREIGN])
    assert reply == f"500 XAException:code=-6,msg=batch 1 of query q1 cannot be decided, not prepared: {B}"
    assert world.tx.decision("q1") is None
    assert world.recover() == [str(A)]
    assert world.bodies() == []


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.COMPLETED])
def test_a_branch_that_an_operator_dropped_cannot_be_decided(world: World, outcome: Outcome) -> None:
    prepared(world, A, B)
    world.by_operator(A, outcome)
    assert str(A) in world.decide("q1", 1, [A, B])
    assert world.recover() == [str(B), str(A)]


def test_a_branch_that_an_operator_committed_can_be_decided(world: World) -> None:
    prepared(world, A, B)
    world.by_operator(A, Outcome.COMMITTED)
    assert world.decide("q1", 1, [A, B]) == Decision(1, (A, B))
    assert world.bodies() == [b"a", b"b"]
    assert "code=7" in world.commit(A, False)


def test_a_branch_whose_commit_is_on_its_way_can_be_decided(world: World) -> None:
    prepared(world, A)
    answers: list[object] = []
    world.tx.commit(A, False, None, answers.append)
    assert world.decide("q1", 1, [A]) == Decision(1, (A,))
    assert answers == [None]
    assert world.bodies() == [b"a"]
    assert world.commit(A, False) == "200"


def test_decided_branches_can_be_neither_rolled_back_nor_begun_again(world: World) -> None:
    prepared(world, A)
    world.decide("q1", 1, [A])
    refusal = f"500 XAException:code=-6,msg=XA transaction '{A}' was committed with batch 1 of query q1"
    assert world.rollback(A) == refusal
    assert world.begin(A) == refusal


def test_local_transactions_are_no_branches(world: World) -> None:
    world.begin(local(1))
    assert world.decide("q1", 1, [local(1)]) == "500 XAException:code=-4,msg=TX:sess1:1 is not a valid xid"


def test_an_empty_batch_can_be_decided(world: World) -> None:
    assert world.decide("q1", 1, []) == Decision(1, ())
    world.restart()
    assert world.decide("q1", 1, [A]) == Decision(1, ())


def test_the_last_two_decisions_of_a_query_are_remembered(world: World) -> None:
    for batch_id, key in enumerate((A, B, C)):
        prepared(world, key)
        world.decide("q1", batch_id, [key])
    for _ in range(2):
        assert "code=-4" in world.commit(A, False)
        assert world.commit(B, False) == "200"
        assert world.commit(C, False) == "200"
        world.restart()
    assert world.tx.decision("q1") == Decision(2, (C,))


def test_forgetting_a_query(world: World) -> None:
    prepared(world, A)
    world.decide("q1", 7, [A])
    world.tx.forget_decisions("q1")
    world.tx.forget_decisions("nobody")
    for _ in range(2):
        assert world.tx.decision("q1") is None
        assert "code=-4" in world.commit(A, False)
        world.restart()
    assert world.bodies() == [b"a"]
    assert world.decide("q1", 1, []) == Decision(1, ())


def test_decisions_have_a_limit(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TransactionLimits(decision_bytes_max=100))
    assert world.decide("q1", 1, [A]) == Decision(1, (A,))
    assert world.decide("q1", 2, [A]) == Decision(2, (A,))
    assert world.decide("q2", 1, [A] * 10).startswith("500 decisions of all queries would take more than 100 bytes")
    for batch_id in range(3, 20):  # the older ones make room
        assert world.decide("q1", batch_id, [A]) == Decision(batch_id, (A,))


def test_a_crash_between_decision_and_commits(tmp_path: Path) -> None:
    """Driver and broker die after the decision: the next driver finds it and only has to repeat the commits."""
    files = FaultyFiles(tmp_path)
    world = World(tmp_path, files)
    prepared(world, A, B)
    answers: list[object] = []
    world.tx.decide("q1", 1, [A, B], answers.append)
    world.loop.run_one_job()  # durable, A appended, B not
    assert answers == [Decision(1, (A, B))]
    assert world.bodies() == [b"a"]
    world.revive(files.restart())
    assert world.report.completed == 1
    assert world.decide("q1", 1, [C]) == Decision(1, (A, B))
    assert world.commit(A, False) == "200"
    assert world.commit(B, False) == "200"
    assert world.bodies() == [b"a", b"b"]


def test_many_branches_are_appended_one_a_turn(world: World) -> None:
    keys = [xid(f"b{number}") for number in range(50)]
    for number, key in enumerate(keys):
        world.prepare_with(key, b"m%d" % number, partition=number % 4)
    assert world.decide("q1", 1, keys) == Decision(1, tuple(keys))
    stored = [body for partition in range(4) for body in world.bodies(partition=partition)]
    assert sorted(stored) == sorted(b"m%d" % number for number in range(50))


def test_what_was_decided_last_is_told_when_it_is_durable(world: World) -> None:
    heard: list[object] = []
    world.tx.decide("q1", 7, [FOREIGN], lambda _: None)
    world.tx.last_decided("q1", heard.append)
    world.tx.last_decided("q2", heard.append)
    assert heard == []
    world.settle()
    assert heard == [Decision(7, (FOREIGN,)), None]


def test_a_query_that_is_over_leaves_nothing_behind(world: World) -> None:
    """A prepare on its way is done before the answer, one that comes later is refused: RECOVER then shows all."""
    early, late = xid("early"), xid("late")
    for key in (early, late):
        world.begin(key)
        world.put(key, b"x")
    prepared(world, A)
    world.decide("q", 0, [A])
    answers: list[object] = []
    world.tx.prepare(early, lambda vote: answers.append(vote))
    world.tx.end_query(early.unique, answers.append)
    world.tx.prepare(late, lambda vote: answers.append(str(vote)))
    world.settle()
    assert answers == [f"XAException:code=-6,msg=query {late.unique} of XA transaction '{late}' is over", 0, None]
    assert world.recover() == [str(early)]
    assert world.rollback(early) == world.rollback(late) == "200"
    assert "is over" in world.begin(xid("later"))
    world.restart()  # nothing can be under way any more
    assert world.begin(xid("later")) == "200"


def test_the_end_of_a_query_forgets_its_decisions(world: World) -> None:
    prepared(world, A)
    world.decide(A.unique, 3, [A])
    answers: list[object] = []
    for name in (A.unique, "nobody"):
        world.tx.end_query(name, answers.append)
    world.settle()
    assert (answers, world.tx.decision(A.unique)) == ([None, None], None)
    world.restart()
    assert world.tx.decision(A.unique) is None
    assert world.bodies() == [b"a"]


# ---- what a batch contains, and which branches are this broker's


@pytest.mark.parametrize("restarted", [False, True])
def test_contents_are_returned_with_the_first_decision(world: World, restarted: bool) -> None:
    prepared(world, A)
    assert world.decide("q1", 1, [A, FOREIGN], "first") == Decision(1, (A, FOREIGN), "first")
    if restarted:
        world.restart()
    assert world.decide("q1", 1, [B], "second") == Decision(1, (A, FOREIGN), "first")
    assert world.decide("q1", 2, [], None) == Decision(2, (), None)


def test_an_own_branch_that_is_unknown_refuses_the_decision(world: World) -> None:
    prepared(world, A)
    reply = world.decide("q1", 1, [A, FOREIGN, B], "x", [0, 2])
    assert reply == f"500 XAException:code=-4,msg=batch 1 of query q1 cannot be decided, unknown on this broker: {B}"
    assert world.tx.decision("q1") is None
    assert world.recover() == [str(A)]
    assert world.decide("q1", 1, [A, FOREIGN], "x", [0]) == Decision(1, (A, FOREIGN), "x")


def test_a_missing_branch_that_an_operator_accepts_counts_as_committed(world: World) -> None:
    world.tx.accept_missing(B)
    world.restart()
    assert world.decide("q1", 1, [B], "x", [0]) == Decision(1, (B,), "x")
    assert world.commit(B, False).startswith(f"500 XAException:code=7,msg=XA transaction '{B}' has been heur")
    prepared(world, A)
    with pytest.raises(TransactionRefused, match="is on this broker, there is nothing to accept"):
        world.tx.accept_missing(A)
    world.decide("q1", 2, [A], "x", [0])
    with pytest.raises(TransactionRefused, match="is on this broker, there is nothing to accept"):
        world.tx.accept_missing(A)
