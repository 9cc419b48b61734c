"""Transaction steps: the lines they send, and what the answers mean. Texts as the Java broker gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_client import ADDRESS, scripted_session

from metaq.backends.metaq.transactions import TransactionSteps, Vote
from metaq.errors import ExtensionMissing, ProtocolError, TransactionError
from metaq.model import LocalTransactionId, Xid
from metaq.testing.scripted import Expect, Say, Step

XID = Xid(1, b"q-7", b"t1", "query-9")
KEY = b"XID:1:712d37:7431:query-9"
OTHER = Xid(1, b"q-7", b"t2", "query-9")


class Bench:
    """Transactions over a session that plays steps; SESSION in an expected line stands for the client's own id."""

    def __init__(self, *exchanges: tuple[bytes, bytes | None]) -> None:
        self.session, self.transport = scripted_session()
        self.transactions = TransactionSteps(self.session)
        session_id = self.transactions.local_id().session_id.encode()
        steps: list[Step] = []
        for line, reply in exchanges:
            steps.append(Expect(line.replace(b"SESSION", session_id) + b"\r\n"))
            steps += [] if reply is None else [Say(reply)]
        stream = self.transport.streams[0]
        stream._steps.extend(steps)
        stream._speak()


def ok(opaque: int, text: bytes = b"") -> bytes:
    return b"result 200 %d %d\r\n%b" % (len(text), opaque, text)


def refused(opaque: int, text: bytes, code: int = 500) -> bytes:
    return b"result %d %d %d\r\n%b" % (code, len(text), opaque, text)


def test_a_branch_goes_through_both_phases() -> None:
    bench = Bench(
        (b"transaction %b SESSION BEGIN 60 1" % KEY, ok(1)),
        (b"transaction %b SESSION PREPARE 2" % KEY, ok(2, b"0")),
        (b"transaction %b SESSION COMMIT_TWO_PHASE 3" % KEY, ok(3)),
    )
    bench.transactions.begin(XID, timeout_s=60)
    assert bench.transactions.prepare(XID) is Vote.PREPARED
    bench.transactions.commit(XID)
    assert bench.transport.finished


FULL = b"[Errno 28] No space left on device"
COMMITTED = b"transaction 'K' is committed, and readable once the broker can store its messages: " + FULL
UNKNOWN = b"outcome of transaction 'K' is known after a restart of the broker: " + FULL


@pytest.mark.parametrize(
    ("text", "retryable"), [(b"transaction journal: " + FULL, True), (COMMITTED, False), (UNKNOWN, False)]
)
def test_a_transaction_is_not_repeated_if_it_may_be_committed(text: bytes, *, retryable: bool) -> None:
    bench = Bench(
        (b"transaction TX:SESSION:2 SESSION COMMIT_ONE_PHASE 1", refused(1, b"XAException:code=-3,msg=" + text)),
    )
    with pytest.raises(TransactionError) as error:
        bench.transactions.commit(bench.transactions.local_id())
    assert (error.value.retryable, error.value.away) == (retryable, True)


def test_a_local_transaction_has_one_phase() -> None:
    bench = Bench(
        (b"transaction TX:SESSION:2 SESSION BEGIN 0 1", ok(1)),
        (b"transaction TX:SESSION:2 SESSION COMMIT_ONE_PHASE 2", ok(2)),
        (b"transaction TX:SESSION:3 SESSION BEGIN 0 3", ok(3)),
        (b"transaction TX:SESSION:3 SESSION ROLLBACK 4", ok(4)),
    )
    first, second = bench.transactions.local_id(), bench.transactions.local_id()
    bench.transactions.begin(first)
    bench.transactions.commit(first)
    bench.transactions.begin(second)
    bench.transactions.rollback(second)
    assert bench.transport.finished


def test_a_branch_without_messages_votes_read_only() -> None:
    assert Bench((b"transaction %b SESSION PREPARE 1" % KEY, ok(1, b"3"))).transactions.prepare(XID) is Vote.READ_ONLY


def test_the_other_steps_of_a_branch() -> None:
    bench = Bench(
        (b"transaction %b SESSION COMMIT_ONE_PHASE 1" % KEY, ok(1)),
        (b"transaction %b SESSION FORGET 2" % KEY, ok(2)),
        (b"transaction %b SESSION END 0" % KEY, None),
        (b"transaction %b SESSION ROLLBACK 3" % KEY, ok(3)),
    )
    bench.transactions.commit_one_phase(XID)
    bench.transactions.forget(XID)
    bench.transactions.end(XID)
    bench.transactions.rollback(XID)
    assert bench.transport.finished


