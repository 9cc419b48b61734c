"""Servers of every kind that a client may meet at a wrong port, in threads of the test's process."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from fix_tls import Certificates
from http_server import serving
from local_servers import broker_thread, running_name_server

from metaq.model import Address
from metaq.testing.ports import free_port

Serve = Callable[[str], Address]


@contextmanager
def servers_of_kinds(folders: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Serve]:
    """Yield a function that starts a server of a kind, once, and returns its address. They end with the block."""
    made = dict[str, Address]()
    with ExitStack() as stack:

        def address_of(kind: str) -> Address:
            if kind not in made:
                made[kind] = stack.enter_context(_started(kind, folders.mktemp("server"), certificates))
            return made[kind]

        yield address_of


def _started(kind: str, folder: Path, certificates: Certificates) -> AbstractContextManager[Address]:
    keys = dict(line.split("=", 1) for line in certificates.server_keys.split())
    required = {"tlsClientCaFile": certificates.ca_file, "tlsClientAuth": "required"}
    match kind:
        case "MetaQ":
            return broker_thread(folder)
        case "MetaQ with TLS":
            return broker_thread(folder, **keys)
        case "MetaQ for certificates":
            return broker_thread(folder, **keys, **required)
        case "RocketMQ":
            return _rocketmq_port(folder)
        case "RocketMQ for certificates":
            return _rocketmq_port(folder, "tls.server.mode=enforcing\n", **keys, **required)
        case "name server":
            return _name_server(folder)
        case "HTTP":
            return _http_server()
        case "console":
            return _console()
        case "silent":
            return _silent_server()
    raise ValueError(f"kind {kind!r}")


@contextmanager
def _rocketmq_port(folder: Path, more: str = "", **keys: object) -> Iterator[Address]:
    """Run a broker; yield the address of its port for RocketMQ."""
    port = free_port()
    rest = f"[topic=*]\n[rocketmq]\nenabled=true\nport={port}\nbrokerIP1=127.0.0.1\n{more}"
    with broker_thread(folder, rest, **keys):
        yield Address("127.0.0.1", port)


@contextmanager
def _name_server(folder: Path) -> Iterator[Address]:
    with running_name_server(folder) as running:
        yield running.address


@contextmanager
def _http_server() -> Iterator[Address]:
    """A server of Python's own, which closes no connection before the end of a line."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Address("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()


@contextmanager
def _console() -> Iterator[Address]:
    """The HTTP access and the page, which the ``[http]`` section of server.ini starts, too; a process."""
    with serving("-c", "127.0.0.1:1") as url:
        yield Address.parse(url.removeprefix("http://"))


@contextmanager
def _silent_server() -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address("127.0.0.1", server.getsockname()[1])
