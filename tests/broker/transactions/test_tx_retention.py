"""What transactions ask of retention, and what they refuse when the disk is nearly full."""

from __future__ import annotations

from collections.abc import Iterable

from metaq_broker.transactions.heuristics import Outcome
from tx_world import World, local, xid

from metaq.formats.frames import encode_frame

L1, X1, X2 = local(1), xid("b1"), xid("b2")
FULL = "disk is nearly full"


def test_nothing_is_looked_for_where_no_commit_is_under_way(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"open")
    world.prepare_with(X1, b"prepared")
    assert world.tx.looked_for_from("orders", 0) is None


def test_an_unfinished_commit_is_looked_for_from_where_its_partition_ended(world: World) -> None:
    world.store.put(("orders", 0), encode_frame(7, 0, b"before"))
    world.begin(L1)
    world.put(L1, b"m")
    world.store.hold = True
    answers: list[object] = []
    world.tx.commit(L1, True, "A", answers.append)
    world.settle()
    assert world.tx.looked_for_from("orders", 0) == 26
    assert world.tx.looked_for_from("orders", 1) is None
    world.tx.connection_lost("A")
    assert world.tx.looked_for_from("orders", 0) == 26
    world.store.release_held()
    assert world.tx.looked_for_from("orders", 0) is None


def test_a_decided_and_an_operators_commit_count_as_well(world: World) -> None:
    world.prepare_with(X1, b"decided")
    world.prepare_with(X2, b"by hand", partition=1)
    world.store.hold = True
    world.tx.decide("query", 1, [X1], lambda decision: None)
    world.tx.end_heuristically(X2, Outcome.COMMITTED, lambda refusal: None)
    world.settle()
    assert (world.tx.looked_for_from("orders", 0), world.tx.looked_for_from("orders", 1)) == (0, 0)
    world.store.release_held()
    assert (world.tx.looked_for_from("orders", 0), world.tx.looked_for_from("orders", 1)) == (None, None)


def test_a_commit_that_a_partition_refused_is_looked_for_until_a_restart_finishes_it(world: World) -> None:
    world.prepare_with(X1, b"m")
    world.store.broken.add(("orders", 0))
    world.commit(X1, False)
    assert world.tx.looked_for_from("orders", 0) == 0
    world.restart()
    assert world.tx.looked_for_from("orders", 0) is None
    assert world.bodies() == [b"m"]


def test_the_finished_notes_can_be_waited_for(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"m")
    world.commit(L1)
    told: list[object] = []
    world.tx.when_on_disk(told.append)
    assert told == []  # the note that L1 is finished waits for nobody, so nobody has synced it yet
    world.settle()
    assert told == [None]


def test_a_full_disk_promises_nothing_new_and_keeps_what_was_promised(world: World) -> None:
    asked: list[list[tuple[str, int]]] = []

    def room(places: Iterable[tuple[str, int]]) -> str | None:
        asked.append(sorted(places))
        return FULL

    world.prepare_with(X1, b"prepared")
    world.begin(X2)
    world.put(X2, b"open")
    world.begin(L1)
    world.put(L1, b"local", partition=1)
    world.tx._ending._room = room
    assert world.prepare(X2) == f"500 XAException:code=-3,msg={FULL}"
    assert world.commit(X2) == f"500 XAException:code=-3,msg={FULL}"
    assert world.commit(L1) == f"500 {FULL}"
    assert asked == [[("orders", 0)], [("orders", 0)], [("orders", 1)]]
    assert world.commit(X1, False) == "200"
    assert world.rollback(X2) == "200"
    world.tx._ending._room = lambda places: None
    assert world.commit(L1) == "200"
    assert (world.bodies(), world.bodies(partition=1)) == ([b"prepared"], [b"local"])


def test_empty_transactions_end_on_a_full_disk(world: World) -> None:
    world.tx._ending._room = lambda places: FULL
    for key in (X1, X2, L1):
        world.begin(key)
    assert (world.prepare(X1), world.commit(X2), world.commit(L1)) == ("200 3", "200", "200")
