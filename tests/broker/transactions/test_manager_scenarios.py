"""What a transaction is for its clients: visibility, order, ownership, timeouts, limits, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions.interfaces import Durability, TransactionLimits
from metaq_broker.transactions.outcomes import Outcome
from tx_harness import Harness, local, xid

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdRange

L1, X1, X2 = local(1), xid("b1"), xid("b2")


def test_nothing_is_readable_before_commit_and_everything_after(harness: Harness) -> None:
    harness.begin(L1)
    for partition, body in ((0, b"P0"), (1, b"P1"), (0, b"P0b")):
        harness.put(L1, body, partition=partition)
    assert harness.bodies(partition=0) == []
    assert harness.commit(L1) == "200"
    assert harness.bodies(partition=0) == [b"P0", b"P0b"]
    assert harness.bodies(partition=1) == [b"P1"]


def test_messages_keep_the_ids_given_at_put_time_and_stand_together(harness: Harness) -> None:
    harness.begin(X1)
    first = harness.tx.put("A", X1, "orders", 0, 0, -1, b"first")
    harness.store.put(("orders", 0), encode_frame(7, 0, b"plain"))
    second = harness.tx.put("A", X1, "orders", 0, 0, -1, b"second")
    harness.commit(X1)
    assert harness.bodies() == [b"plain", b"first", b"second"]
    assert harness.store.ids("orders", 0) == [7, first, second]


def test_commit_is_answered_only_when_the_messages_can_be_read(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"m")
    harness.store.hold = True
    answers: list[object] = []
    harness.tx.commit(L1, True, "A", answers.append)
    assert harness.loop.jobs  # the journal's fsync
    harness.settle()
    assert answers == []
    harness.store.release_held()
    assert answers == [None]
    assert harness.bodies() == [b"m"]


def test_the_commit_record_is_durable_before_the_partitions_are_touched(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"m")
    answers: list[object] = []
    harness.tx.commit(L1, True, "A", answers.append)
    assert harness.bodies() == []
    harness.loop.run_one_job()
    assert harness.bodies() == [b"m"]


def test_many_commits_share_one_fsync(harness: Harness) -> None:
    answers: list[object] = []
    for number in range(20):
        harness.begin(local(number))
        harness.put(local(number), b"m%d" % number)
        harness.tx.commit(local(number), True, "A", answers.append)
    harness.loop.run_one_job()  # the first commit started it alone
    assert len(answers) == 1
    harness.loop.run_one_job()
    assert answers == [None] * 20
    assert len(harness.bodies()) == 20


def test_a_second_commit_on_its_way_gets_the_same_answer(harness: Harness) -> None:
    harness.prepare_with(X1, b"m")
    answers: list[object] = []
    harness.tx.commit(X1, False, "A", answers.append)
    harness.tx.commit(X1, False, "B", answers.append)
    assert harness.rollback(X1, "C") == "500 XAException:code=-6,msg=Cannot call rollback now."
    harness.settle()
    assert answers == [None, None]
    assert harness.bodies() == [b"m"]


def test_rollback_may_overtake_its_prepare(harness: Harness) -> None:
    harness.begin(X1)
    harness.put(X1, b"m")
    answers: list[object] = []
    harness.tx.prepare(X1, answers.append)
    harness.tx.rollback(X1, None, answers.append)
    harness.tx.rollback(X1, None, answers.append)
    harness.settle()
    assert answers == [0, None, None]
    harness.restart()
    assert harness.recover() == []


def test_rolled_back_messages_are_gone(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"R1")
    harness.rollback(L1)
    harness.prepare_with(X1, b"R2")
    harness.rollback(X1)
    assert harness.bodies() == []
    harness.restart()
    assert harness.bodies() == []
    assert harness.recover() == []


def test_a_lost_connection_rolls_back_its_local_transactions_only(harness: Harness) -> None:
    for connection in ("A", "B"):
        harness.begin(L1, connection=connection)
        harness.put(L1, b"of " + connection.encode(), connection=connection)
    harness.begin(X1, connection="A")
    harness.put(X1, b"xa", connection="A")
    harness.tx.connection_lost("A")
    assert harness.commit(L1, connection="A").startswith("500 Local transaction")
    assert harness.commit(L1, connection="B") == "200"
    assert harness.put(X1, b"more", connection="C") == "200"  # XA transactions outlive connections
    assert harness.commit(X1, connection="D") == "200"
    assert harness.bodies() == [b"of B", b"xa", b"more"]


def test_a_connection_lost_during_commit_does_not_undo_it(harness: Harness) -> None:
    harness.begin(L1)
    harness.put(L1, b"m")
    answers: list[object] = []
    harness.tx.commit(L1, True, "A", answers.append)
    harness.tx.connection_lost("A")
    harness.settle()
    assert answers == [None]
    assert harness.bodies() == [b"m"]


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
def test_timeout(harness: Harness, key: object, timeout_s: int | None, after_s: float, alive: bool) -> None:
    harness.begin(key, timeout_s=timeout_s)
    harness.put(key, b"m")
    harness.pass_time(after_s)
    assert (harness.commit(key) == "200") is alive
    if not alive:
        assert harness.commit(key).endswith("has not been started.")
        assert harness.tx.counters.tx_rollback == 1
    assert harness.bodies() == [b"m"] * alive


def test_begin_again_changes_no_timeout(harness: Harness) -> None:
    harness.begin(L1)
    harness.begin(L1, timeout_s=1)
    harness.pass_time(59)
    assert harness.commit(L1) == "200"


def test_prepared_transactions_never_expire(harness: Harness) -> None:
    harness.begin(X1, timeout_s=1)
    harness.put(X1, b"m")
    harness.prepare(X1)
    harness.pass_time(1e5)
    assert harness.commit(X1, False) == "200"


def test_a_commit_on_its_way_does_not_expire(harness: Harness) -> None:
    harness.begin(X1, timeout_s=1)
    harness.put(X1, b"m")
    harness.store.hold = True
    answers: list[object] = []
    harness.tx.commit(X1, True, "A", answers.append)
    harness.pass_time(5)
    harness.store.release_held()
    assert answers == [None]


def test_restart_keeps_prepared_transactions_and_forgets_open_ones(harness: Harness) -> None:
    harness.prepare_with(X1, b"p0", b"p1")
    harness.begin(X2)
    harness.put(X2, b"open")
    harness.begin(L1)
    harness.put(L1, b"local")
    harness.pass_time(3)
    harness.restart()
    assert (harness.report.prepared, harness.report.completed) == (1, 0)
    assert harness.recover() == [str(X1)]
    (listed,) = harness.tx.prepared()
    assert (listed.key, listed.age_ms, listed.messages, listed.partition_keys) == (X1, 3000, 2, (("orders", 0),))
    assert listed.byte_count == 2 * 22
    assert harness.commit(X2).endswith("has not been started.")
    assert harness.commit(X1, False) == "200"
    assert harness.bodies() == [b"p0", b"p1"]
    harness.restart()
    assert harness.recover() == []
    assert harness.bodies() == [b"p0", b"p1"]


def test_bug_3_a_recovered_transaction_is_appended_behind_later_puts(harness: Harness) -> None:
    harness.prepare_with(X1, b"old")
    harness.restart()
    harness.store.put(("orders", 0), encode_frame(7, 0, b"NEW"))
    assert harness.commit(X1, False) == "200"
    assert harness.bodies() == [b"NEW", b"old"]


def test_recover_lists_by_unique_qualifier(harness: Harness) -> None:
    mine, other = xid("b1", "mine"), xid("b1", "other")
    harness.prepare_with(mine, b"m")
    harness.prepare_with(other, b"o")
    harness.begin(xid("b2", "mine"))
    assert harness.recover("mine") == [str(mine)]
    assert harness.recover("other") == [str(other)]
    assert harness.recover("nobody") == []
    assert harness.recover() == [str(mine), str(other)]


def test_heuristic_outcome_is_remembered_until_forgotten(harness: Harness) -> None:
    harness.prepare_with(X1, b"m")
    harness.by_operator(X1, Outcome.COMMITTED)
    assert harness.bodies() == [b"m"]
    harness.restart()
    assert harness.recover() == [str(X1)]
    assert "code=7" in harness.commit(X1, False)
    assert harness.forget(X1) == "200"
    assert harness.recover() == []
    assert "code=-4" in harness.commit(X1, False)
    harness.restart()
    assert harness.recover() == []
    assert harness.bodies() == [b"m"]


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.COMPLETED])
def test_heuristic_outcomes_without_messages(harness: Harness, outcome: Outcome) -> None:
    harness.prepare_with(X1, b"m")
    assert harness.by_operator(X1, outcome) == "200"
    harness.restart()
    assert f"code={outcome.value}" in harness.rollback(X1)
    assert harness.bodies() == []
    assert harness.tx.prepared() == []


def test_too_many_open_transactions(tmp_path: Path) -> None:
    harness = Harness(tmp_path, limits=TransactionLimits(open_max=2))
    assert harness.begin(local(1)) == "200"
    assert harness.begin(X1) == "200"
    assert (
        harness.begin(local(2)) == "500 2 transactions are open, the broker allows no more (maxTxTimeoutTimerCapacity)"
    )
    assert harness.begin(local(1)) == "200"
    harness.rollback(X1)
    assert harness.begin(local(2)) == "200"


def test_too_large_transaction(tmp_path: Path) -> None:
    harness = Harness(tmp_path, limits=TransactionLimits(transaction_bytes_max=100))
    harness.begin(L1)
    assert harness.put(L1, bytes(60)) == "200"
    assert harness.put(L1, bytes(1)) == "500 transaction 'TX:sess1:1' would hold 101 bytes, at most 100 are allowed"
    assert harness.put(L1, b"") == "200"
    assert harness.commit(L1) == "200"
    assert harness.bodies() == [bytes(60), b""]


def test_too_long_message(tmp_path: Path) -> None:
    harness = Harness(tmp_path, limits=TransactionLimits(message_bytes_max=10))
    harness.begin(L1)
    assert harness.put(L1, bytes(11)) == "500 message of 11 bytes is longer than 10 bytes (maxMessageSize)"


@pytest.mark.parametrize("limits", [TransactionLimits(spill_bytes=100), TransactionLimits(buffered_bytes_max=150)])
def test_large_transactions_wait_in_the_journal(tmp_path: Path, limits: TransactionLimits) -> None:
    harness = Harness(tmp_path, limits=limits)
    harness.begin(X1)
    harness.begin(L1)
    bodies = [b"%03d" % number * 10 for number in range(50)]
    for number, body in enumerate(bodies):
        assert harness.put(X1, body, partition=number % 2) == "200"
        assert harness.put(L1, body, partition=2) == "200"
    assert harness.tx.buffered_bytes < 250
    harness.prepare(X1)
    harness.restart()
    assert harness.tx.recover(None) == [X1]
    assert harness.commit(X1, False) == "200"
    assert harness.bodies(partition=0) == bodies[::2]
    assert harness.bodies(partition=1) == bodies[1::2]
    assert harness.bodies(partition=2) == []


def test_batched_put_in_a_transaction(harness: Harness) -> None:
    frames = [encode_frame(0, 0, body) for body in (b"a", b"bb", b"")]
    harness.begin(X1)
    harness.put(X1, b"before")
    ids = harness.tx.put_batch("A", X1, "orders", 0, FrameBlock.of(frames))
    assert isinstance(ids, IdRange)
    harness.commit(X1)
    assert harness.bodies() == [b"before", b"a", b"bb", b""]
    assert harness.store.ids("orders", 0)[1:] == list(ids)


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
def test_one_wrong_frame_refuses_the_batch(harness: Harness, damage: object, count: int, words: str) -> None:
    block = encode_frame(0, 0, b"a") + encode_frame(0, 0, b"b")
    harness.begin(L1)
    reply = harness.put_batch(L1, damage(block), count)
    assert reply.startswith("500 ")
    assert words in reply
    harness.commit(L1)
    assert harness.bodies() == []


def test_counters(harness: Harness) -> None:
    harness.begin(L1)
    harness.begin(L1)
    harness.put(L1, b"m")
    harness.commit(L1)
    harness.begin(X1)
    harness.rollback(X1)
    harness.prepare_with(X2, b"m")
    harness.rollback(X2)
    harness.commit(X2)
    harness.begin(local(2))
    harness.tx.connection_lost("A")
    counters = harness.tx.counters
    assert (counters.tx_begin, counters.tx_xa_begin, counters.tx_commit, counters.tx_rollback) == (2, 2, 1, 3)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.SECOND])
def test_weaker_durability_answers_without_an_fsync(tmp_path: Path, durability: Durability) -> None:
    files = FaultyFiles(tmp_path)
    harness = Harness(tmp_path, files, durability=durability)
    harness.prepare_with(X1, b"p")
    harness.begin(L1)
    harness.put(L1, b"m")
    answers: list[object] = []
    harness.tx.commit(L1, True, "A", answers.append)
    assert answers == [None]
    assert harness.loop.jobs == []
    before = len(files.calls)
    harness.pass_time(1)
    assert ("fdatasync" in files.calls[before:]) is (durability is Durability.SECOND)
    harness.restart()
    assert harness.recover() == [str(X1)]
    assert harness.bodies() == [b"m"]


def test_a_commit_that_a_partition_refuses_is_finished_by_a_restart(harness: Harness) -> None:
    harness.prepare_with(X1, b"m")
    harness.store.broken.add(("orders", 0))
    reply = harness.commit(X1, False)
    words = "is committed, and readable once the broker can store its messages"
    assert reply.startswith(f"500 XAException:code=-3,msg=transaction '{X1}' {words}")
    assert harness.commit(X1, False) == reply
    assert harness.recover() == []
    harness.restart()
    assert harness.report.completed == 1
    assert harness.bodies() == [b"m"]
    assert "code=-4" in harness.commit(X1, False)
