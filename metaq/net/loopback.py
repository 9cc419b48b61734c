"""Connections that never leave this machine.

Congestion control of the BBR family sends at a measured rate, with a timer between packets. Within one machine there is
no network to protect, and the timers cost a sender of large blocks about as much as everything else (on a virtual
machine, where each of them exits the guest). Such connections use ``reno`` instead, which sends what the windows allow;
every kernel has it and every process may choose it.

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
    """The required methods of a socket; asyncio's transport socket has them, too."""

    def getpeername(self) -> Any: ...
    def getsockname(self) -> Any: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...
    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...


def same_host(own: object, peer: object) -> bool:
    """Return whether two socket names (host first) have the same host, which suggests that both ends are on one
    machine.
    """
    return isinstance(own, tuple) and isinstance(peer, tuple) and own[0] == peer[0]


def disable_pacing(connected: ConnectedSocket) -> None:
    """Disable pacing for a TCP connection within this machine; other connections are not changed.

    Has no effect if the system does not allow the change.
    """
    if _CONGESTION is None:
        return
    with suppress(OSError):
        if same_host(connected.getsockname(), connected.getpeername()):
            name = connected.getsockopt(socket.IPPROTO_TCP, _CONGESTION, _NAME_BYTES_MAX)
            if name.startswith(_PACING):
                connected.setsockopt(socket.IPPROTO_TCP, _CONGESTION, _UNPACED)
