"""Connections within one machine are not paced; any other is left alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metaq.model import Address
from metaq.net.loopback import disable_pacing, same_host
from metaq.net.transport import TCP

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


class FakeSocket:
    """Between two addresses, with a congestion control that may be fixed."""

    def __init__(self, own: str, peer: str, congestion: bytes, *, fixed: bool = False) -> None:
        self.own, self.peer, self.congestion, self.fixed = own, peer, congestion, fixed

    def getsockname(self) -> Any:
        return self.own, 8123

    def getpeername(self) -> Any:
        return self.peer, 40000

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        return self.congestion.ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        if self.fixed:
            raise PermissionError(1, "Operation not permitted")
        self.congestion = value


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a real connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname(), 10))
        yield client, stack.enter_context(listener.accept()[0])


@pytest.mark.parametrize("name", [b"bbr", b"bbr2", b"bbr3"])
def test_within_a_machine_nothing_is_paced(name: bytes) -> None:
    between = FakeSocket("10.1.1.1", "10.1.1.1", name)
    disable_pacing(between)
    assert between.congestion == b"reno"


@pytest.mark.parametrize("name", [b"cubic", b"reno", b"dctcp"])
def test_what_is_not_paced_stays_as_it_is(name: bytes) -> None:
    between = FakeSocket("127.0.0.1", "127.0.0.1", name)
    disable_pacing(between)
    assert between.congestion == name


def test_a_connection_to_another_machine_stays_as_it_is() -> None:
    between = FakeSocket("10.1.1.1", "10.1.1.2", b"bbr")
    disable_pacing(between)
    assert between.congestion == b"bbr"


def test_a_system_that_does_not_allow_it_is_no_error() -> None:
    between = FakeSocket("127.0.0.1", "127.0.0.1", b"bbr", fixed=True)
    disable_pacing(between)
    assert between.congestion == b"bbr"


def test_a_connection_that_is_gone_is_no_error(connected: tuple[socket.socket, socket.socket]) -> None:
    client, _ = connected
    client.close()
    disable_pacing(client)


@pytest.mark.skipif("bbr" not in (ALLOWED.read_text() if ALLOWED.exists() else ""), reason="this system has no bbr")
def test_a_real_connection_is_changed(connected: tuple[socket.socket, socket.socket]) -> None:
    for end in connected:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        disable_pacing(end)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_clients_connect_without_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("metaq.net.transport.disable_pacing", seen.append)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = TCP.connect_tcp(Address("127.0.0.1", listener.getsockname()[1]), 10)
        stream.close()
    assert len(seen) == 1


def test_hosts_are_compared_without_ports() -> None:
    assert same_host(("127.0.0.1", 1), ("127.0.0.1", 2))
    assert same_host(("::1", 1, 0, 0), ("::1", 2, 0, 0))
    assert not same_host(("127.0.0.1", 1), ("127.0.0.2", 1))
    assert not same_host("/run/one", "/run/one")
    assert not same_host(None, None)
