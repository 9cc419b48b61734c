"""Addresses in records and ids: 4 or 16 bytes of IP, and the port in 4 bytes."""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final

IPV4_BYTES: Final = 8
"""Length with an IPv4 address."""
IPV6_BYTES: Final = 20
"""Length with an IPv6 address."""

_PORT: Final = struct.Struct(">i")


def host_bytes(ip: str, port: int) -> bytes:
    """Return an address as bytes.

    Raises:
        ValueError: ``ip`` is not an IP address.
    """
    return ipaddress.ip_address(ip).packed + _PORT.pack(port)


@lru_cache(maxsize=1024)
def host_text(host: bytes) -> str:
    """Return an address as text: ``10.1.2.3:54321``, ``[2001:db8::1]:54321``.

    Raises:
        ValueError: ``host`` is neither 8 nor 20 bytes.
    """
    if len(host) not in (IPV4_BYTES, IPV6_BYTES):
        raise ValueError(f"an address of {len(host)} bytes, not {IPV4_BYTES} or {IPV6_BYTES}")
    ip, (port,) = host[: -_PORT.size], _PORT.unpack(host[-_PORT.size :])
    if len(ip) == 4:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    return f"[{ipaddress.IPv6Address(ip)}]:{port}"
