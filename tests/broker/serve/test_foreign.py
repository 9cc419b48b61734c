"""Clients of other protocols are known by their first bytes, whichever port they meet."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from local_servers import broker_thread, running_name_server
from metaq_broker.serve.foreign import METAQ, ROCKETMQ, foreign_client

from metaq.model import Address
from metaq.testing.ports import free_port

TLS_HELLO = bytes.fromhex("16030100c8010000c40303")
FRAME = bytes.fromhex("000000a80000005b7b22636f")


@pytest.mark.parametrize(
    ("first", "of_metaq", "of_rocketmq"),
    [
        (TLS_HELLO, "TLS", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP", "HTTP"),
        (b"POST /put HTTP/1.", "HTTP", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP", "HTTP"),
        (FRAME, "RocketMQ", None),
        (b"version 1\r\n", None, "MetaQ"),
        (b"put t 0 3 0 1\r\n", None, "MetaQ"),
        (b"get t g 0 0 1 1", None, "MetaQ"),
        (b"GET", None, None),
        (b"nonsense", None, None),
        (b"", None, None),
    ],
)
def test_first_bytes(first: bytes, of_metaq: str | None, of_rocketmq: str | None) -> None:
    found = [foreign_client(first, own) for own in (METAQ, ROCKETMQ)]
    assert [each and each.protocol for each in found] == [of_metaq, of_rocketmq]


def answer(address: Address, request: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    with socket.create_connection((address.host, address.port), 60) as client:
        client.sendall(request)
        received = b""
        while chunk := client.recv(4096):
            received += chunk
        return received


def test_they_are_answered_in_their_protocol_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    rest = f"[topic=*]\n[rocketmq]\nenabled=true\nport={port}\nbrokerIP1=127.0.0.1\n"
    with broker_thread(tmp_path, rest) as metaq, running_name_server(tmp_path / "name-server") as name_server:
        of_rocketmq = (Address("127.0.0.1", port), name_server.address)
        for address, own in ((metaq, "MetaQ"), *((each, "RocketMQ") for each in of_rocketmq)):
            head, _, text = answer(address, b"GET /topics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert text.decode() == f"This port is for clients of {own}, not for HTTP.\n"
            assert answer(address, TLS_HELLO) == bytes.fromhex("15030300020228")
        assert answer(metaq, FRAME) == b""
        assert [answer(each, b"version 1\r\n") for each in of_rocketmq] == [b"", b""]
    warned = [record for record in caplog.records if "speaks another protocol" in record.getMessage()]
    spoken = [(record.fields["speaks"], record.fields["port_speaks"]) for record in warned]  # type: ignore[attr-defined]
    assert spoken == [
        ("HTTP", "MetaQ"), ("TLS", "MetaQ"), *[("HTTP", "RocketMQ"), ("TLS", "RocketMQ")] * 2, ("RocketMQ", "MetaQ"),
        *[("MetaQ", "RocketMQ")] * 2,
    ]  # fmt: skip
