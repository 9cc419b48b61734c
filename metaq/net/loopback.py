"""Connections that never leave this machine.

Congestion control of the BBR family does not send as fast as the receiver takes, but at the rate that it measured, with
a timer between any two packets. Between two processes of one machine there is no network to be careful with, and the
timers cost a sender of large blocks about as much as all the rest (on a virtual machine, where each of them leaves the
guest). Such connections are given ``reno`` instead, which sends what the windows allow; every kernel has it and every
process may choose it.

Source: tcp(7), TCP_CONGESTION; the kernel's Documentation/networking/ip-sysctl.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final, Protocol

_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)  # Linux and FreeBSD have it
_NAME_BYTES_MAX: Final = 16
_PACING: Final = b"bbr"
_UNPACED: Final = b"reno"


class ConnectedSocket(Protocol):
    """What is needed of a socket; asyncio's view of one has it, too."""

    def getpeername(self) -> Any: ...
    def getsockname(self) -> Any: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...
    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...


def same_host(own: object, peer: object) -> bool:
    """Return whether two socket names (host first) have one host: then both ends are on one machine, or so it seems."""
    return isinstance(own, tuple) and isinstance(peer, tuple) and own[0] == peer[0]


def disable_pacing(connected: ConnectedSocket) -> None:
    """Have a TCP connection within this machine send as fast as the other end takes; leave any other as it is.

    Where the system does not let it be changed, it stays as it is.
    """
    if _CONGESTION is None:
        return
    with suppress(OSError):
        if same_host(connected.getsockname(), connected.getpeername()):
            name = connected.getsockopt(socket.IPPROTO_TCP, _CONGESTION, _NAME_BYTES_MAX)
            if name.startswith(_PACING):
                connected.setsockopt(socket.IPPROTO_TCP, _CONGESTION, _UNPACED)
