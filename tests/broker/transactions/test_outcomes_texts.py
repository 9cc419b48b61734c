"""Every answer of docs/transactions.md, as a table of scripts: what was done before, the command, the reply.

The replies marked golden are those that a Java broker gave (recorded transcript 04_local_transactions).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from metaq_broker.transactions.outcomes import Outcome
from recordings import METAQ
from tx_harness import Harness, local, xid

from metaq.formats.checksum import checksum

L1, X1 = local(1), xid("b1")
GOLDEN = METAQ / "04_local_transactions.jsonl"
NOT_PREPARED = "500 XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared."

Script = Callable[[Harness], str]

GOLDEN_CASES: dict[str, tuple[Script, str]] = {
    "put without BEGIN": (
        lambda w: w.put(local(99), b"xx"),
        "500 Local transaction 'TX:sess1:99' has not been started.",
    ),
    "commit of unknown": (lambda w: w.commit(local(6)), "500 Local transaction 'TX:sess1:6' has not been started."),
    "rollback of unknown": (lambda w: w.rollback(local(6)), "500 Local transaction 'TX:sess1:6' has not been started."),
    "random partition": (
        lambda w: w.begin(L1) and w.put(L1, b"yy", partition=-1),
        "500 Invalid partition for transaction command:-1",
    ),
    "wrong partition": (lambda w: w.begin(L1) and w.put(L1, b"yy", partition=77), "500 wrong partition 77"),
    "unknown topic": (
        lambda w: w.begin(L1) and w.put(L1, b"yy", topic="nosuch"),
        "500 The server do not accept topic nosuch",
    ),
    "local prepare": (
        lambda w: w.begin(L1) and w.prepare(L1),
        "500 XAException:code=-3,msg=Prepare not implemented on Local Transactions.",
    ),
}

CASES: dict[str, tuple[Script, str]] = {
    **GOLDEN_CASES,
    "begin": (lambda w: w.begin(L1), "200"),
    "begin again": (lambda w: w.begin(L1) and w.begin(L1, timeout_s=5), "200"),
    "begin null": (lambda w: w.begin(None), "500 XAException:code=-4,msg=Null xid"),
    "commit null": (lambda w: w.commit(None), "500 XAException:code=-4,msg=Null xid"),
    "put": (lambda w: w.begin(L1) and w.put(L1, b"m"), "200"),
    "put of an unknown XA key has no code": (
        lambda w: w.put(X1, b"m"),
        f"500 XA transaction '{X1}' has not been started.",
    ),
    "put to a closed partition": (
        lambda w: w.store.closed.add(("orders", 0)) or (w.begin(L1) and w.put(L1, b"m")),
        "403 partition[5-0] has been closed",
    ),
    "put after prepare": (
        lambda w: w.prepare_with(X1, b"m") or w.put(X1, b"late"),
        "500 XAException:code=-6,msg=Cannot put now, the transaction is prepared or ending.",
    ),
    "right checksum": (lambda w: w.begin(L1) and w.put(L1, b"abc", checksum=checksum(b"abc")), "200"),
    "wrong checksum": (
        lambda w: w.begin(L1) and w.put(L1, b"abc", checksum=12345),
        "500 Checksum failure,message may be corrupted when transfering on networking.",
    ),
    "old client without checksum": (lambda w: w.begin(L1) and w.put(L1, b"abc", checksum=None), "200"),
    "prepare without messages": (lambda w: w.begin(X1) and w.prepare(X1), "200 3"),
    "prepare": (lambda w: w.begin(X1) and w.put(X1, b"m") and w.prepare(X1), "200 0"),
    "prepare twice": (
        lambda w: w.prepare_with(X1, b"m") or w.prepare(X1),
        "500 XAException:code=-6,msg=Cannot call prepare now.",
    ),
    "prepare of unknown": (
        lambda w: w.prepare(X1),
        f"500 XAException:code=-4,msg=XA transaction '{X1}' has not been started.",
    ),
    "local prepare without a connection": (
        lambda w: w.prepare(L1, connection=None),
        "500 XAException:code=-3,msg=Prepare not implemented on Local Transactions.",
    ),
    "two phases without prepare": (lambda w: w.begin(X1) and w.put(X1, b"m") and w.commit(X1, False), NOT_PREPARED),
    "two phases without prepare, empty": (lambda w: w.begin(X1) and w.commit(X1, False), NOT_PREPARED),
    "one phase": (lambda w: w.begin(X1) and w.put(X1, b"m") and w.commit(X1), "200"),
    "one phase after prepare": (lambda w: w.prepare_with(X1, b"m") or w.commit(X1), "200"),
    "two phases": (lambda w: w.prepare_with(X1, b"m") or w.commit(X1, False), "200"),
    "local in either way": (lambda w: w.begin(L1) and w.put(L1, b"m") and w.commit(L1, False), "200"),
    "empty local": (lambda w: w.begin(L1) and w.commit(L1), "200"),
    "empty XA": (lambda w: w.begin(X1) and w.commit(X1), "200"),
    "commit twice": (
        lambda w: w.begin(X1) and w.commit(X1) and w.commit(X1),
        f"500 XAException:code=-4,msg=XA transaction '{X1}' has not been started.",
    ),
    "rollback": (lambda w: w.begin(L1) and w.put(L1, b"m") and w.rollback(L1), "200"),
    "rollback of prepared": (lambda w: w.prepare_with(X1, b"m") or w.rollback(X1), "200"),
    "rollback of unknown XA": (
        lambda w: w.rollback(X1),
        f"500 XAException:code=-4,msg=XA transaction '{X1}' has not been started.",
    ),
    "forget unknown": (lambda w: w.forget(X1), "200"),
    "forget local": (lambda w: w.forget(L1), f"500 XAException:code=-4,msg={L1} is not a valid xid"),
    "forget null": (lambda w: w.forget(None), "500 XAException:code=-4,msg=Null xid"),
    "operator on an open one": (
        lambda w: w.begin(X1) and w.by_operator(X1, Outcome.COMMITTED),
        "500 XAException:code=-6,msg=Only a prepared transaction can be ended by an operator.",
    ),
    "operator on a local one": (
        lambda w: w.by_operator(L1, Outcome.COMMITTED),
        "500 Local transaction 'TX:sess1:1' has not been started.",
    ),
}


@pytest.mark.parametrize(("script", "reply"), CASES.values(), ids=CASES.keys())
def test_reply(harness: Harness, script: Script, reply: str) -> None:
    assert script(harness) == reply


def test_golden_cases_are_what_the_java_broker_said() -> None:
    recorded = {bytes.fromhex(json.loads(line)["reply_hex"]) for line in GOLDEN.read_text().splitlines()}
    bodies = {reply.split(b"\r\n", 1)[1].decode() for reply in recorded if reply.startswith(b"result 500 ")}
    for _, reply in GOLDEN_CASES.values():
        assert reply.removeprefix("500 ") in bodies


OUTCOMES = {
    Outcome.COMMITTED: f"XAException:code=7,msg=XA transaction '{X1}' has been heuristically committed.",
    Outcome.ROLLED_BACK: f"XAException:code=6,msg=XA transaction '{X1}' has been heuristically rolled back.",
    Outcome.COMPLETED: f"XAException:code=8,msg=XA transaction '{X1}' has been heuristically completed.",
}


@pytest.mark.parametrize(("outcome", "text"), OUTCOMES.items(), ids=[outcome.name for outcome in OUTCOMES])
def test_coordinator_learns_what_an_operator_did(harness: Harness, outcome: Outcome, text: str) -> None:
    harness.prepare_with(X1, b"m")
    assert harness.by_operator(X1, outcome) == "200"
    for step in (harness.commit, harness.rollback, harness.prepare, harness.begin):
        assert step(X1) == f"500 {text}"
    assert harness.put(X1, b"n") == f"500 {text.split('msg=')[1]}"


def test_local_transactions_are_seen_by_their_connection_only(harness: Harness) -> None:
    unknown = "500 Local transaction 'TX:sess1:1' has not been started."
    harness.begin(L1, connection="A")
    harness.put(L1, b"of A", connection="A")
    assert harness.put(L1, b"of B", connection="B") == unknown
    assert harness.commit(L1, connection="B") == unknown
    assert harness.rollback(L1, connection="B") == unknown
    assert harness.begin(L1, connection="B") == "200"  # B's own, of the same key
    assert harness.put(L1, b"of B", connection="B") == "200"
    assert harness.commit(L1, connection="A") == "200"
    assert harness.bodies() == [b"of A"]
    assert harness.commit(L1, connection="B") == "200"
    assert harness.bodies() == [b"of A", b"of B"]