@pytest.mark.parametrize(
    ("unique", "line", "text", "branches"),
    [
        (None, b"transaction null SESSION RECOVER 1", b"", []),
        ("query-9", b"transaction null SESSION RECOVER query-9 1", KEY, [XID]),
        (None, b"transaction null SESSION RECOVER 1", KEY + b"\r\nXID:1:712d37:7432:query-9", [XID, OTHER]),
    ],
)
def test_recover_lists_prepared_branches(unique: str | None, line: bytes, text: bytes, branches: list[Xid]) -> None:
    assert Bench((line, ok(1, text))).transactions.recover(unique) == branches


def _commit(transactions: TransactionSteps) -> object:
    return transactions.commit(XID)


def _prepare(transactions: TransactionSteps) -> object:
    return transactions.prepare(XID)


@pytest.mark.parametrize(
    ("act", "line", "text", "xa_code"),
    [
        (
            _commit,
            b"transaction %b SESSION COMMIT_TWO_PHASE 1",
            b"XAException:code=-4,msg=XA transaction '%b' has not been started." % KEY,
            -4,
        ),
        (_prepare, b"transaction %b SESSION PREPARE 1", b"XAException:code=-6,msg=Cannot call prepare now.", -6),
        (_commit, b"transaction %b SESSION COMMIT_TWO_PHASE 1", b"XAException:code=7,msg=two\r\nlines", 7),
        (_commit, b"transaction %b SESSION COMMIT_TWO_PHASE 1", b"Unsupported commitTransaction", None),
    ],
)
def test_a_refused_step_carries_the_xa_code(
    act: Callable[[TransactionSteps], object], line: bytes, text: bytes, xa_code: int | None
) -> None:
    bench = Bench((line % KEY, refused(1, text)))
    with pytest.raises(TransactionError) as failed:
        act(bench.transactions)
    assert failed.value.xa_code == xa_code
    assert str(failed.value) == f"broker {ADDRESS} refused {failed.value.action} with 500: {text.decode()}"
    assert str(XID) in failed.value.action
    assert not bench.session.closed


@pytest.mark.parametrize(
    ("act", "line", "text", "what"),
    [
        (_prepare, b"transaction %b SESSION PREPARE 1" % KEY, b"7", "the answer to PREPARE is '7'"),
        (lambda t: t.recover(), b"transaction null SESSION RECOVER 1", b"XID:1:2", "transaction key 'XID:1:2'"),
        (lambda t: t.recover(), b"transaction null SESSION RECOVER 1", b"TX:a:1", "TX:a:1 is listed as an XA branch"),
    ],
)
def test_answers_that_make_no_sense(
    act: Callable[[TransactionSteps], object], line: bytes, text: bytes, what: str
) -> None:
    bench = Bench((line, ok(1, text)))
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: {what}"):
        act(bench.transactions)
    assert bench.session.closed


OTHER_KEY = b"XID:1:712d37:7432:query-9"


@pytest.mark.parametrize(
    ("text", "decided"),
    [(KEY + b"\r\n" + OTHER_KEY, (XID, OTHER)), (OTHER_KEY, (OTHER,)), (b"", ())],
    ids=["as asked", "decided before", "decided before, nothing"],
)
def test_decide_returns_what_the_batch_consists_of(text: bytes, decided: tuple[Xid, ...]) -> None:
    keys = KEY + b"\r\n" + OTHER_KEY
    session, transport = scripted_session(
        Expect(b"version 1\r\n"),
        Say(ok(1, b"1.4.6-metaq-spark-1;ext=decide")),
        Expect(b"decide query-9 7 %d 2\r\n%b" % (len(keys), keys)),
        Say(ok(2, text)),
    )
    assert TransactionSteps(session).decide("query-9", 7, [XID, OTHER]) == decided
    assert transport.finished


def test_a_decision_that_comes_too_late_is_409() -> None:
    session, _ = scripted_session(
        Expect(b"version 1\r\n"),
        Say(ok(1, b"1.4.6-metaq-spark-1;ext=decide")),
        Expect(b"decide query-9 7 0 2\r\n"),
        Say(refused(2, b"batch 7 of query query-9 comes too late: batch 9 has been decided", 409)),
    )
    with pytest.raises(TransactionError, match=r"decision on batch 7 of query query-9 with 409: .*too late") as late:
        TransactionSteps(session).decide("query-9", 7, [])
    assert (late.value.code, late.value.xa_code) == (409, None)


def test_decide_needs_the_extension() -> None:
    bench = Bench((b"version 1", ok(1, b"1.4.6.3-SNAPSHOT")))
    with pytest.raises(
        ExtensionMissing, match=f"broker {ADDRESS} does not offer 'decide', which exactly-once delivery"
    ):
        bench.transactions.decide("query-9", 7, [XID])


def test_local_ids_are_fresh_and_belong_to_one_session() -> None:
    transactions = Bench().transactions
    first, second = transactions.local_id(), transactions.local_id()
    assert isinstance(first, LocalTransactionId)
    assert first.session_id == second.session_id
    assert first.number != second.number
    assert Bench().transactions.local_id().session_id != first.session_id
