"""Exactly once against two broker processes: every way in which a task, a driver or a broker may die, or come late."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from exactly_once_harness import QUERY, Harness, decide
from fix_broker import StartBroker, wait_until
from recorded import Recorded

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.transactions import DecidedBatch, Posted, TransactionSteps
from metaq.errors import MetaqError, TransactionError
from metaq.net.transport import TCP, Timeouts
from metaq.protocols.text.commands import TransactionCommand
from metaq_spark.backends.metaq.exactly_once.branches import BranchLimits
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, abort_write, commit_batch
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, branch_name, single_write
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan, plan_transaction
from metaq_spark.errors import BatchSuperseded, BranchLost, ExactlyOnceError, ParticipantMissing

pytestmark = pytest.mark.process

NOTHING_LEFT = {4: 0, 7: 0}
NOTHING = DecidedBatch((), "")


def batch(number: int) -> BatchName:
    return BatchName(QUERY, number)


@pytest.fixture
def harness(start_broker: StartBroker, tmp_path: Path) -> Iterator[Harness]:
    with closing(Harness(start_broker, tmp_path)) as made:
        yield made


def test_a_batch_of_two_tasks_on_two_brokers(harness: Harness) -> None:
    branches = [*harness.write(batch(0), 0), *harness.write(batch(0), 1)]
    assert (len(branches), harness.everything(), harness.prepared()) == (4, [[], []], {4: 2, 7: 2})
    assert harness.coordinator.finish(batch(0), branches).branches == tuple(branches)
    assert (harness.everything(), harness.prepared()) == ([["0/0", "0/1"]] * 2, NOTHING_LEFT)
    assert harness.decided() == {4: 0, 7: 0}
    harness.coordinator.finish(batch(0), branches)
    harness.coordinator.finish(batch(1), harness.write(batch(1)))
    assert harness.everything() == [["0/0", "0/1", "1/0"]] * 2


@pytest.mark.parametrize("restarted", ["no broker", "both brokers"])
def test_a_driver_that_dies_between_any_two_steps(harness: Harness, restarted: str) -> None:
    """Each batch is written by a first driver, which stops after so many steps, and by a second, which does not."""
    for number, steps in enumerate(("", "decide", "decide commit", "decide commit clean_up")):
        first = harness.write(batch(number))
        with harness.driver() as driver:
            decided = decide(driver, batch(number), first) if "decide" in steps else NOTHING
            if "commit" in steps:
                prepared = driver.commit(batch(number), decided)
            if "clean_up" in steps:
                driver.clean_up(batch(number), decided.branches, prepared)
        if restarted == "both brokers":
            harness.restart()
        second = harness.write(batch(number))
        counting = harness.coordinator.finish(batch(number), second)
        assert list(counting.branches) == (first if steps else second)
        assert (harness.everything(), harness.prepared()) == ([[f"{n}/0" for n in range(number + 1)]] * 2, NOTHING_LEFT)


def test_a_driver_that_dies_after_the_first_of_two_commits(harness: Harness) -> None:
    first = harness.write(batch(0))
    with harness.driver() as driver:
        decided = decide(driver, batch(0), first)
        on_four = tuple(key for key in decided.branches if b".4." in key.branch)
        driver.commit(batch(0), decided._replace(branches=on_four))
    assert harness.everything() == [["0/0"], []]
    harness.restart(7)
    harness.coordinator.finish(batch(0), harness.write(batch(0)))
    assert (harness.everything(), harness.prepared()) == ([["0/0"], ["0/0"]], NOTHING_LEFT)


def test_a_commit_whose_messages_cannot_be_stored_yet_is_repeated(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, left = TransactionSteps.settle, [1, 2]
    text = "transaction 'K' is committed, and readable once the broker can store its messages: No space left on device"

    def stalled(self: TransactionSteps, posted: Posted) -> str:
        answer = settle(self, posted)
        if left and isinstance(posted.command, TransactionCommand) and posted.command.type == "COMMIT_TWO_PHASE":
            left.pop()
            raise TransactionError("b:1", "transaction COMMIT_TWO_PHASE of K", 500, text, -3)
        return answer

    monkeypatch.setattr(TransactionSteps, "settle", stalled)
    harness.coordinator.finish(batch(0), harness.write(batch(0)))
    assert (left, harness.everything(), harness.prepared()) == ([], [["0/0"]] * 2, NOTHING_LEFT)


def test_a_zombie_is_refused_and_nothing_of_it_stays(harness: Harness) -> None:
    zombie = harness.write(batch(0), 9)
    harness.coordinator.finish(batch(0), harness.write(batch(0)))
    harness.coordinator.finish(batch(1), harness.write(batch(1)))
    zombie += harness.write(batch(0), 9)
    harness.write(batch(0), 10)
    with pytest.raises(BatchSuperseded, match=r"batch 0 of query .* batch 1 has been decided\. Another run went on"):
        harness.coordinator.finish(batch(0), zombie)
    assert (harness.everything(), harness.prepared()) == ([["0/0", "1/0"]] * 2, NOTHING_LEFT)


def test_two_drivers_that_finish_the_same_batch_at_once(harness: Harness) -> None:
    mine, yours = harness.write(batch(0)), harness.write(batch(0))
    with harness.driver() as one, harness.driver() as other:
        mine_decided = decide(one, batch(0), mine)
        assert list(mine_decided.branches) == mine
        assert decide(other, batch(0), yours) == mine_decided
        for driver in (other, one):
            prepared = driver.commit(batch(0), mine_decided)
            driver.clean_up(batch(0), mine, prepared)
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_attempts_that_do_not_count_are_rolled_back(harness: Harness) -> None:
    lost, counting = harness.write(batch(0)), harness.write(batch(0))
    harness.coordinator.finish(batch(0), counting)
    late = harness.write(batch(0))  # a speculative one: it hears of the decision, and cleans up behind itself
    assert (len(lost), late, harness.prepared()) == (2, [], NOTHING_LEFT)
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_nothing_of_a_later_batch_or_of_somebody_else_is_touched(harness: Harness) -> None:
    later, other = harness.write(batch(1)), harness.write(BatchName("another-query", 0))
    harness.coordinator.finish(batch(0), [])
    assert harness.prepared() == {4: 2, 7: 2}
    harness.coordinator.finish(batch(1), later)
    harness.coordinator.finish(BatchName("another-query", 0), other)
    assert harness.everything() == [["1/0", "0/0"]] * 2


# ---- operators


@pytest.mark.parametrize(("step", "readable"), [("commit", ["1/0"]), ("rollback", [])])
def test_a_branch_that_an_operator_ended_between_decision_and_commit(
    harness: Harness, step: str, readable: list[str]
) -> None:
    """Broker 7 decided last, so that broker 4 learns of the decision by its commits only."""
    for_seven = {7: harness.addresses[7]}
    Coordinator(for_seven, harness.sessions).finish(batch(0), [])
    branches = harness.write(batch(1))
    with harness.driver() as driver:
        assert list(decide(driver, batch(1), branches).branches) == branches
    harness.end_by_hand(branches[0], step)
    if step == "rollback":
        with pytest.raises(ExactlyOnceError, match="but was completed manually on broker 4, so its"):
            harness.coordinator.finish(batch(1), branches)
        harness.end_by_hand(branches[0], "accept")
    harness.coordinator.finish(batch(1), branches)
    assert [harness.readable("4-0"), harness.readable("7-0")] == [readable, ["1/0"]]


# ---- tasks


def test_a_task_that_fails_takes_its_branches_back(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    harness.put(task, "4-0", "prepared")
    open_only = harness.task(batch(0))
    harness.put(open_only, "4-0", "open")
    for each in (task, open_only):
        each.give_up(ValueError("the rows cannot be computed"))
    assert harness.prepared() == NOTHING_LEFT


def test_a_large_task_has_many_branches_in_order(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=200))
    payloads = [f"{n:03}" for n in range(200)]
    for n in range(0, 200, 5):
        for partition in ("4-0", "4-1", "7-0"):
            harness.put(task, partition, *payloads[n : n + 5])
    branches = list(task.finish())
    names = [name for key in branches if (name := branch_name(key))]
    assert [name.sequence for name in names if name.broker_id == 7] == list(range(20))
    assert harness.prepared() == {4: 40, 7: 20}
    harness.restart(7)
    harness.coordinator.finish(batch(0), branches)
    assert [harness.readable(partition) for partition in ("4-0", "4-1", "7-0")] == [payloads] * 3


def test_more_branches_than_steps_under_way_at_once(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    payloads = [f"{n}" for n in range(300)]
    for payload in payloads:
        harness.put(task, "7-0", payload)
    orphans = harness.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=1))
    for payload in payloads:
        harness.put(orphans, "7-1", payload)
    orphans.finish()
    harness.coordinator.finish(batch(0), task.finish())
    assert (harness.readable("7-0"), harness.readable("7-1"), harness.prepared()) == (payloads, [], NOTHING_LEFT)


def test_an_old_branch_is_prepared_with_the_next_block(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, age_s_max=0.0))
    for payload in "abc":
        harness.put(task, "4-0", payload)
    branches = task.finish()
    assert len(branches) == 3
    harness.coordinator.finish(batch(0), branches)
    assert harness.readable("4-0") == ["a", "b", "c"]


def test_an_old_branch_is_prepared_while_the_task_waits_for_rows(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, age_s_max=0.01))
    harness.put(task, "4-0", "a")
    harness.put(task, "7-0", "b")
    wait_until(lambda: harness.prepared() == {4: 1, 7: 1}, "both branches are prepared without another block")
    harness.put(task, "4-0", "c")
    harness.coordinator.finish(batch(0), task.finish())
    assert harness.everything() == [["a", "c"], ["b"]]


def test_a_branch_that_the_broker_gave_up(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(timeout_s=1, age_s_max=999.0))
    harness.put(task, "4-0", "a")
    opened = task._brokers[4]._open
    assert opened is not None
    opened.writer.flush()
    wait_until(lambda: harness.refusal_of_commit(4, opened.xid) == -4, "the broker rolls the branch back")
    with pytest.raises(BranchLost, match=r"rolled back what a task had written so far.* raise maxTxTimeoutInSeconds"):
        task.finish()
    task.give_up(ValueError("x"))


@pytest.mark.parametrize("moment", ["before the next block", "before the end", "before the decision is asked for"])
def test_a_task_begins_again_what_a_broker_that_restarts_rolls_back(harness: Harness, moment: str) -> None:
    """Its blocks are put into a new branch; prepared ones are kept by the broker."""
    task = harness.task(batch(0), limits=BranchLimits(60, 15.0, bytes_max=100))
    payloads = [f"{number:020}" for number in range(20)]
    for number, payload in enumerate(payloads):
        harness.put(task, "4-0", payload)
        harness.put(task, "7-0", payload)
        if number == 10 and moment == "before the next block":
            harness.restart(4)
    if moment == "before the decision is asked for":
        for broker in task._brokers.values():
            broker.prepare()
            broker.settle()
    if moment != "before the next block":
        harness.restart(4)
    branches = task.finish()
    assert len(branches) == len(set(branches)) > 10
    harness.coordinator.finish(batch(0), branches)
    assert (harness.everything(), harness.prepared()) == ([payloads] * 2, NOTHING_LEFT)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_prepare_whose_answer_is_lost(harness: Harness, is_there: bool) -> None:
    """It was carried out, or not: the blocks are put into a new branch, and the old one is rolled back."""
    task = harness.task(batch(0))
    harness.put(task, "4-0", "a")
    harness.put(task, "7-0", "a")
    broker = task._brokers[4]
    broker.prepare()
    (old,) = broker.prepared
    if is_there:
        wait_until(lambda: harness.prepared()[4] == 1, "the branch is prepared")
        broker._session.close()
    else:
        harness.brokers[4].kill()
        harness.restart(4)
    harness.put(task, "4-0", "b")
    branches = task.finish()
    assert old not in branches
    harness.coordinator.finish(batch(0), branches)
    assert (harness.everything(), harness.prepared()) == ([["a", "b"], ["a"]], NOTHING_LEFT)


def test_a_broker_that_does_not_come_back_fails_the_task(harness: Harness) -> None:
    task = harness.task(batch(0))
    harness.put(task, "4-0", "a")
    harness.brokers[4].kill()
    with pytest.raises(MetaqError) as failure:
        task.finish()
    assert failure.value.retryable
    task.give_up(failure.value)
    harness.restart(4)
    harness.coordinator.finish(batch(0), harness.write(batch(0)))
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_a_broker_that_restarts_while_a_task_has_prepared_branches(harness: Harness) -> None:
    task = harness.task(batch(0), limits=BranchLimits(60, age_s_max=0.01))
    harness.put(task, "4-0", "a")
    wait_until(lambda: harness.prepared()[4] == 1, "the branch is prepared without another block")
    with task._lock:
        task._brokers[4].settle()
    harness.restart(4)
    harness.put(task, "4-0", "b")
    harness.coordinator.finish(batch(0), task.finish())
    assert harness.readable("4-0") == ["a", "b"]


# ---- which brokers are named


def test_a_broker_that_is_added_does_not_open_the_past_again(harness: Harness) -> None:
    first = harness.write(batch(0))
    with harness.driver() as driver:
        decide(driver, batch(0), first)
    harness.add(1)
    assert list(harness.coordinator.finish(batch(0), harness.write(batch(0))).branches) == first
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, {1: 0} | NOTHING_LEFT)
    assert harness.decided() == {4: 0, 7: 0, 1: 0}


def test_a_broker_that_is_named_no_more_and_has_messages_of_the_batch(harness: Harness) -> None:
    first = harness.write(batch(0))
    with harness.driver() as driver:
        decide(driver, batch(0), first)
    only = {4: harness.addresses[4]}
    words = r"messages on broker 7, which is none of the brokers found by the option brokers \(127.0.0.1:\d+, "
    with pytest.raises(ParticipantMissing, match=words) as missing:
        Coordinator(only, harness.sessions).finish(batch(0), first)
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)
    assert harness.readable("7-0") == []
    harness.coordinator.finish(batch(0), first)
    assert harness.everything() == [["0/0"]] * 2


# ---- single writes


def single(harness: Harness) -> TransactionPlan:
    return TransactionPlan(harness.addresses, single_write(), single=True)


def test_a_single_write_leaves_no_decision(harness: Harness) -> None:
    plan = single(harness)
    assert plan.batch is not None
    branches = harness.write(plan.batch)
    harness.write(plan.batch)
    commit_batch(plan, [WrittenMessages(2, 50, plan.batch, tuple(branches))], None, harness.sessions)
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)
    assert harness.decided(plan.batch.query) == {4: None, 7: None}


def test_a_single_write_that_fails_leaves_nothing(harness: Harness) -> None:
    plan = single(harness)
    assert plan.batch is not None
    harness.write(plan.batch)
    late = harness.task(plan.batch, 1)
    harness.put(late, "4-0", "late")
    abort_write(plan, harness.sessions)
    assert (harness.everything(), harness.prepared()) == ([[], []], NOTHING_LEFT)
    with pytest.raises(TransactionError, match="is over"):
        late.finish()
    late.give_up(ValueError("x"))
    with pytest.raises(TransactionError, match="is over"):
        harness.write(plan.batch)
    assert (harness.prepared(), harness.decided(plan.batch.query)) == (NOTHING_LEFT, {4: None, 7: None})


def test_a_single_write_that_fails_after_its_decision_is_finished(harness: Harness) -> None:
    plan = single(harness)
    assert plan.batch is not None
    branches = harness.write(plan.batch)
    with harness.driver() as driver:
        decide(driver, plan.batch, branches)
    abort_write(plan, harness.sessions)
    assert (harness.everything(), harness.prepared()) == ([["0/0"]] * 2, NOTHING_LEFT)


def test_a_named_write_finishes_the_version_before_it(harness: Harness) -> None:
    """The driver of version 3 died between its commits, and version 3 is not written again."""
    options = harness.options_of_write(txnAppId="orders", txnVersion="4")
    third, fourth = BatchName("app-orders", 3), BatchName("app-orders", 4)
    branches = harness.write(third)
    with harness.driver() as driver:
        decide(driver, third, branches)
    plan = plan_transaction(options, streaming=False, sessions=harness.sessions)
    assert (plan.batch, plan.written) == (fourth, False)
    commit_batch(plan, [WrittenMessages(2, 50, fourth, tuple(harness.write(fourth)))], None, harness.sessions)
    assert (harness.everything(), harness.prepared()) == ([["3/0", "4/0"]] * 2, NOTHING_LEFT)
    assert plan_transaction(options, streaming=False, sessions=harness.sessions).written
    with pytest.raises(BatchSuperseded, match="txnVersion 2 of txnAppId orders is refused: txnVersion 4 of"):
        plan_transaction(
            harness.options_of_write(txnAppId="orders", txnVersion="2"), streaming=False, sessions=harness.sessions
        )


def test_a_write_that_can_be_repeated_is_not_decided_when_it_fails(harness: Harness) -> None:
    plan = TransactionPlan(harness.addresses, BatchName("app-orders", 3))
    assert plan.batch is not None
    harness.write(plan.batch)
    abort_write(plan, harness.sessions)
    harness.coordinator.finish(plan.batch, harness.write(plan.batch))
    assert (harness.everything(), harness.prepared()) == ([["3/0"]] * 2, NOTHING_LEFT)


def test_a_commit_waits_for_each_broker_three_times_at_most(harness: Harness) -> None:
    """For what is known; on one broker for the decision; and for the decision there, the commits and what is left."""
    harness.pool.close()
    harness.pool = SessionPool(Timeouts(5.0, 10.0), wire := Recorded(TCP))
    harness.coordinator.finish(batch(0), harness.write(batch(0)))
    lost, branches = harness.write(batch(1)), harness.write(batch(1))
    wire.forget()
    harness.coordinator.finish(batch(1), branches)
    assert (wire.connections, wire.round_trips) == (0, 2 + 1 + 2 + 2)  # and two rollbacks
    assert (len(lost), harness.prepared()) == (2, NOTHING_LEFT)
    alone, task = {4: harness.addresses[4]}, harness.task(batch(2))
    harness.put(task, "4-0", "2/0")
    branches = list(task.finish())
    wire.forget()
    Coordinator(alone, harness.sessions).finish(batch(2), branches)
    assert wire.round_trips == 3
    assert harness.everything() == [["0/0", "1/0", "2/0"], ["0/0", "1/0"]]


def test_steps_that_were_posted_are_settled_in_any_order(harness: Harness) -> None:
    with harness.pool.lease(harness.addresses[4]) as session:
        transactions = TransactionSteps(session)
        asked = [transactions.post("DECIDED", None, unique=QUERY), transactions.post("RECOVER", None, unique=QUERY)]
        assert [transactions.settle(each) for each in reversed(asked)] == ["", ""]
        assert transactions.last_decided(QUERY) is None
        transactions.end_query(QUERY)
