"""Clients that send nothing, that stop in the middle, or that read nothing, are not waited for."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from metaq_console.app import create_app
from metaq_console.connection import BoundedConnection
from metaq_console.console import make_console
from metaq_console.settings import ConsoleSettings
from waiting import ATTEMPTS

from metaq.client.profile import Profile
from metaq.testing.memory_server import MemoryServer

DEADLINE_S = 30.0
PIECE = bytes(1 << 20)
PIECES = 64
App = Callable[..., Awaitable[None]]


class QuickConnection(BoundedConnection):
    request_s = 0.3
    unread_s = 0.3


class SlowConnection(BoundedConnection):
    request_s = 30.0
    unread_s = 0.5


@contextmanager
def served(app: App, connection: type[BoundedConnection] = QuickConnection) -> Iterator[socket.socket]:
    """Serve ``app``, and yield a connection to it whose buffer is small."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=connection, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.settimeout(DEADLINE_S)
            client.connect(listener.getsockname())
            yield client
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)


async def read_body(scope: dict[str, Any], receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def read_to_end(client: socket.socket) -> bytes:
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/server HTTP/1.1\r\nHost: ",
        b"POST /v1/scans HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHo",
    ],
    ids=["nothing", "half a head", "half a body", "half a second request"],
)
def test_a_request_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    with served(read_body) as client:
        client.sendall(sent)
        found = read_to_end(client)
    assert found.count(b"200 OK") == sent.count(b"\r\n\r\nGET")


def test_a_request_that_is_whole_has_the_time_it_needs() -> None:
    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await asyncio.sleep(3 * QuickConnection.request_s)
        await read_body(scope, receive, send)

    with served(slow) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert read_to_end(client).endswith(b"ok")


class LongAnswer:
    """An application that answers with many pieces; ``ended`` is set when the last one is taken or nobody is there."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(PIECES):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.ended.set()


def test_a_client_that_reads_nothing_is_not_waited_for() -> None:
    app = LongAnswer()
    with served(app) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert app.ended.wait(DEADLINE_S)


def test_a_client_that_reads_slowly_gets_everything() -> None:
    assert any(read_slowly() > PIECES * len(PIECE) for _ in range(ATTEMPTS)), "a busy machine may read nothing for long"


async def one_piece(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An application whose answer waits for the client as a whole."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(PIECES * len(PIECE))})


def read_slowly() -> int:
    """Return how many bytes come, for longer than ``unread_s``."""
    count, began_s = 0, time.monotonic()
    with served(one_piece, SlowConnection) as client, suppress(ConnectionResetError):
        client.sendall(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        while data := client.recv(1 << 20):
            count += len(data)
            time.sleep(0.002)
    assert time.monotonic() - began_s > SlowConnection.unread_s
    return count


@pytest.mark.parametrize(
    ("path", "query", "kind"),
    [
        ("/v1/scans", b"", b"application/json"),
        ("/v1/topics/orders/messages", b"", b"application/json"),
        ("/put", b"topic=orders&partition=0&flag=0&length=10", b"text/plain"),
        ("/login", b"", b"application/x-www-form-urlencoded"),
        ("/dead-letters", b"", b"application/x-www-form-urlencoded"),
    ],
)
def test_a_client_that_goes_away_is_no_error(
    metaq_memory: MemoryServer, caplog: pytest.LogCaptureFixture, path: str, query: bytes, kind: bytes
) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", kind), (b"content-length", b"10")],
        "state": {},
    }
    app = create_app(make_console(ConsoleSettings(profile=Profile(cluster=metaq_memory.cluster), write=True)))
    asyncio.run(app(scope, receive, send))
    assert [one["status"] for one in sent if one["type"] == "http.response.start"] == [499]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
