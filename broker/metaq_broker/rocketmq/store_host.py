"""The broker's address in message ids: an IP address, also where clients are given a name.

Routes carry the name as it is configured, so clients look it up themselves. Message ids have no other form than an IP
address. It is looked up at the start and again from time to time, because a name may get another address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from metaq.formats.rocketmq.hosts import host_bytes
from metaq.model import Address
from metaq_broker.rocketmq.parts import RemotingUnavailable

_LOG: Final = logging.getLogger(__name__)

LOOK_UP_S: Final = 30.0
"""Between two look-ups of a name."""


class StoreHost:
    """``address`` is what routes say, ``packed`` the IP address and the port in message ids (8 or 20 bytes)."""

    def __init__(self, address: Address) -> None:
        """Look up the address (blocking).

        Raises:
            RemotingUnavailable: The name has no IP address.
        """
        self.address = address
        self._is_name = not _is_ip(address.host)
        try:
            found = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM) if self._is_name else []
        except (OSError, UnicodeError) as error:  # Unicode: a part of the name is empty or has more than 63 characters
            reason = f"{address.host} (brokerIP1, or hostName where that is not set) has no IP address: {error}"
            raise RemotingUnavailable(reason) from error
        self.packed = host_bytes(_best(found) if self._is_name else address.host, address.port)

    async def follow(self, changed: Callable[[bytes], None]) -> None:
        """Look up a name every ``LOOK_UP_S``; call ``changed`` with the new bytes. Ends at once for an IP address."""
        loop = asyncio.get_running_loop()
        while self._is_name:
            await asyncio.sleep(LOOK_UP_S)
            try:
                found = await loop.getaddrinfo(self.address.host, None, type=socket.SOCK_STREAM)
            except OSError:
                continue  # the last address stands: clients may still have it
            packed = host_bytes(_best(found), self.address.port)
            if packed != self.packed:
                self.packed = packed
                fields = {"name": self.address.host, "ip": _best(found)}
                _LOG.info("the broker's name has another IP address: new message ids have it", extra={"fields": fields})
                changed(packed)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _best(found: Sequence[tuple[Any, ...]]) -> str:
    """Return an address of version 4 if there is one, as Java does."""
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
