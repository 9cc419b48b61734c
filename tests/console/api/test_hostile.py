"""Hostile names, payloads and clients: NUL, right-to-left, markup, long values, slow and absurd requests."""

from __future__ import annotations

import base64
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest
from http_server import serving

from metaq.testing.memory_server import MemoryServer

if TYPE_CHECKING:
    from starlette.testclient import TestClient

SCRIPT = "<script>alert(1)</script>"
RIGHT_TO_LEFT = "\u202egnp.exe\u202c"
HOSTILE = [
    SCRIPT,
    RIGHT_TO_LEFT,
    "a\x00b",
    "\ufeff",
    "\x1b[2J\x07",
    "{{7*7}}",
    "'; DROP TABLE t; --",
    "\U0001f375" * 50,
]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_payload_comes_back_as_it_is_and_as_ascii(
    console: TestClient, metaq_memory: MemoryServer, value: str
) -> None:
    metaq_memory.client().producer().send("orders", value)
    answer = console.get("/v1/topics/orders/messages")
    assert answer.json()["messages"][0]["value"] == value
    assert answer.content.isascii()
    assert b"\x00" not in answer.content
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", [SCRIPT, RIGHT_TO_LEFT, "a b", "x" * 300, "..", "%00", "a\r\nquit"])
def test_a_hostile_topic_name_is_no_other_command(console: TestClient, metaq_memory: MemoryServer, name: str) -> None:
    for path in ("", "/partitions", "/messages"):
        answer = console.get(f"/v1/topics/{quote(name, safe='')}{path}")
        assert answer.status_code in (200, 307, 400, 404, 409, 502), answer.text
        assert answer.content.isascii()
    answer = console.post(f"/v1/topics/{quote(name, safe='')}/messages", json={"messages": [{"value": "x"}]})
    assert answer.status_code in (200, 400, 404, 405, 409)
    assert not any("\r" in str(command) for command in metaq_memory.broker.commands)


def test_an_error_repeats_a_hostile_value_escaped_and_shortened(console: TestClient) -> None:
    answer = console.get("/v1/topics", params={"count": SCRIPT + "x" * 10_000})
    assert answer.status_code == 400
    assert len(answer.content) < 400


def test_a_value_of_four_mebibytes(console: TestClient, metaq_memory: MemoryServer) -> None:
    value = bytes(range(256)) * (4 << 12)
    body = {"messages": [{"value_base64": base64.b64encode(value).decode()}]}
    assert console.post("/v1/topics/orders/messages", json=body).json()["failed"] == 0
    [message] = console.get("/v1/topics/orders/messages").json()["messages"]
    assert (message["size"], message["is_cut"]) == (4 << 20, True)
    assert len(base64.b64decode(message["value_base64"])) == 64 << 10
    assert console.get(f"/v1/topics/orders/messages/0-0/{message['offset']}/value").content == value


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "the body is not JSON: "),
        (b"[" * 100_000, 400, "the body is not JSON: "),
        (b'{"messages": [{"value": NaN}]}', 400, "the body is not JSON: NaN is no number of JSON"),
        (b"\xff\xfe", 400, "the body is not JSON: "),
        (b'{"messages": []}', 400, "body.messages: 'of 0 items'; expected 1..100 items"),
        (b'{"messages": [{"valeu": "x"}]}', 400, "body.messages[0].valeu: 'an unknown field'; expected value, "),
        (b'{"messages": [{"value": 1}]}', 400, "body.messages[0].value: 1; expected a text"),
        (b'{"messages": [{"value_base64": "%"}]}', 400, "body.messages[0].value_base64: '%'; expected Base64"),
        (b'{"messages": [{"value": "\\ud800"}]}', 400, "body.messages[0].value: "),
        (b"{}", 400, "body.messages: is missing"),
    ],
)
def test_a_body_that_is_wrong(console: TestClient, body: bytes, status: int, sentence: str) -> None:
    answer = console.post("/v1/topics/orders/messages", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(sentence)


def test_a_body_of_another_type(console: TestClient) -> None:
    answer = console.post("/v1/topics/orders/messages", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "wrong_content_type")


def test_each_message_of_a_put_that_cannot_be_sent_says_why(console: TestClient) -> None:
    body = {"messages": [{"value": "x", "properties": {"a": "b"}}]}
    answer = console.post("/v1/topics/orders/messages", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "properties: MetaQ stores none; allowed with a RocketMQ cluster",
    )


@pytest.mark.process
def test_clients_that_send_nothing_or_nonsense_stop_nobody(metaq_memory: MemoryServer) -> None:
    with serving("--cluster", metaq_memory.cluster) as url:
        address = urlsplit(url)
        assert address.hostname is not None
        where = (address.hostname, address.port)
        idle = [socket.create_connection(where, 60) for _ in range(30)]
        for number, each in enumerate(idle):
            each.sendall([b"", b"GET /v1/server HTTP/1.1\r\nHost: ", b"\x00\xff\r\n\r\n", b"A" * 70_000][number % 4])
        with socket.create_connection(where, 60) as client:
            client.sendall(b"GET /v1/server HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["system"] == "metaq"
        for each in idle:
            each.close()
