"""The API's answers about topics and messages, from a broker in memory."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from metaq.testing.memory_server import MemoryServer


def get(console: TestClient, path: str, status: int = 200) -> Any:
    answer = console.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def error(console: TestClient, path: str, status: int) -> str:
    found: str = get(console, path, status)["error"]["message"]
    return found


def test_the_server_says_what_it_is_for(console: TestClient, metaq_memory: MemoryServer) -> None:
    found = get(console, "/v1/server")
    assert (found["system"], found["cluster"], found["write"]) == ("metaq", metaq_memory.cluster, True)


def test_messages_are_read_from_the_first_one_on(console: TestClient, metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send_many("orders", ["one tea", "two scones", "three cups"])
    found = get(console, "/v1/topics/orders/messages?limit=2")
    assert [one["value"] for one in found["messages"]] == ["one tea", "two scones"]
    assert found["scan"]["stopped"] == "limit"
    offset = found["scan"]["positions"]["0-0"]
    found = get(console, f"/v1/topics/orders/messages?partition=0-0&offset={offset}")
    assert [one["value"] for one in found["messages"]] == ["three cups"]
    assert (found["scan"]["stopped"], found["scan"]["left"], found["scan"]["fraction"]) == ("end", 0, 1.0)


def test_a_value_that_is_not_text_comes_as_base64_and_whole_as_a_download(
    console: TestClient, metaq_memory: MemoryServer
) -> None:
    sent = metaq_memory.client().producer().send("orders", b"\xff\x00<script>")
    [message] = get(console, "/v1/topics/orders/messages")["messages"]
    assert (message["value"], message["value_base64"], message["size"]) == (None, "/wA8c2NyaXB0Pg==", 10)
    answer = console.get(f"/v1/topics/orders/messages/0-0/{sent.offset}/value")
    assert answer.content == b"\xff\x00<script>"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_long_value_is_cut_between_characters(console: TestClient, metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send("orders", "茶" * 100)
    [message] = get(console, "/v1/topics/orders/messages?value_bytes=10")["messages"]
    assert (message["value"], message["is_cut"], message["size"]) == ("茶茶茶", True, 300)


def test_a_search_says_how_far_it_got(console: TestClient, metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send_many("orders", [f"order {number}" for number in range(100)])
    found = get(console, "/v1/topics/orders/messages?contains=order+42&read_max=50")
    assert [one["value"] for one in found["messages"]] == ["order 42"]
    assert (found["scan"]["read"], found["scan"]["stopped"]) == (50, "read")
    assert 0.4 < found["scan"]["fraction"] < 0.6


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/v1/topics?count=0", 400, "parameter count: '0'; expected a whole number, 1..500"),
        ("/v1/topics?coutn=1", 400, "parameter 'coutn': 'unknown'; expected count, descending, sort, start, text"),
        ("/v1/topics?count=1&count=2", 400, "parameter count: 'given 2 times'; expected once"),
        ("/v1/topics/orders/messages?offset=3", 409, "parameter offset: needs partition"),
        (
            "/v1/topics/orders/messages?since_ms=2&until_ms=1",
            409,
            "until_ms=1: expected at least since_ms (2)",
        ),
        ("/v1/nothing", 404, "/v1/nothing: there is nothing here"),
        ("/v1/scans/abc", 404, "there is no scan 'abc'; it may be too old"),
    ],
)
def test_a_wrong_request_gets_one_sentence(console: TestClient, path: str, status: int, sentence: str) -> None:
    assert error(console, path, status) == sentence
