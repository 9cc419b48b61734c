"""What every request passes: host, site of origin, token, size; and the headers of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from metaq_console.security.hosts import AllowedHosts
from starlette.testclient import TestClient

from metaq.testing.memory_server import MemoryServer

if TYPE_CHECKING:
    from fix_console import StartConsole

TOKEN = "a-secret-of-some-length"
PUT = {"messages": [{"value": "one tea"}]}


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        *(("127.0.0.1:8120", True), ("localhost", True), ("LOCALHOST:80", True), ("[::1]:8120", True)),
        *(("10.1.2.3", True), ("console.example.org:443", True)),
        *(("evil.example", False), ("", False), ("127.0.0.1.evil.example", False), ("a b", False), ("x@y", False)),
    ],
)
def test_hosts(host: str, is_allowed: bool) -> None:
    assert AllowedHosts(["console.example.org"]).allows(host) is is_allowed


def test_another_host_is_refused(console: TestClient) -> None:
    answer = console.get("/v1/server", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "wrong_host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    console: TestClient, metaq_memory: MemoryServer, headers: dict[str, str]
) -> None:
    answer = console.post("/v1/topics/orders/messages", json=PUT, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_site")
    assert metaq_memory.client().cluster.topics() == {}


def test_a_page_of_this_server_may(console: TestClient) -> None:
    headers = {"Origin": "http://127.0.0.1:8120", "Sec-Fetch-Site": "same-origin"}
    answer = console.post("/v1/topics/orders/messages", json=PUT, headers=headers)
    assert (answer.status_code, answer.json()["failed"]) == (200, 0)


def test_nothing_is_changed_without_write(metaq_memory: MemoryServer, start_console: StartConsole) -> None:
    console = start_console(metaq_memory.cluster)
    answer = console.post("/v1/topics/orders/messages", json=PUT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")
    assert metaq_memory.client().cluster.topics() == {}


def test_a_token_is_asked_for(metaq_memory: MemoryServer, start_console: StartConsole) -> None:
    console = start_console(metaq_memory.cluster, token=TOKEN)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Cookie": f"metaq_token={TOKEN}"},
    ):
        answer = console.get("/v1/server", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="metaq"')
    assert console.get("/v1/server", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("length", ["1100000", "-1", "x"])
def test_a_body_that_is_too_long_is_refused_before_it_is_read(console: TestClient, length: str) -> None:
    headers = {"Content-Length": length, "Content-Type": "application/json"}
    answer = console.post("/v1/scans", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_long")


def test_a_body_without_a_length_is_counted(console: TestClient) -> None:
    pieces = (b" " * 100_000 for _ in range(11))
    answer = console.post("/v1/scans", content=pieces, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_long")


@pytest.mark.parametrize("path", ["/v1/server", "/v1/nothing", "/v1/topics?count=0"])
def test_every_answer_forbids_scripts_and_frames_of_others(console: TestClient, path: str) -> None:
    headers = console.get(path).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
