"""Transactions of the client against a real broker process: what two phases and decisions promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from fix_broker import RunningBroker, wait_until
from fix_client import TIMEOUTS, Restarts

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import encode_block, put
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps, Vote
from metaq.client.consumer import Run, fetch
from metaq.errors import TransactionError
from metaq.formats.frames import walk
from metaq.model import Message, Xid

pytestmark = pytest.mark.process


def branch(number: int, unique: str = "query-1") -> Xid:
    return Xid(1, b"batch-7", b"task-%d" % number, unique)


def stored(session: Session) -> list[bytes]:
    run = fetch(session, "t", 0, 0, 1 << 20)
    return [frame.body for frame in walk(run.data)] if isinstance(run, Run) else []


def prepared(session: Session, xid: Xid, *payloads: bytes) -> Xid:
    """Put the payloads in a branch of their own and prepare it."""
    transactions = TransactionSteps(session)
    transactions.begin(xid, timeout_s=30)
    for payload in payloads:
        assert put(session, "t", 0, Message(payload), xid).offset == -1
    assert transactions.prepare(xid) is Vote.PREPARED
    return xid


@pytest.fixture
def session(dev_broker: RunningBroker) -> Iterator[Session]:
    with closing(Session.connect(dev_broker.address, TIMEOUTS)) as session:
        yield session


def test_nothing_is_readable_before_a_commit_by_any_connection(session: Session) -> None:
    xid = prepared(session, branch(1), b"one", b"two")
    put(session, "t", 0, Message(b"outside"))
    assert stored(session) == [b"outside"]
    with closing(Session.connect(session.address, TIMEOUTS)) as other:
        transactions = TransactionSteps(other)
        assert transactions.recover("query-1") == [xid]
        assert transactions.recover("query-2") == []
        transactions.commit(xid)
        assert transactions.recover() == []
    assert stored(session) == [b"outside", b"one", b"two"]


def test_blocks_go_into_a_branch_in_order(session: Session) -> None:
    xid = branch(1)
    transactions = TransactionSteps(session)
    transactions.begin(xid)
    writer = BatchWriter(session, "t", transaction=xid)
    for number in range(20):
        writer.write(0, *encode_block([Message(b"%d" % number), Message(b"%d'" % number)]))
    assert {receipt.offset for receipt in writer.flush()} == {-1}
    assert transactions.prepare(xid) is Vote.PREPARED
    transactions.commit(xid)
    assert stored(session) == [text for number in range(20) for text in (b"%d" % number, b"%d'" % number)]


def test_a_branch_without_messages_is_finished_by_prepare(session: Session) -> None:
    transactions = TransactionSteps(session)
    transactions.begin(branch(1))
    assert transactions.prepare(branch(1)) is Vote.READ_ONLY
    assert transactions.recover() == []


def test_one_phase_and_rollback(session: Session) -> None:
    transactions = TransactionSteps(session)
    for xid, payload in ((branch(1), b"kept"), (branch(2), b"dropped")):
        transactions.begin(xid)
        put(session, "t", 0, Message(payload), xid)
    transactions.commit_one_phase(branch(1))
    transactions.rollback(branch(2))
    transactions.end(branch(1))
    transactions.forget(branch(1))
    assert stored(session) == [b"kept"]


def test_a_local_transaction_is_one_unit_and_dies_with_its_connection(session: Session) -> None:
    transactions = TransactionSteps(session)
    first = transactions.local_id()
    transactions.begin(first)
    put(session, "t", 0, Message(b"kept"), first)
    transactions.commit(first)
    with closing(Session.connect(session.address, TIMEOUTS)) as other:
        others = TransactionSteps(other)
        second = others.local_id()
        others.begin(second)
        put(other, "t", 0, Message(b"dropped"), second)
        with pytest.raises(TransactionError, match="has not been started"):
            transactions.commit(second)
    assert stored(session) == [b"kept"]


@pytest.mark.parametrize(("step", "xa_code"), [("commit", -4), ("prepare", -4), ("rollback", -4)])
def test_an_unknown_branch_is_xa_code_minus_4(session: Session, step: str, xa_code: int) -> None:
    with pytest.raises(TransactionError, match=r"has not been started") as unknown:
        getattr(TransactionSteps(session), step)(branch(9))
    assert unknown.value.xa_code == xa_code


def test_a_commit_before_prepare_is_xa_code_minus_6(session: Session) -> None:
    transactions = TransactionSteps(session)
    transactions.begin(branch(1))
    put(session, "t", 0, Message(b"x"), branch(1))
    with pytest.raises(TransactionError, match=r"has not been prepared") as early:
        transactions.commit(branch(1))
    assert early.value.xa_code == -6


def test_an_open_branch_is_gone_after_its_timeout(session: Session) -> None:
    transactions = TransactionSteps(session)
    transactions.begin(branch(1), timeout_s=1)
    put(session, "t", 0, Message(b"x"), branch(1))

    def gone() -> bool:
        try:
            transactions.commit(branch(1))
        except TransactionError as error:
            return error.xa_code == -4
        return False

    wait_until(gone, "the broker rolls the branch back")
    assert stored(session) == []


# ---- decisions and crashes


def test_the_first_decision_wins_and_commits_what_is_here(session: Session) -> None:
    transactions = TransactionSteps(session)
    elsewhere = branch(99)
    mine = prepared(session, branch(1), b"mine")
    assert transactions.decide("query-1", 7, [mine, elsewhere]) == (mine, elsewhere)
    transactions.commit(mine)  # again and again
    transactions.commit(mine)
    replayed = prepared(session, branch(2), b"again")
    assert transactions.decide("query-1", 7, [replayed]) == (mine, elsewhere)
    transactions.rollback(replayed)
    assert stored(session) == [b"mine"]


def test_a_batch_before_the_last_decided_one_is_refused(session: Session) -> None:
    transactions = TransactionSteps(session)
    transactions.decide("query-1", 8, [prepared(session, branch(1), b"x")])
    late = prepared(session, branch(2), b"zombie")
    with pytest.raises(TransactionError, match="comes too late") as refused:
        transactions.decide("query-1", 7, [late])
    assert refused.value.code == 409
    assert transactions.recover("query-1") == [late]


def test_prepared_branches_and_decisions_survive_kill_9(restarts: Restarts) -> None:
    with closing(restarts.connect()) as session:
        decided = prepared(session, branch(1), b"decided")
        undecided = prepared(session, branch(2), b"undecided")
        TransactionSteps(session).begin(branch(3))
        put(session, "t", 0, Message(b"open"), branch(3))
        assert TransactionSteps(session).decide("query-1", 7, [decided]) == (decided,)
    restarts.kill_and_start()
    with closing(restarts.connect()) as session:
        transactions = TransactionSteps(session)
        assert transactions.recover("query-1") == [undecided]
        assert transactions.decide("query-1", 7, [undecided]) == (decided,)
        transactions.commit(decided)
        transactions.rollback(undecided)
        assert stored(session) == [b"decided"]
