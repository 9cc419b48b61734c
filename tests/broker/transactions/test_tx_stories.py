"""What a transaction is for its clients: visibility, order, ownership, timeouts, limits, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions.heuristics import Outcome
from metaq_broker.transactions.seams import Durability, TransactionLimits
from tx_world import World, local, xid

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdRange

L1, X1, X2 = local(1), xid("b1"), xid("b2")


def test_nothing_is_readable_before_commit_and_everything_after(world: World) -> None:
    world.begin(L1)
    for partition, body in ((0, b"P0"), (1, b"P1"), (0, b"P0b")):
        world.put(L1, body, partition=partition)
    assert world.bodies(partition=0) == []
    assert world.commit(L1) == "200"
    assert world.bodies(partition=0) == [b"P0", b"P0b"]
    assert world.bodies(partition=1) == [b"P1"]


def test_messages_keep_the_ids_given_at_put_time_and_stand_together(world: World) -> None:
    world.begin(X1)
    first = world.tx.put("A", X1, "orders", 0, 0, -1, b"first")
    world.store.put(("orders", 0), encode_frame(7, 0, b"plain"))
    second = world.tx.put("A", X1, "orders", 0, 0, -1, b"second")
    world.commit(X1)
    assert world.bodies() == [b"plain", b"first", b"second"]
    assert world.store.ids("orders", 0) == [7, first, second]


def test_commit_is_answered_only_when_the_messages_can_be_read(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"m")
    world.store.hold = True
    answers: list[object] = []
    world.tx.commit(L1, True, "A", answers.append)
    assert world.loop.jobs  # the journal's fsync
    world.settle()
    assert answers == []
    world.store.release_held()
    assert answers == [None]
    assert world.bodies() == [b"m"]


def test_the_commit_record_is_durable_before_the_partitions_are_touched(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"m")
    answers: list[object] = []
    world.tx.commit(L1, True, "A", answers.append)
    assert world.bodies() == []
    world.loop.run_one_job()
    assert world.bodies() == [b"m"]


def test_many_commits_share_one_fsync(world: World) -> None:
    answers: list[object] = []
    for number in range(20):
        world.begin(local(number))
        world.put(local(number), b"m%d" % number)
        world.tx.commit(local(number), True, "A", answers.append)
    world.loop.run_one_job()  # the first commit started it alone
    assert len(answers) == 1
    world.loop.run_one_job()
    assert answers == [None] * 20
    assert len(world.bodies()) == 20


def test_a_second_commit_on_its_way_gets_the_same_answer(world: World) -> None:
    world.prepare_with(X1, b"m")
    answers: list[object] = []
    world.tx.commit(X1, False, "A", answers.append)
    world.tx.commit(X1, False, "B", answers.append)
    assert world.rollback(X1, "C") == "500 XAException:code=-6,msg=Cannot call rollback now."
    world.settle()
    assert answers == [None, None]
    assert world.bodies() == [b"m"]


def test_rollback_may_overtake_its_prepare(world: World) -> None:
    world.begin(X1)
    world.put(X1, b"m")
    answers: list[object] = []
    world.tx.prepare(X1, answers.append)
    world.tx.rollback(X1, None, answers.append)
    world.tx.rollback(X1, None, answers.append)
    world.settle()
    assert answers == [0, None, None]
    world.restart()
    assert world.recover() == []


def test_rolled_back_messages_are_gone(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"R1")
    world.rollback(L1)
    world.prepare_with(X1, b"R2")
    world.rollback(X1)
    assert world.bodies() == []
    world.restart()
    assert world.bodies() == []
    assert world.recover() == []


def test_a_lost_connection_rolls_back_its_local_transactions_only(world: World) -> None:
    for connection in ("A", "B"):
        world.begin(L1, connection=connection)
        world.put(L1, b"of " + connection.encode(), connection=connection)
    world.begin(X1, connection="A")
    world.put(X1, b"xa", connection="A")
    world.tx.connection_lost("A")
    assert world.commit(L1, connection="A").startswith("500 Local transaction")
    assert world.commit(L1, connection="B") == "200"
    assert world.put(X1, b"more", connection="C") == "200"  # XA transactions outlive connections
    assert world.commit(X1, connection="D") == "200"
    assert world.bodies() == [b"of B", b"xa", b"more"]


def test_a_connection_lost_during_commit_does_not_undo_it(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"m")
    answers: list[object] = []
    world.tx.commit(L1, True, "A", answers.append)
    world.tx.connection_lost("A")
    world.settle()
    assert answers == [None]
    assert world.bodies() == [b"m"]


@pytest.mark.parametrize(
    ("timeout_s", "after_s", "alive"),
    [
        (1, 0.9, True),
        (1, 1.0, False),
        (0, 59, True),
        (0, 60, False),
        (None, 59, True),
        (None, 60, False),
        (1000, 59, True),
        (1000, 60, False),
    ],
)
@pytest.mark.parametrize("key", [L1, X1], ids=["local", "xa"])
def test_timeout(world: World, key: object, timeout_s: int | None, after_s: float, alive: bool) -> None:
    world.begin(key, timeout_s=timeout_s)
    world.put(key, b"m")
    world.pass_time(after_s)
    assert (world.commit(key) == "200") is alive
    if not alive:
        assert world.commit(key).endswith("has not been started.")
        assert world.tx.counters.tx_rollback == 1
    assert world.bodies() == [b"m"] * alive


def test_begin_again_changes_no_timeout(world: World) -> None:
    world.begin(L1)
    world.begin(L1, timeout_s=1)
    world.pass_time(59)
    assert world.commit(L1) == "200"


def test_prepared_transactions_never_expire(world: World) -> None:
    world.begin(X1, timeout_s=1)
    world.put(X1, b"m")
    world.prepare(X1)
    world.pass_time(1e5)
    assert world.commit(X1, False) == "200"


def test_a_commit_on_its_way_does_not_expire(world: World) -> None:
    world.begin(X1, timeout_s=1)
    world.put(X1, b"m")
    world.store.hold = True
    answers: list[object] = []
    world.tx.commit(X1, True, "A", answers.append)
    world.pass_time(5)
    world.store.release_held()
    assert answers == [None]


def test_restart_keeps_prepared_transactions_and_forgets_open_ones(world: World) -> None:
    world.prepare_with(X1, b"p0", b"p1")
    world.begin(X2)
    world.put(X2, b"open")
    world.begin(L1)
    world.put(L1, b"local")
    world.pass_time(3)
    world.restart()
    assert (world.report.prepared, world.report.completed) == (1, 0)
    assert world.recover() == [str(X1)]
    (listed,) = world.tx.prepared()
    assert (listed.key, listed.age_ms, listed.messages, listed.places) == (X1, 3000, 2, (("orders", 0),))
    assert listed.byte_count == 2 * 22
    assert world.commit(X2).endswith("has not been started.")
    assert world.commit(X1, False) == "200"
    assert world.bodies() == [b"p0", b"p1"]
    world.restart()
    assert world.recover() == []
    assert world.bodies() == [b"p0", b"p1"]


def test_bug_3_a_recovered_transaction_is_appended_behind_what_came_meanwhile(world: World) -> None:
    world.prepare_with(X1, b"old")
    world.restart()
    world.store.put(("orders", 0), encode_frame(7, 0, b"NEW"))
    assert world.commit(X1, False) == "200"
    assert world.bodies() == [b"NEW", b"old"]


def test_recover_lists_by_unique_qualifier(world: World) -> None:
    mine, other = xid("b1", "mine"), xid("b1", "other")
    world.prepare_with(mine, b"m")
    world.prepare_with(other, b"o")
    world.begin(xid("b2", "mine"))
    assert world.recover("mine") == [str(mine)]
    assert world.recover("other") == [str(other)]
    assert world.recover("nobody") == []
    assert world.recover() == [str(mine), str(other)]


def test_heuristic_outcome_is_remembered_until_forgotten(world: World) -> None:
    world.prepare_with(X1, b"m")
    world.by_operator(X1, Outcome.COMMITTED)
    assert world.bodies() == [b"m"]
    world.restart()
    assert world.recover() == [str(X1)]
    assert "code=7" in world.commit(X1, False)
    assert world.forget(X1) == "200"
    assert world.recover() == []
    assert "code=-4" in world.commit(X1, False)
    world.restart()
    assert world.recover() == []
    assert world.bodies() == [b"m"]


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.COMPLETED])
def test_heuristic_outcomes_without_messages(world: World, outcome: Outcome) -> None:
    world.prepare_with(X1, b"m")
    assert world.by_operator(X1, outcome) == "200"
    world.restart()
    assert f"code={outcome.value}" in world.rollback(X1)
    assert world.bodies() == []
    assert world.tx.prepared() == []


def test_too_many_open_transactions(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TransactionLimits(open_max=2))
    assert world.begin(local(1)) == "200"
    assert world.begin(X1) == "200"
    assert world.begin(local(2)) == "500 2 transactions are open, the broker allows no more (maxTxTimeoutTimerCapacity)"
    assert world.begin(local(1)) == "200"
    world.rollback(X1)
    assert world.begin(local(2)) == "200"


def test_too_large_transaction(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TransactionLimits(transaction_bytes_max=100))
    world.begin(L1)
    assert world.put(L1, bytes(60)) == "200"
    assert world.put(L1, bytes(1)) == "500 transaction 'TX:sess1:1' would hold 101 bytes, at most 100 are allowed"
    assert world.put(L1, b"") == "200"
    assert world.commit(L1) == "200"
    assert world.bodies() == [bytes(60), b""]


def test_too_long_message(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TransactionLimits(message_bytes_max=10))
    world.begin(L1)
    assert world.put(L1, bytes(11)) == "500 message of 11 bytes is longer than 10 bytes (maxMessageSize)"


@pytest.mark.parametrize("limits", [TransactionLimits(spill_bytes=100), TransactionLimits(buffered_bytes_max=150)])
def test_large_transactions_wait_in_the_journal(tmp_path: Path, limits: TransactionLimits) -> None:
    world = World(tmp_path, limits=limits)
    world.begin(X1)
    world.begin(L1)
    bodies = [b"%03d" % number * 10 for number in range(50)]
    for number, body in enumerate(bodies):
        assert world.put(X1, body, partition=number % 2) == "200"
        assert world.put(L1, body, partition=2) == "200"
    assert world.tx.buffered_bytes < 250
    world.prepare(X1)
    world.restart()
    assert world.tx.recover(None) == [X1]
    assert world.commit(X1, False) == "200"
    assert world.bodies(partition=0) == bodies[::2]
    assert world.bodies(partition=1) == bodies[1::2]
    assert world.bodies(partition=2) == []


def test_batched_put_in_a_transaction(world: World) -> None:
    frames = [encode_frame(0, 0, body) for body in (b"a", b"bb", b"")]
    world.begin(X1)
    world.put(X1, b"before")
    ids = world.tx.put_batch("A", X1, "orders", 0, b"".join(frames), 3)
    assert isinstance(ids, IdRange)
    world.commit(X1)
    assert world.bodies() == [b"before", b"a", b"bb", b""]
    assert world.store.ids("orders", 0)[1:] == list(ids)


@pytest.mark.parametrize(
    ("damage", "count", "words"),
    [
        (lambda block: block[:-1], 2, "frame 1 at byte 21"),
        (lambda block: block[:-1] + b"?", 2, "frame 1 at byte 21 fails its checksum"),
        (lambda block: block, 3, "3 frames take 60 bytes at least, the block has 42"),
        (lambda block: block, 1, "1 frames take 21 bytes"),
        (lambda block: b"", 0, "at least 1 frame"),
    ],
)
def test_one_wrong_frame_refuses_the_batch(world: World, damage: object, count: int, words: str) -> None:
    block = encode_frame(0, 0, b"a") + encode_frame(0, 0, b"b")
    world.begin(L1)
    reply = world.put_batch(L1, damage(block), count)
    assert reply.startswith("500 ")
    assert words in reply
    world.commit(L1)
    assert world.bodies() == []


def test_counters(world: World) -> None:
    world.begin(L1)
    world.begin(L1)
    world.put(L1, b"m")
    world.commit(L1)
    world.begin(X1)
    world.rollback(X1)
    world.prepare_with(X2, b"m")
    world.rollback(X2)
    world.commit(X2)
    world.begin(local(2))
    world.tx.connection_lost("A")
    counters = world.tx.counters
    assert (counters.tx_begin, counters.tx_xa_begin, counters.tx_commit, counters.tx_rollback) == (2, 2, 1, 3)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.SECOND])
def test_weaker_durability_answers_without_an_fsync(tmp_path: Path, durability: Durability) -> None:
    files = FaultyFiles(tmp_path)
    world = World(tmp_path, files, durability=durability)
    world.prepare_with(X1, b"p")
    world.begin(L1)
    world.put(L1, b"m")
    answers: list[object] = []
    world.tx.commit(L1, True, "A", answers.append)
    assert answers == [None]
    assert world.loop.jobs == []
    before = len(files.calls)
    world.pass_time(1)
    assert ("fdatasync" in files.calls[before:]) is (durability is Durability.SECOND)
    world.restart()
    assert world.recover() == [str(X1)]
    assert world.bodies() == [b"m"]


def test_a_partition_that_fails_leaves_the_commit_for_the_restart(world: World) -> None:
    world.prepare_with(X1, b"m")
    world.store.broken.add(("orders", 0))
    reply = world.commit(X1, False)
    words = "is committed, but readable only after a restart"
    assert reply.startswith(f"500 XAException:code=-3,msg=transaction '{X1}' {words}")
    assert world.commit(X1, False) == reply
    assert world.recover() == []
    world.restart()
    assert world.report.completed == 1
    assert world.bodies() == [b"m"]
    assert "code=-4" in world.commit(X1, False)


def test_end_has_no_effect(world: World) -> None:
    world.begin(L1)
    world.put(L1, b"m")
    world.tx.end(L1)
    assert world.put(L1, b"n") == "200"
    assert world.commit(L1) == "200"
    assert world.bodies() == [b"m", b"n"]
