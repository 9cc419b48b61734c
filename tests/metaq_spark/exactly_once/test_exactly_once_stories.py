"""Exactly once against two broker processes: every way in which a task, a driver or a broker may die, or come late."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactly_once_world import QUERY, World
from fix_broker import StartBroker, wait_until

from metaq.backends.metaq.transactions import DecidedBatch, Transactions
from metaq.errors import MetaqError, TransactionError
from metaq_spark.errors import BatchSuperseded, BranchLost, ExactlyOnceError
from metaq_spark.exactly_once.branches import BranchLimits
from metaq_spark.exactly_once.coordinator import Coordinator
from metaq_spark.exactly_once.identity import BatchName, branch_name, single_write
from metaq_spark.exactly_once.plan import TransactionPlan, plan_transaction
from metaq_spark.sink.commit import abort_write, commit_write
from metaq_spark.sink.task import WrittenMessages

pytestmark = pytest.mark.process

NOTHING_LEFT = {4: 0, 7: 0}
NOTHING = DecidedBatch((), "")


def batch(number: int) -> BatchName:
    return BatchName(QUERY, number)


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> World:
    return World(start_broker, tmp_path)


def test_a_batch_of_two_tasks_on_two_brokers(world: World) -> None:
    branches = [*world.write(batch(0), 0), *world.write(batch(0), 1)]
    assert (len(branches), world.everything(), world.prepared()) == (4, [[], []], {4: 2, 7: 2})
    assert world.coordinator.finish(batch(0), branches).branches == tuple(branches)
    assert (world.everything(), world.prepared()) == ([["0/0", "0/1"]] * 2, NOTHING_LEFT)
    assert world.decided() == {4: 0, 7: 0}
    world.coordinator.finish(batch(0), branches)
    world.coordinator.finish(batch(1), world.write(batch(1)))
    assert world.everything() == [["0/0", "0/1", "1/0"]] * 2


@pytest.mark.parametrize("restarted", ["no broker", "both brokers"])
def test_a_driver_that_dies_between_any_two_steps(world: World, restarted: str) -> None:
    """Each batch is written by a first driver, which stops after so many steps, and by a second, which does not."""
    for number, steps in enumerate(("", "decide", "decide commit", "decide commit clean_up")):
        first = world.write(batch(number))
        with world.driver() as driver:
            decided = driver.decide(batch(number), first) if "decide" in steps else NOTHING
            if "commit" in steps:
                driver.commit(batch(number), decided)
            if "clean_up" in steps:
                driver.clean_up(batch(number), decided.branches)
        if restarted == "both brokers":
            world.restart()
        second = world.write(batch(number))
        counting = world.coordinator.finish(batch(number), second)
        assert list(counting.branches) == (first if steps else second)
        assert (world.everything(), world.prepared()) == ([[f"{n}/0" for n in range(number + 1)]] * 2, NOTHING_LEFT)


def test_a_driver_that_dies_after_the_first_of_two_commits(world: World) -> None:
    first = world.write(batch(0))
    with world.driver() as driver:
        decided = driver.decide(batch(0), first)
        on_four = tuple(key for key in decided.branches if b".4." in key.branch)
        driver.commit(batch(0), decided._replace(branches=on_four))
    assert world.everything() == [["0/0"], []]
    world.restart(7)
    world.coordinator.finish(batch(0), world.write(batch(0)))
    assert (world.everything(), world.prepared()) == ([["0/0"], ["0/0"]], NOTHING_LEFT)


def test_a_zombie_is_refused_and_nothing_of_it_stays(world: World) -> None:
    zombie = world.write(batch(0), 9)
    world.coordinator.finish(batch(0), world.write(batch(0)))
    world.coordinator.finish(batch(1), world.write(batch(1)))
    zombie += world.write(batch(0), 9)
    world.write(batch(0), 10)
    with pytest.raises(BatchSuperseded, match=r"batch 0 of query .* batch 1 has been decided\. Another run went on"):
        world.coordinator.finish(batch(0), zombie)
    assert (world.everything(), world.prepared()) == ([["0/0", "1/0"]] * 2, NOTHING_LEFT)


def test_two_drivers_that_finish_the_same_batch_at_once(world: World) -> None:
    mine, yours = world.write(batch(0)), world.write(batch(0))
    with world.driver() as one, world.driver() as other:
        mine_decided = one.decide(batch(0), mine)
        assert list(mine_decided.branches) == mine
        assert other.decide(batch(0), yours) == mine_decided
        other.commit(batch(0), mine_decided)
        other.clean_up(batch(0), mine)
        one.commit(batch(0), mine_decided)
        one.clean_up(batch(0), mine)
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_attempts_that_do_not_count_are_rolled_back(world: World) -> None:
    lost, counting = world.write(batch(0)), world.write(batch(0))
    world.coordinator.finish(batch(0), counting)
    late = world.write(batch(0))  # a speculative one: it hears of the decision, and cleans up behind itself
    assert (len(lost), late, world.prepared()) == (2, [], NOTHING_LEFT)
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_nothing_of_a_later_batch_or_of_somebody_else_is_touched(world: World) -> None:
    later, other = world.write(batch(1)), world.write(BatchName("another-query", 0))
    world.coordinator.finish(batch(0), [])
    assert world.prepared() == {4: 2, 7: 2}
    world.coordinator.finish(batch(1), later)
    world.coordinator.finish(BatchName("another-query", 0), other)
    assert world.everything() == [["1/0", "0/0"]] * 2


# ---- operators


@pytest.mark.parametrize(("step", "readable"), [("commit", ["1/0"]), ("rollback", [])])
def test_a_branch_that_an_operator_ended_between_decision_and_commit(
    world: World, step: str, readable: list[str]
) -> None:
    """Broker 7 decided last, so that broker 4 learns of the decision by its commits only."""
    for_seven = {7: world.addresses[7]}
    Coordinator(for_seven, world.sessions).finish(batch(0), [])
    branches = world.write(batch(1))
    with world.driver() as driver:
        assert list(driver.decide(batch(1), branches).branches) == branches
    world.end_by_hand(branches[0], step)
    if step == "rollback":
        with pytest.raises(ExactlyOnceError, match=r"belongs to the batch, but was ended by hand on broker 4, so its"):
            world.coordinator.finish(batch(1), branches)
        world.end_by_hand(branches[0], "accept")
    world.coordinator.finish(batch(1), branches)
    assert [world.readable("4-0"), world.readable("7-0")] == [readable, ["1/0"]]


# ---- tasks


def test_a_task_that_fails_takes_its_branches_back(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    world.put(task, "4-0", "prepared")
    open_only = world.task(batch(0))
    world.put(open_only, "4-0", "open")
    for each in (task, open_only):
        each.give_up(ValueError("the rows cannot be computed"))
    assert world.prepared() == NOTHING_LEFT


def test_a_large_task_has_many_branches_in_order(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=200))
    payloads = [f"{n:03}" for n in range(200)]
    for n in range(0, 200, 5):
        for partition in ("4-0", "4-1", "7-0"):
            world.put(task, partition, *payloads[n : n + 5])
    branches = list(task.finish())
    names = [name for key in branches if (name := branch_name(key))]
    assert [name.sequence for name in names if name.broker_id == 7] == list(range(20))
    assert world.prepared() == {4: 40, 7: 20}
    world.restart(7)
    world.coordinator.finish(batch(0), branches)
    assert [world.readable(partition) for partition in ("4-0", "4-1", "7-0")] == [payloads] * 3


def test_more_branches_than_steps_under_way_at_once(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    payloads = [f"{n}" for n in range(300)]
    for payload in payloads:
        world.put(task, "7-0", payload)
    orphans = world.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    for payload in payloads:
        world.put(orphans, "7-1", payload)
    orphans.finish()
    world.coordinator.finish(batch(0), task.finish())
    assert (world.readable("7-0"), world.readable("7-1"), world.prepared()) == (payloads, [], NOTHING_LEFT)


def test_an_old_branch_is_prepared_with_the_next_block(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, age_s_max=0.0))
    for payload in "abc":
        world.put(task, "4-0", payload)
    branches = task.finish()
    assert len(branches) == 3
    world.coordinator.finish(batch(0), branches)
    assert world.readable("4-0") == ["a", "b", "c"]


def test_an_old_branch_is_prepared_while_the_task_waits_for_rows(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, age_s_max=0.01))
    world.put(task, "4-0", "a")
    world.put(task, "7-0", "b")
    wait_until(lambda: world.prepared() == {4: 1, 7: 1}, "both branches are prepared without another block")
    world.put(task, "4-0", "c")
    world.coordinator.finish(batch(0), task.finish())
    assert world.everything() == [["a", "c"], ["b"]]


def test_a_branch_that_the_broker_gave_up(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(timeout_s=1, age_s_max=999.0))
    world.put(task, "4-0", "a")
    opened = task._brokers[4]._open
    assert opened is not None
    opened.writer.flush()
    wait_until(lambda: world.refusal_of_commit(4, opened.xid) == -4, "the broker rolls the branch back")
    with pytest.raises(BranchLost, match=r"rolled back what a task had written so far.* raise maxTxTimeoutInSeconds"):
        task.finish()
    task.give_up(ValueError("x"))


@pytest.mark.parametrize("moment", ["before the next block", "before the end"])
def test_a_broker_that_restarts_in_the_middle_of_a_task(world: World, moment: str) -> None:
    task = world.task(batch(0))
    world.put(task, "4-0", "a")
    world.restart(4)

    def go_on() -> None:
        if moment == "before the next block":
            for _ in range(20):
                world.put(task, "4-0", "b")
        task.finish()

    with pytest.raises(MetaqError) as failure:
        go_on()
    assert failure.value.retryable
    task.give_up(failure.value)
    world.coordinator.finish(batch(0), world.write(batch(0)))
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_a_broker_that_restarts_while_a_task_waits_for_rows_with_all_its_branches_prepared(world: World) -> None:
    task = world.task(batch(0), limits=BranchLimits(60, age_s_max=0.01))
    world.put(task, "4-0", "a")
    wait_until(lambda: world.prepared()[4] == 1, "the branch is prepared without another block")
    with task._lock:
        task._brokers[4].settle()
    world.restart(4)
    world.put(task, "4-0", "b")
    world.coordinator.finish(batch(0), task.finish())
    assert world.readable("4-0") == ["a", "b"]


# ---- which brokers are named


def test_a_broker_that_is_added_does_not_open_the_past_again(world: World) -> None:
    first = world.write(batch(0))
    with world.driver() as driver:
        driver.decide(batch(0), first)
    world.add(1)
    assert list(world.coordinator.finish(batch(0), world.write(batch(0))).branches) == first
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, {1: 0} | NOTHING_LEFT)
    assert world.decided() == {4: 0, 7: 0, 1: None}


def test_a_broker_that_is_named_no_more_and_has_messages_of_the_batch(world: World) -> None:
    first = world.write(batch(0))
    with world.driver() as driver:
        driver.decide(batch(0), first)
    only = {4: world.addresses[4]}
    with pytest.raises(ExactlyOnceError, match="the batch has messages on broker 7, which the option brokers does not"):
        Coordinator(only, world.sessions).finish(batch(0), first)
    assert world.readable("7-0") == []
    world.coordinator.finish(batch(0), first)
    assert world.everything() == [["0/0"]] * 2


# ---- single writes


def single(world: World) -> TransactionPlan:
    return TransactionPlan(world.addresses, single_write(), single=True)


def test_a_single_write_leaves_no_decision(world: World) -> None:
    plan = single(world)
    assert plan.batch is not None
    branches = world.write(plan.batch)
    world.write(plan.batch)
    commit_write(plan, [WrittenMessages(2, 50, plan.batch, tuple(branches))], world.sessions)
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)
    assert world.decided(plan.batch.query) == {4: None, 7: None}


def test_a_single_write_that_fails_leaves_nothing(world: World) -> None:
    plan = single(world)
    assert plan.batch is not None
    world.write(plan.batch)
    late = world.task(plan.batch, 1)
    world.put(late, "4-0", "late")
    abort_write(plan, world.sessions)
    assert (world.everything(), world.prepared()) == ([[], []], NOTHING_LEFT)
    with pytest.raises(TransactionError, match="is over"):
        late.finish()
    late.give_up(ValueError("x"))
    with pytest.raises(TransactionError, match="is over"):
        world.write(plan.batch)
    assert (world.prepared(), world.decided(plan.batch.query)) == (NOTHING_LEFT, {4: None, 7: None})


def test_a_single_write_that_fails_after_its_decision_is_finished(world: World) -> None:
    plan = single(world)
    assert plan.batch is not None
    branches = world.write(plan.batch)
    with world.driver() as driver:
        driver.decide(plan.batch, branches)
    abort_write(plan, world.sessions)
    assert (world.everything(), world.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_a_named_write_finishes_the_version_before_it(world: World) -> None:
    """The driver of version 3 died between its commits, and version 3 is not written again."""
    options = world.options_of_write(txnAppId="orders", txnVersion="4")
    third, fourth = BatchName("app-orders", 3), BatchName("app-orders", 4)
    branches = world.write(third)
    with world.driver() as driver:
        driver.decide(third, branches)
    plan = plan_transaction(options, streaming=False, sessions=world.sessions)
    assert (plan.batch, plan.written) == (fourth, False)
    commit_write(plan, [WrittenMessages(2, 50, fourth, tuple(world.write(fourth)))], world.sessions)
    assert (world.everything(), world.prepared()) == ([["3/0", "4/0"]] * 2, NOTHING_LEFT)
    assert plan_transaction(options, streaming=False, sessions=world.sessions).written
    with pytest.raises(BatchSuperseded, match="txnVersion 2 of txnAppId orders is refused: txnVersion 4 of"):
        plan_transaction(
            world.options_of_write(txnAppId="orders", txnVersion="2"), streaming=False, sessions=world.sessions
        )


def test_a_write_that_can_be_repeated_is_not_decided_when_it_fails(world: World) -> None:
    plan = TransactionPlan(world.addresses, BatchName("app-orders", 3))
    assert plan.batch is not None
    world.write(plan.batch)
    abort_write(plan, world.sessions)
    world.coordinator.finish(plan.batch, world.write(plan.batch))
    assert (world.everything(), world.prepared()) == ([["3/0"]] * 2, NOTHING_LEFT)


def test_steps_that_were_posted_are_settled_in_any_order(world: World) -> None:
    with world.pool.lease(world.addresses[4]) as session:
        transactions = Transactions(session)
        asked = [transactions.post("DECIDED", None, unique=QUERY), transactions.post("RECOVER", None, unique=QUERY)]
        assert [transactions.settle(each) for each in reversed(asked)] == ["", ""]
        assert transactions.last_decided(QUERY) is None
        transactions.end_query(QUERY)
