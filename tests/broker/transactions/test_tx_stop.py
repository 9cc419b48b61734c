"""A broker that stops while a commit is on its way into the partitions."""

from __future__ import annotations

from tx_world import World, xid

X1, X2 = xid("b1"), xid("b2")


def test_a_partition_that_syncs_after_the_stop_disturbs_nobody(world: World) -> None:
    world.prepare_with(X1, b"one")
    world.store.hold = True
    answers: list[object] = []
    world.tx.commit(X1, False, None, answers.append)
    world.settle()
    world.tx.close()
    world.store.release_held()  # what the last sync of the logs does: the journal is closed by then
    assert answers == []
    world.start()
    assert world.bodies() == [b"one"]
    assert world.recover() == []


def test_branches_of_a_decision_that_are_left_at_the_stop_are_committed_by_the_next_start(world: World) -> None:
    world.prepare_with(X1, b"one")
    world.prepare_with(X2, b"two", partition=1)
    told: list[object] = []
    world.tx.decide("query", 1, [X1, X2], told.append)
    world.loop.run_one_job()  # the decision is durable, the first branch applied, the second one waits for its turn
    assert len(told) == 1
    world.tx.close()
    world.settle()
    world.start()
    assert (world.bodies(), world.bodies(partition=1)) == ([b"one"], [b"two"])
