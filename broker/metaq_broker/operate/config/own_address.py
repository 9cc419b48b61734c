"""The address of this machine that other machines can reach: what a blank ``hostName`` stands for."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Final

_SIOCGIFADDR: Final = 0x8915
"""Linux: the IPv4 address of an interface."""
_REQUEST: Final = struct.Struct("16s24x")
_ADDRESS_AT: Final = 20
_UNROUTED: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent to it."""


def first_address() -> str | None:
    """Return the first IPv4 address of this machine that is not loopback, in the order of the network interfaces.

    Without such an address it returns the source address of the default route; ``None`` if there is neither.
    """
    addresses = (*_of_interfaces(), *_of_default_route())
    return next((each for each in addresses if not ipaddress.ip_address(each).is_loopback), None)


def _of_interfaces() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in sorted(socket.if_nameindex()):
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, _REQUEST.pack(name.encode()))
            except OSError:  # it has no IPv4 address, or this is not Linux
                continue
            yield socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4])


def _of_default_route() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(_UNROUTED)
        except OSError:
            return
        yield str(asked.getsockname()[0])
