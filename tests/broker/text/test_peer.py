"""The other broker of a pair: what its answers mean, and what is none."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fix_broker import DEADLINE_S
from fix_tls import Certificates
from listeners import Listener
from local_servers import broker_thread, running_name_server
from metaq_broker.replication.gregor import PROMOTED
from metaq_broker.replication.peer import (
    CopiedMessage,
    CopiedRun,
    Declined,
    FetchedRun,
    PeerLost,
    SlavePromoted,
    StoredMessage,
    StoredRange,
)
from metaq_broker.text.peer import TextPeer, parse_segments

from metaq.errors import ProtocolError
from metaq.model import Address
from metaq.net import identification
from metaq.protocols.text.commands import Command, Reply, Result, Value
from metaq.protocols.text.encode import encode

A = "a" * 32
AT = ("t", 0)


class ScriptedLink:
    """Answers each command with the next reply of a list, and keeps what was sent."""

    address, gone = Address("slave", 1), asyncio.Event()

    def __init__(self, *replies: Reply, extensions: frozenset[str] = frozenset()) -> None:
        self.extensions, self.sent = extensions, list[bytes]()
        self._replies = list(replies)

    def send(self, make: Callable[[int], Command]) -> Reply:
        self.sent.append(encode(make(len(self.sent) + 1)))
        return self._replies.pop(0)

    async def settle(self, reply: Reply) -> Reply:
        return reply

    async def ask(self, make: Callable[[int], Command]) -> Reply:
        return self.send(make)

    def check(self) -> None: ...

    async def close(self) -> None: ...


def answer(call: Callable[[TextPeer], Coroutine[Any, Any, object]], *replies: Reply) -> tuple[object, list[bytes]]:
    """Return what a call makes of the replies to its commands, and those commands."""
    link = ScriptedLink(*replies)
    return asyncio.run(call(TextPeer(link))), link.sent  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replies", "found"),
    [
        ((Result(200, "20", 1), Value(b"abc", 2)), FetchedRun(20, b"abc")),
        ((Result(200, "20", 1), Result(404, "none", 2)), Declined("404 none", absent=True)),
        ((Result(200, "20", 1), Result(500, "no", 2)), Declined("500 no")),
        ((Result(404, "x", 1), Value(b"abc", 2)), Declined("its segment is not known: 404 x")),
        ((Result(200, "20", 1), Value(b"", 2)), Declined("nothing, though there is something")),
    ],
)
def test_a_run_and_its_segment_are_asked_for_at_once(replies: tuple[Reply, ...], found: object) -> None:
    got, sent = answer(lambda peer: peer.fetch(AT, "g", 30, 100), *replies)
    assert got == found
    assert sent == [b"offset t g 0 30 1\r\n", b"get t g 0 30 100 2\r\n"]


REFUSED = Result(500, "Checksum failure", 1)


def test_partitions_are_opened_by_what_is_not_stored() -> None:
    found, sent = answer(
        lambda peer: peer.opened([AT, ("u", 3)], "g"),
        *(REFUSED, Result(500, "wrong partition 3", 2)),
        *(Result(200, "10", 3), Result(200, "90", 4)),
        *(Result(404, "none", 5), Result(404, "none", 6)),
    )
    assert found == [StoredRange(10, 90), Declined("500 wrong partition 3")]
    assert sent == [
        *(b"sync t 0 0 0 0 1 1\r\n", b"sync u 3 0 0 0 1 2\r\n"),
        *(b"offset t g 0 0 3\r\n", b"offset t g 0 9223372036854775807 4\r\n"),
        *(b"offset u g 3 0 5\r\n", b"offset u g 3 9223372036854775807 6\r\n"),
    ]


def test_a_slave_that_stores_a_message_whose_checksum_is_wrong() -> None:
    with pytest.raises(ProtocolError, match="was not refused"):
        answer(lambda peer: peer.opened([AT], "g"), Result(200, "0 0 0", 1))
    with pytest.raises(SlavePromoted):
        answer(lambda peer: peer.opened([AT], "g"), Result(403, PROMOTED, 1))


def test_bytes_of_topics() -> None:
    texts = "STATS\r\nt\r\nresultCode 0\r\nmessage_count 2\r\nbytes 48\r\nEND\r\n", "STATS\r\nEND\r\n"
    found, sent = answer(lambda peer: peer.stored_bytes(["t", "help"]), *(Result(200, text, 1) for text in texts))
    assert found == [48, None]
    assert sent == [b"stats t 1\r\n", b"stats help 2\r\n"]


PIECE = CopiedRun(AT, b"frames", 30, 20, 10, 3, A)


@pytest.mark.parametrize(
    ("reply", "found"),
    [(Result(200, "36", 1), 36), (Result(301, "30", 1), Declined("301 30")), (Result(200, "x", 1), Declined("200 x"))],
)
def test_a_chunk_of_log_is_sent_with_its_offset_and_its_segment(reply: Reply, found: object) -> None:
    got, sent = answer(lambda peer: peer.copy(PIECE), reply)
    assert got == found
    assert sent == [f"copy t 0 6 30 20 10 3 {A} 1\r\nframes".encode()]


MESSAGES = [CopiedMessage(AT, 7 + number, 0, b"m%d" % number, 9) for number in range(2)]


def test_messages_are_sent_together_and_each_answer_is_reported() -> None:
    got, sent = answer(lambda peer: peer.store(MESSAGES), Result(200, "7 0 22", 1), Result(200, "8 0", 2))
    assert got == [StoredMessage(7, 0, 22), Declined("200 8 0")]
    assert sent == [b"sync t 0 2 0 7 9 1\r\nm0", b"sync t 0 2 0 8 9 2\r\nm1"]


@pytest.mark.parametrize("call", [lambda peer: peer.copy(PIECE), lambda peer: peer.store(MESSAGES[:1])])
def test_a_slave_that_was_promoted_is_no_refusal_of_one_chunk(
    call: Callable[[TextPeer], Coroutine[Any, Any, object]],
) -> None:
    with pytest.raises(SlavePromoted, match="slave:1 was promoted"):
        answer(call, Result(403, PROMOTED, 1))


def test_segments_are_read_and_what_has_no_incarnation_yet_is_left_out() -> None:
    text = f"STATS\r\na-b 1 {A} 10 20 30\r\nnew 0 - 0 0 0\r\nEND\r\n"
    assert parse_segments(text) == {("a-b", 1): StoredRange(10, 30, A, 20)}


@pytest.mark.parametrize("text", ["", "STATS\r\n", "STATS\r\na 1 x 1 2 3\r\nEND\r\n", "STATS\r\na 1\r\nEND\r\n"])
def test_what_is_no_answer_to_stats_segments(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_segments(text)


@contextmanager
def http_server() -> Iterator[Address]:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("RocketMQ", "a RocketMQ server, not a MetaQ broker; check the port"),
        ("HTTP", "an HTTP server, not a MetaQ broker; check the port"),
        ("TLS", "a server that requires TLS, and brokers connect to each other without; use a tunnel"),
    ],
)
def test_another_kind_of_server_is_named(
    kind: str, found: str, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identification, "PROBE_S", 3.0)  # a busy machine
    with ExitStack() as stack:
        match kind:
            case "RocketMQ":
                address = stack.enter_context(running_name_server(tmp_path)).address
            case "HTTP":
                address = stack.enter_context(http_server())
            case _:
                keys = dict(line.split("=", 1) for line in certificates.server_keys.split())
                address = stack.enter_context(broker_thread(tmp_path, **keys))
        with pytest.raises(PeerLost, match=f"broker {address}: it is {found}"):
            asyncio.run(TextPeer.connect(address, DEADLINE_S))
        monkeypatch.setattr("metaq_broker.text.link.identify", lambda _: pytest.fail("it is known"))
        with pytest.raises(PeerLost, match=f"broker {address}: it is {found}"):
            asyncio.run(TextPeer.connect(address, DEADLINE_S))


def test_a_broker_that_ends_the_connection_is_lost() -> None:
    def ends(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.close()

    with Listener(ends) as listener, pytest.raises(PeerLost, match="it closed the connection"):
        asyncio.run(TextPeer.connect(listener.address, DEADLINE_S))
