"""Transactions over the wire against a real broker: XA through a crash, batches, decisions, lost connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, wait_until
from text_protocol import block_of, bodies, get, placed

from metaq.formats.frames import walk
from metaq.formats.message_id import IdRange
from metaq.model import LocalTransactionId, TransactionId, Xid
from metaq.protocols.text.commands import Decide, Put, PutBatch, TransactionCommand, TransactionType
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process

XIDS = [Xid(1, b"query", b"branch-%d" % number, "job") for number in range(3)]


def step(
    client: WireClient, type_: TransactionType, key: TransactionId | None, unique: str | None = None
) -> tuple[int, str]:
    return client.result(encode(TransactionCommand(key, "s", type_, 7, None, unique)))


def tx_put(client: WireClient, key: TransactionId, body: bytes, topic: str = "t") -> tuple[int, str]:
    return client.result(encode(Put(topic, 0, body, 0, 7, -1, key)))


def begin_with(client: WireClient, key: TransactionId, body: bytes) -> None:
    assert step(client, "BEGIN", key) == (200, "")
    code, text = tx_put(client, key, body)
    assert (code, text.endswith(" 0 -1")) == (200, True)


def test_the_extensions_are_announced(dev_broker: RunningBroker) -> None:
    code, text = dev_broker.client().result(b"version 1\r\n")
    words = "boundary,timestamp,mput,decide,decisions,contents,decided-contents,fget,ordinal,incarnation,segments,copy,"
    words += "state,group"
    assert (code, text.partition(";")[2]) == (200, f"ext={words}")


def test_a_prepared_transaction_survives_kill_9_and_an_open_one_does_not(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    client = broker.client()
    begin_with(client, XIDS[0], b"prepared")
    begin_with(client, XIDS[1], b"open")
    assert step(client, "PREPARE", XIDS[0]) == (200, "0")
    broker.kill()
    client = start_broker("dev", tmp_path / "data", "--port", "0").client()
    assert step(client, "RECOVER", None, "job") == (200, str(XIDS[0]))
    assert step(client, "RECOVER", None, "other") == (200, "")
    code, text = step(client, "COMMIT_ONE_PHASE", XIDS[1])
    assert (code, text) == (500, f"XAException:code=-4,msg=XA transaction '{XIDS[1]}' has not been started.")
    assert placed(client.ask(encode(Put("t", 0, b"plain", 0, 1, -1))))[2] == 0
    assert step(client, "COMMIT_TWO_PHASE", XIDS[0]) == (200, "")
    assert bodies(client.value(get("t", 0))) == [b"plain", b"prepared"]
    assert step(client, "RECOVER", None) == (200, "")


def test_a_batch_inside_a_transaction(dev_broker: RunningBroker) -> None:
    client = dev_broker.client()
    assert step(client, "BEGIN", XIDS[0]) == (200, "")
    request = encode(PutBatch("t", 1, block_of(b"a", b"b", b"c"), 3, 7, XIDS[0]))
    first_id, partition, offset = placed(client.ask(request))
    assert (partition, offset) == (1, -1)
    assert client.result(get("t", 0, partition=1))[0] == 404
    assert step(client, "COMMIT_ONE_PHASE", XIDS[0]) == (200, "")
    frames = list(walk(client.value(get("t", 0, partition=1))))
    assert [frame.body for frame in frames] == [b"a", b"b", b"c"]
    assert [frame.message_id for frame in frames] == list(IdRange.starting_at(first_id, 3))


def test_puts_inside_a_transaction_are_counted_with_the_size_of_their_bodies(dev_broker: RunningBroker) -> None:
    client = dev_broker.client()
    begin_with(client, XIDS[0], b"four")
    assert client.ask(encode(PutBatch("t", 1, block_of(b"a", b"bc"), 2, 7, XIDS[0])))
    assert "realtime_message_size Count=3,Value=7," in client.result(b"stats realtime 1\r\n")[1]


def test_a_decision_commits_and_answers_a_replay_with_the_first(
    dev_broker: RunningBroker,
) -> None:
    client = dev_broker.client()
    for xid in XIDS[:2]:
        begin_with(client, xid, xid.branch)
        assert step(client, "PREPARE", xid) == (200, "0")
    assert client.result(encode(Decide("query", 4, (XIDS[0],), 7))) == (200, str(XIDS[0]))
    assert client.result(encode(Decide("query", 4, (XIDS[1],), 7))) == (200, str(XIDS[0]))
    assert step(client, "COMMIT_TWO_PHASE", XIDS[0]) == (200, "")
    assert bodies(client.value(get("t", 0))) == [XIDS[0].branch]
    assert client.result(encode(Decide("query", 3, (XIDS[1],), 7)))[0] == 409
    assert step(client, "ROLLBACK", XIDS[1]) == (200, "")


def test_a_lost_connection_rolls_its_local_transactions_back(dev_broker: RunningBroker) -> None:
    client, key = dev_broker.client(), LocalTransactionId("s", 1)
    begin_with(client, key, b"never")
    client.close()
    other = dev_broker.client()
    wait_until(lambda: "tx_rollback 1\r" in other.result(b"stats  1\r\n")[1], "the transaction is rolled back")
    assert other.result(get("t", 0)) == (404, "Could not find message at position 0")


def test_steps_may_be_sent_without_waiting(dev_broker: RunningBroker) -> None:
    client, key = dev_broker.client(), LocalTransactionId("s", 1)
    client.send(
        encode(TransactionCommand(key, "s", "BEGIN", 1))
        + encode(Put("t", 0, b"one", 0, 2, -1, key))
        + encode(TransactionCommand(key, "s", "END", 3))
        + encode(TransactionCommand(key, "s", "COMMIT_ONE_PHASE", 4))
        + get("t", 0, 5)
    )
    assert [reply.opaque for reply in client.replies(3)] == [1, 2, 4]
    value = client.reply()
    assert bodies(value.data) == [b"one"]  # type: ignore[union-attr]


def test_what_was_decided_last_and_the_end_of_a_query(dev_broker: RunningBroker) -> None:
    client = dev_broker.client()
    assert step(client, "DECIDED", None, "job") == (200, "")
    begin_with(client, XIDS[0], b"kept")
    assert step(client, "PREPARE", XIDS[0]) == (200, "0")
    assert step(client, "DECIDED_CONTENTS", None, "job") == (200, "")
    assert client.result(encode(Decide("job", 12, (XIDS[0],), 7))) == (200, str(XIDS[0]))
    assert step(client, "DECIDED_CONTENTS", None, "job") == (200, "12\r\n")
    assert client.result(encode(Decide("job", 13, (), 7, '{"version":1}'))) == (200, '{"version":1}')
    assert step(client, "DECIDED_CONTENTS", None, "job") == (200, '13\r\n{"version":1}')
    assert step(client, "COMMIT_TWO_PHASE", XIDS[0]) == (200, "")  # answered when it is readable
    assert step(client, "DECIDED", None, "job") == (200, "13")
    begin_with(client, XIDS[1], b"late")
    assert step(client, "FORGET", None, "job") == (200, "")
    assert step(client, "DECIDED", None, "job") == (200, "")
    code, text = step(client, "PREPARE", XIDS[1])
    assert (code, text) == (500, f"XAException:code=-6,msg=query job of XA transaction '{XIDS[1]}' is over")
    assert step(client, "ROLLBACK", XIDS[1]) == (200, "")
    assert step(client, "BEGIN", XIDS[2])[0] == 500
    assert step(client, "BEGIN", Xid(1, b"query", b"branch-2", "another")) == (200, "")
    assert bodies(client.value(get("t", 0))) == [b"kept"]
    assert step(client, "FORGET", None) == (500, "XAException:code=-4,msg=Null xid")
