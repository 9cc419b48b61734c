"""An exactly-once write never ends with success while rows are missing, whoever took them away."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactly_once_world import QUERY, TOPIC, World
from fix_broker import StartBroker, wait_until

from metaq.backends.metaq.transactions import DecidedBatch
from metaq.model import Partition, TopicPartition, Xid
from metaq_spark.errors import BatchConflict, BatchSuperseded, ExactlyOnceError
from metaq_spark.exactly_once.contents import Contents, Count
from metaq_spark.exactly_once.coordinator import Coordinator
from metaq_spark.exactly_once.identity import BatchName
from metaq_spark.exactly_once.plan import TransactionPlan
from metaq_spark.sink.commit import commit_stream
from metaq_spark.sink.task import WrittenMessages

pytestmark = pytest.mark.process

FIRST = BatchName(QUERY, 0)
ROWS = Contents({TopicPartition(TOPIC, Partition(number, 0)): Count(1, 0xABC) for number in (4, 7)}, "run-1")


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> World:
    return World(start_broker, tmp_path)


def decided_only(world: World, batch: BatchName = FIRST) -> tuple[list[Xid], DecidedBatch]:
    """The driver dies behind its decision."""
    branches = world.write(batch)
    with world.driver() as driver:
        return branches, driver.decide(batch, branches, ROWS)


# ---- branches that are gone


@pytest.mark.parametrize("broker_id", [4, 7])
def test_branches_that_another_client_rolled_back_before_the_decision(world: World, broker_id: int) -> None:
    branches = world.write(FIRST)
    assert world.roll_back_all(broker_id) == 1
    said = rf"broker {broker_id} does not have all branches of batch 0 .*Nothing of the batch was written"
    with pytest.raises(ExactlyOnceError, match=said):
        world.coordinator.finish(FIRST, branches, ROWS)
    assert (world.everything(), world.decided()) == ([[], []], {4: None, 7: None})
    world.coordinator.finish(FIRST, world.write(FIRST), ROWS)
    assert (world.everything(), world.prepared()) == ([["0/0"], ["0/0"]], {4: 0, 7: 0})


def test_branches_of_a_single_broker_that_another_client_rolled_back(world: World) -> None:
    """With one broker nothing is asked before the decision; the decision itself is refused."""
    task = world.task(FIRST)
    world.put(task, "4-0", "a")
    branches = task.finish()
    world.roll_back_all(4)
    with pytest.raises(ExactlyOnceError, match=r"broker 4 does not have all branches .*Nothing of the batch was"):
        Coordinator({4: world.addresses[4]}, world.sessions).finish(FIRST, branches, ROWS)
    assert world.decided() == {4: None, 7: None}


@pytest.mark.parametrize("taken_by", ["another client", "a lost journal"])
def test_branches_that_are_gone_behind_the_decision(world: World, taken_by: str) -> None:
    branches, _ = decided_only(world)
    wait_until(lambda: world.everything() == [["0/0"], []], "the decision commits the branches of its broker")
    if taken_by == "another client":
        world.roll_back_all(7)
    else:
        world.lose_journal(7)
    again = world.write(FIRST)
    said = rf"batch 0 .* was decided, but broker 7 does not know 1 of its branches .*{TOPIC}/7-0 \(1 rows\)\. .*accept"
    for _ in range(2):
        with pytest.raises(ExactlyOnceError, match=said):
            world.coordinator.finish(FIRST, again, ROWS)
    world.end_by_hand(next(key for key in branches if b".7." in key.branch), "accept", broker_id=7)
    world.coordinator.finish(FIRST, again, ROWS)
    assert (world.everything(), world.prepared()) == ([["0/0"], []], {4: 0, 7: 1})  # listed until the next batch
    world.coordinator.finish(BatchName(QUERY, 1), world.write(BatchName(QUERY, 1)), ROWS)
    assert (world.everything(), world.prepared()) == ([["0/0", "1/0"], ["1/0"]], {4: 0, 7: 0})


def test_a_journal_that_is_lost_behind_the_commit(world: World) -> None:
    """The rows are there, but nobody can know it: the repetition fails instead of guessing."""
    world.coordinator.finish(FIRST, world.write(FIRST), ROWS)
    world.lose_journal(7)
    with pytest.raises(ExactlyOnceError, match="was decided, but broker 7 does not know 1 of its branches"):
        world.coordinator.finish(FIRST, world.write(FIRST), ROWS)


def test_a_decider_that_lost_its_journal_is_replaced_by_who_knows(world: World) -> None:
    branches = world.write(FIRST)
    world.coordinator.finish(FIRST, branches, ROWS)
    world.lose_journal(4)
    assert world.decided() == {4: None, 7: 0}
    with pytest.raises(ExactlyOnceError, match="was decided, but broker 4 does not know 1 of its branches"):
        world.coordinator.finish(FIRST, world.write(FIRST), ROWS)
    assert world.everything() == [["0/0"], ["0/0"]]


@pytest.mark.parametrize("restarted", [(), (4,), (7,), (4, 7)])
def test_committed_branches_are_remembered_until_later_decisions(world: World, restarted: tuple[int, ...]) -> None:
    branches = world.write(FIRST)
    world.coordinator.finish(FIRST, branches, ROWS)
    world.restart(*restarted) if restarted else None
    for _ in range(2):
        assert list(world.coordinator.finish(FIRST, world.write(FIRST), ROWS).branches) == branches
    assert (world.everything(), world.prepared()) == ([["0/0"], ["0/0"]], {4: 0, 7: 0})


# ---- batches that are repeated with other rows


def commit(world: World, number: int, topic_rows: dict[str, str], *, run: str, accept: bool = False) -> None:
    """A micro-batch of one task, as the driver of a run commits it: a payload for each partition."""
    batch = BatchName(QUERY, number)
    task = world.task(batch)
    counts = {}
    for place, payload in topic_rows.items():
        world.put(task, place, payload)
        counts[TopicPartition(TOPIC, Partition.parse(place))] = Count(1, hash(payload) & 0xFFFF)
    message = WrittenMessages(len(counts), 0, batch, task.finish(), counts, run)
    plan = TransactionPlan(world.addresses, accept_repeated=accept)
    commit_stream(plan, [message], number, world.sessions)


def test_a_checkpoint_one_batch_behind(world: World) -> None:
    commit(world, 0, {"4-0": "a"}, run="run-1")
    commit(world, 1, {"4-0": "b"}, run="run-1")
    said = r"batch 1 .* was written before by run run-1, with 1 rows for topic t; now it has 1 rows .*not the same"
    with pytest.raises(BatchConflict, match=said):
        commit(world, 1, {"4-0": "c"}, run="run-2")
    with pytest.raises(BatchConflict, match=r"now it has 2 rows for topic t.* restore the newest one, or begin"):
        commit(world, 1, {"4-0": "b", "7-0": "c"}, run="run-2")
    assert (world.readable("4-0"), world.prepared()) == (["a", "b"], {4: 0, 7: 0})


def test_two_batches_behind(world: World) -> None:
    for number, payload in enumerate("abc"):
        commit(world, number, {"4-0": payload}, run="run-1")
    with pytest.raises(BatchSuperseded, match="go on from the newest checkpoint or begin with a new one"):
        commit(world, 1, {"4-0": "x"}, run="run-2")
    assert (world.readable("4-0"), world.prepared()) == (["a", "b", "c"], {4: 0, 7: 0})


def test_the_same_rows_in_other_partitions_are_the_same_batch(world: World) -> None:
    commit(world, 0, {"4-0": "a", "7-0": "b"}, run="run-1")
    commit(world, 0, {"4-0": "b", "7-1": "a"}, run="run-2")
    assert (world.everything(), world.prepared()) == ([["a"], ["b"]], {4: 0, 7: 0})


def test_rows_that_differ_may_be_accepted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    commit(world, 0, {"4-0": "0.17"}, run="run-1")
    commit(world, 0, {"4-0": "0.83"}, run="run-2", accept=True)
    assert (world.everything(), world.prepared()) == ([["0.17"], []], {4: 0, 7: 0})
    assert "not the same messages" in caplog.text


def test_a_copied_checkpoint_with_another_topic(world: World) -> None:
    other = Contents({TopicPartition("u", Partition(4, 0)): Count(1, 0xABC)}, "run-2")
    world.coordinator.finish(FIRST, world.write(FIRST), ROWS)
    said = "with 2 rows for topic t; now it has 1 rows for topic u, .*The checkpoint was copied .*checkpoint of its own"
    with pytest.raises(BatchConflict, match=said):
        world.coordinator.finish(FIRST, world.write(FIRST), other)
    named = BatchName("app-orders", 1)
    world.coordinator.finish(named, world.write(named), ROWS)
    with pytest.raises(BatchConflict, match="give each target a txnAppId of its own"):
        world.coordinator.finish(named, world.write(named), other)
