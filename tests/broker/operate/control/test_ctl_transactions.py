"""``ctl transactions`` and ``transaction``: ending by hand what a coordinator left behind."""

from __future__ import annotations

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient
from operated import ask, ctl, get, read, refusal, report

pytestmark = pytest.mark.process

XID = "XID:1:6162:63:query"


def prepare(client: WireClient, key: str = XID, bodies: tuple[bytes, ...] = (b"hello", b"world")) -> None:
    requests = [f"transaction {key} null BEGIN 1\r\n".encode()]
    requests += [b"put orders %d %d 0 %s 2\r\n%b" % (n, len(body), key.encode(), body) for n, body in enumerate(bodies)]
    requests += [f"transaction {key} null PREPARE 3\r\n".encode()]
    for request in requests:
        assert client.result(request)[0] == 200


def step(client: WireClient, word: str, key: str = XID) -> tuple[int, str]:
    return client.result(f"transaction {key} null {word} 9\r\n".encode())


def test_prepared_transactions_are_listed(broker: RunningBroker) -> None:
    assert ask(broker, "transactions") == {"prepared": [], "ended_by_hand": []}
    assert report(broker, "transactions") == ["no prepared transactions"]
    prepare(broker.client())
    [row] = ask(broker, "transactions")["prepared"]
    assert 0 <= row.pop("age_ms") < 60_000
    partition_keys = [{"topic": "orders", "index": 0}, {"topic": "orders", "index": 1}]
    assert row == {"key": XID, "messages": 2, "bytes": 50, "partitions": partition_keys}
    head, line = report(broker, "transactions")
    assert head.split() == ["PREPARED", "AGE", "MESSAGES", "SIZE", "PARTITIONS"]
    assert line.split() == [XID, "0", "s", "2", "50", "B", "orders-0", "orders-1"]
    assert ask(broker, "status")["transactions"]["prepared"] == 1


def test_one_that_survived_a_crash_is_committed_by_hand(
    broker: RunningBroker, ini: object, start_broker: StartBroker
) -> None:
    prepare(broker.client())
    broker.kill()
    again = start_broker("start", "-f", str(ini))
    client = again.client()
    assert client.result(get("orders", 0))[0] == 404
    assert report(again, "transaction", "commit", XID) == [f"committed {XID}"]
    assert (read(client, "orders", 0), read(client, "orders", 1)) == ([b"hello"], [b"world"])
    assert report(again, "transactions") == [f"completed manually: {XID} (committed)"]
    assert step(client, "COMMIT_TWO_PHASE") == (
        500,
        f"XAException:code=7,msg=XA transaction '{XID}' has been heuristically committed.",
    )
    assert report(again, "transaction", "forget", XID) == [f"forgotten {XID}"]
    assert ask(again, "transactions") == {"prepared": [], "ended_by_hand": []}


@pytest.mark.parametrize(("word", "outcome"), [("rollback", "rolled_back"), ("complete", "completed")])
def test_ended_without_its_messages(word: str, outcome: str, broker: RunningBroker) -> None:
    client = broker.client()
    prepare(client)
    assert ask(broker, "transaction", word, XID) == {"key": XID, "outcome": outcome}
    assert ask(broker, "transactions") == {"prepared": [], "ended_by_hand": [{"key": XID, "outcome": outcome}]}
    assert client.result(get("orders", 0))[0] == 404
    assert step(client, "ROLLBACK")[0] == 500
    assert step(client, "FORGET")[0] == 200
    assert ask(broker, "transactions")["ended_by_hand"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["commit", XID], f"XA transaction '{XID}' has not been started."),
        (["forget", XID], f"nothing is remembered of transaction {XID}"),
    ],
)
def test_unknown_keys(arguments: list[str], sentence: str, broker: RunningBroker) -> None:
    assert refusal(broker, "transaction", *arguments) == sentence


def test_only_prepared_ones_can_be_ended(broker: RunningBroker) -> None:
    client = broker.client()
    assert step(client, "BEGIN")[0] == 200
    assert refusal(broker, "transaction", "commit", XID) == "Only a prepared transaction can be ended by an operator."
    assert refusal(broker, "transaction", "rollback", "TX:abc:1").startswith("Local transaction 'TX:abc:1'")
    assert ctl("--data", broker.data, "transaction", "commit", "nonsense").status == 2
