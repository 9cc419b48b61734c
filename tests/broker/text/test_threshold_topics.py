"""A topic in threshold mode: puts are acknowledged early, transactions never."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, write_ini
from test_text_transactions import XIDS, begin_with, step, tx_put
from text_protocol import block_of, bodies, get, placed

from metaq.model import LocalTransactionId
from metaq.protocols.text.commands import Put, PutBatch, Result
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process

NEVER = "unflushThreshold=1000\nunflushInterval=3600*1000\n"


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    """Topic ``t`` is not synced by itself for an hour."""
    return start_broker("start", "-f", write_ini(tmp_path, f"[topic=t]\n{NEVER}"))


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[WireClient]:
    with closing(broker.client()) as client:
        yield client


def not_yet(broker: RunningBroker) -> bool:
    with closing(broker.client()) as client:
        reply = client.ask(get("t", 0))
    return isinstance(reply, Result) and reply.code == 404


def test_puts_are_acknowledged_before_they_can_be_read(broker: RunningBroker, client: WireClient) -> None:
    assert placed(client.ask(encode(Put("t", 0, b"one", 0, 1, -1))))[2] == 0
    block = block_of(b"two", b"three")
    assert placed(client.ask(encode(PutBatch("t", 0, block, 2, 2))))[2] == 23
    assert not_yet(broker)


def test_a_commit_is_readable_as_soon_as_it_is_answered(client: WireClient) -> None:
    client.ask(encode(Put("t", 0, b"plain", 0, 1, -1)))
    begin_with(client, LocalTransactionId("s", 1), b"local")
    assert step(client, "COMMIT_ONE_PHASE", LocalTransactionId("s", 1)) == (200, "")
    assert bodies(client.value(get("t", 0))) == [b"plain", b"local"]
    for number, last in ((0, "COMMIT_ONE_PHASE"), (1, "COMMIT_TWO_PHASE")):
        begin_with(client, XIDS[number], b"xa %d" % number)
        assert tx_put(client, XIDS[number], b"more")[0] == 200
        if last == "COMMIT_TWO_PHASE":
            assert step(client, "PREPARE", XIDS[number]) == (200, "0")
        assert step(client, last, XIDS[number]) == (200, "")
        assert bodies(client.value(get("t", 0)))[-2:] == [b"xa %d" % number, b"more"]
