"""An exactly-once write never ends with success while rows are missing, whoever took them away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from exactly_once_harness import QUERY, TOPIC, Harness, decide
from fix_broker import StartBroker, wait_until

from metaq.backends.metaq.transactions import DecidedBatch
from metaq.model import Partition, TopicPartition, Xid
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Contents, Count
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan, plan_transaction
from metaq_spark.errors import BatchConflict, BatchSuperseded, ExactlyOnceError

pytestmark = pytest.mark.process

FIRST = BatchName(QUERY, 0)
ROWS = Contents({TopicPartition(TOPIC, Partition(number, 0)): Count(1, 0xABC) for number in (4, 7)}, "run-1")


@pytest.fixture
def harness(start_broker: StartBroker, tmp_path: Path) -> Iterator[Harness]:
    with closing(Harness(start_broker, tmp_path)) as made:
        yield made


def decided_only(harness: Harness, batch: BatchName = FIRST) -> tuple[list[Xid], DecidedBatch]:
    """The driver dies behind its decision."""
    branches = harness.write(batch)
    with harness.driver() as driver:
        return branches, decide(driver, batch, branches, ROWS)


# ---- branches that are gone


@pytest.mark.parametrize("broker_id", [4, 7])
def test_branches_that_another_client_rolled_back_before_the_decision(harness: Harness, broker_id: int) -> None:
    branches = harness.write(FIRST)
    assert harness.roll_back_all(broker_id) == 1
    said = rf"broker {broker_id} does not have all branches of batch 0 .*Nothing of the batch was written"
    with pytest.raises(ExactlyOnceError, match=said):
        harness.coordinator.finish(FIRST, branches, ROWS)
    assert (harness.everything(), harness.decided()) == ([[], []], {4: None, 7: None})
    harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS)
    assert (harness.everything(), harness.prepared()) == ([["0/0"], ["0/0"]], {4: 0, 7: 0})


def test_branches_of_a_single_broker_that_another_client_rolled_back(harness: Harness) -> None:
    """With one broker nothing is asked before the decision; the decision itself is refused."""
    task = harness.task(FIRST)
    harness.put(task, "4-0", "a")
    branches = task.finish()
    harness.roll_back_all(4)
    with pytest.raises(ExactlyOnceError, match=r"broker 4 does not have all branches .*Nothing of the batch was"):
        Coordinator({4: harness.addresses[4]}, harness.sessions).finish(FIRST, branches, ROWS)
    assert harness.decided() == {4: None, 7: None}


@pytest.mark.parametrize("taken_by", ["another client", "a lost journal"])
def test_branches_that_are_gone_behind_the_decision(harness: Harness, taken_by: str) -> None:
    branches, _ = decided_only(harness)
    wait_until(lambda: harness.everything() == [["0/0"], []], "the decision commits the branches of its broker")
    if taken_by == "another client":
        harness.roll_back_all(7)
    else:
        harness.lose_journal(7)
    again = harness.write(FIRST)
    said = rf"batch 0 .* was decided, but broker 7 does not know 1 of its branches .*{TOPIC}/7-0 \(1 rows\)\. .*accept"
    for _ in range(2):
        with pytest.raises(ExactlyOnceError, match=said):
            harness.coordinator.finish(FIRST, again, ROWS)
    harness.end_by_hand(next(key for key in branches if b".7." in key.branch), "accept", broker_id=7)
    harness.coordinator.finish(FIRST, again, ROWS)
    assert (harness.everything(), harness.prepared()) == ([["0/0"], []], {4: 0, 7: 1})  # listed until the next batch
    harness.coordinator.finish(BatchName(QUERY, 1), harness.write(BatchName(QUERY, 1)), ROWS)
    assert (harness.everything(), harness.prepared()) == ([["0/0", "1/0"], ["1/0"]], {4: 0, 7: 0})


def test_a_journal_that_is_lost_behind_the_commit(harness: Harness) -> None:
    """The rows are there, but nobody can know it: the repetition fails instead of guessing."""
    harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS)
    harness.lose_journal(7)
    with pytest.raises(ExactlyOnceError, match="was decided, but broker 7 does not know 1 of its branches"):
        harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS)


def test_a_decider_that_lost_its_journal_is_replaced_by_who_knows(harness: Harness) -> None:
    branches = harness.write(FIRST)
    harness.coordinator.finish(FIRST, branches, ROWS)
    harness.lose_journal(4)
    assert harness.decided() == {4: None, 7: 0}
    with pytest.raises(ExactlyOnceError, match="was decided, but broker 4 does not know 1 of its branches"):
        harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS)
    assert harness.everything() == [["0/0"], ["0/0"]]


@pytest.mark.parametrize("restarted", [(), (4,), (7,), (4, 7)])
def test_committed_branches_are_remembered_until_later_decisions(harness: Harness, restarted: tuple[int, ...]) -> None:
    branches = harness.write(FIRST)
    harness.coordinator.finish(FIRST, branches, ROWS)
    harness.restart(*restarted) if restarted else None
    for _ in range(2):
        assert list(harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS).branches) == branches
    assert (harness.everything(), harness.prepared()) == ([["0/0"], ["0/0"]], {4: 0, 7: 0})


# ---- batches that are repeated with other rows


def commit(harness: Harness, number: int, topic_rows: dict[str, str], *, run: str, accept: bool = False) -> None:
    """A micro-batch of one task, as the driver of a run commits it: a payload for each partition."""
    batch = BatchName(QUERY, number)
    task = harness.task(batch)
    counts = {}
    for place, payload in topic_rows.items():
        harness.put(task, place, payload)
        counts[TopicPartition(TOPIC, Partition.parse(place))] = Count(1, hash(payload) & 0xFFFF)
    message = WrittenMessages(len(counts), 0, batch, task.finish(), counts, run)
    plan = TransactionPlan(harness.addresses, accept_repeated=accept)
    commit_batch(plan, [message], number, harness.sessions)


def test_a_checkpoint_one_batch_behind(harness: Harness) -> None:
    commit(harness, 0, {"4-0": "a"}, run="run-1")
    commit(harness, 1, {"4-0": "b"}, run="run-1")
    said = r"batch 1 .* was written before by run run-1, with 1 rows for topic t; now it has 1 rows .*not the same"
    with pytest.raises(BatchConflict, match=said):
        commit(harness, 1, {"4-0": "c"}, run="run-2")
    with pytest.raises(BatchConflict, match=r"now it has 2 rows for topic t.* restore the newest one, or begin"):
        commit(harness, 1, {"4-0": "b", "7-0": "c"}, run="run-2")
    assert (harness.readable("4-0"), harness.prepared()) == (["a", "b"], {4: 0, 7: 0})


def test_two_batches_behind(harness: Harness) -> None:
    for number, payload in enumerate("abc"):
        commit(harness, number, {"4-0": payload}, run="run-1")
    with pytest.raises(BatchSuperseded, match="go on from the newest checkpoint or begin with a new one"):
        commit(harness, 1, {"4-0": "x"}, run="run-2")
    assert (harness.readable("4-0"), harness.prepared()) == (["a", "b", "c"], {4: 0, 7: 0})


def test_the_same_rows_in_other_partitions_are_the_same_batch(harness: Harness) -> None:
    commit(harness, 0, {"4-0": "a", "7-0": "b"}, run="run-1")
    commit(harness, 0, {"4-0": "b", "7-1": "a"}, run="run-2")
    assert (harness.everything(), harness.prepared()) == ([["a"], ["b"]], {4: 0, 7: 0})


def test_rows_that_differ_may_be_accepted(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    commit(harness, 0, {"4-0": "0.17"}, run="run-1")
    commit(harness, 0, {"4-0": "0.83"}, run="run-2", accept=True)
    assert (harness.everything(), harness.prepared()) == ([["0.17"], []], {4: 0, 7: 0})
    assert "not the same messages" in caplog.text


def test_a_copied_checkpoint_with_another_topic(harness: Harness) -> None:
    other = Contents({TopicPartition("u", Partition(4, 0)): Count(1, 0xABC)}, "run-2")
    harness.coordinator.finish(FIRST, harness.write(FIRST), ROWS)
    said = "with 2 rows for topic t; now it has 1 rows for topic u, .*The checkpoint was copied .*checkpoint of its own"
    with pytest.raises(BatchConflict, match=said):
        harness.coordinator.finish(FIRST, harness.write(FIRST), other)
    named = BatchName("app-orders", 1)
    harness.coordinator.finish(named, harness.write(named), ROWS)
    with pytest.raises(BatchConflict, match="give each target a txnAppId of its own"):
        harness.coordinator.finish(named, harness.write(named), other)


# ---- batches that were decided without rows


def test_rows_under_the_number_of_a_batch_that_was_decided_without_rows(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    commit(harness, 0, {}, run="run-1")
    commit(harness, 0, {}, run="run-2")
    said = r"batch 0 .* was written before by run run-1, with no rows; now it has 1 rows .*run it once as it was"
    for _ in range(2):
        with pytest.raises(BatchConflict, match=said):
            commit(harness, 0, {"4-0": "a"}, run="run-2")
    assert (harness.everything(), harness.prepared()) == ([[], []], {4: 0, 7: 0})
    commit(harness, 0, {"4-0": "a"}, run="run-3", accept=True)
    assert (harness.everything(), harness.prepared()) == ([[], []], {4: 0, 7: 0})
    assert "with no rows" in caplog.text


def test_no_rows_under_the_number_of_a_batch_that_was_decided_with_rows(harness: Harness) -> None:
    commit(harness, 0, {"4-0": "a"}, run="run-1")
    with pytest.raises(BatchConflict, match=r"with 1 rows for topic t; now it has no rows"):
        commit(harness, 0, {}, run="run-2")
    assert harness.everything() == [["a"], []]


def test_a_named_write_under_the_version_of_one_without_rows(harness: Harness) -> None:
    options = harness.options_of_write(txnAppId="daily", txnVersion="1")
    for rows, refused in ((0, False), (0, False), (1, True)):
        plan = plan_transaction(options, streaming=False, sessions=harness.sessions)
        counts = {TopicPartition(TOPIC, Partition(4, 0)): Count(rows, 0xABC)} if rows else {}
        message = WrittenMessages(rows, 0, plan.batch, (), counts)
        with pytest.raises(BatchConflict, match="a new txnVersion") if refused else nullcontext():
            commit_batch(plan, [message], None, harness.sessions)
