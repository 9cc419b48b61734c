"""Clients of earlier versions on the broker's machine ask where its files are: the answer sends them to the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker, WireClient, write_ini

from metaq.backends.metaq.puts import encode_block
from metaq.formats.frames import walk
from metaq.model import Message
from metaq.protocols.text.commands import PutBatch
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process

PAYLOAD = b"x" * 500


@pytest.fixture(params=["", "localReads=true\n", "localReads=false\n"], ids=["default", "true", "false"])
def client(request: pytest.FixtureRequest, start_broker: StartBroker, tmp_path: Path) -> Iterator[WireClient]:
    """A connection to a broker with a message, whose configuration may still have the former key."""
    broker = start_broker("start", "-f", write_ini(tmp_path, f"{request.param}[topic=t]\n"))
    assert ("localReads: ignored" in broker.log_text()) == bool(request.param)
    with closing(broker.client()) as client:
        assert client.result(encode(PutBatch("t", 0, *encode_block([Message(PAYLOAD)]), 1)))[0] == 200
        yield client


def test_the_extension_is_not_announced(client: WireClient) -> None:
    code, text = client.result(b"version 1\r\n")
    assert code == 200
    assert "boundary" in text.partition(";ext=")[2].split(",")
    assert "file" not in text.partition(";ext=")[2].split(",")


def test_the_question_for_a_file_is_refused_and_the_get_that_follows_is_answered(client: WireClient) -> None:
    code, text = client.result(b"offset t metaq-spark 0 0 2 file\r\n")
    assert (code, text) == (503, "this broker does not tell where its files are; send a get")
    (frame,) = walk(client.value(b"get t metaq-spark 0 0 520 3\r\n"))
    assert frame.message.payload == PAYLOAD


@pytest.mark.parametrize("place", [b"t g 7 0", b"t g 0 -5", b"other g 0 0"])
def test_a_question_for_what_is_not_there_has_the_same_answer(client: WireClient, place: bytes) -> None:
    assert client.result(b"offset %b 2 file\r\n" % place)[0] == 503
