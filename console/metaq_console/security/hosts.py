"""The ``Host`` header: names that a page of another site cannot have looked up to this server.

An attack by DNS rebinding uses a name of the attacker's; it never uses an address or a name of this machine.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s/@]+)(?::([0-9]{1,5}))?")


class AllowedHosts:
    """Addresses, ``localhost``, the name of this machine, and ``more``."""

    def __init__(self, more: Collection[str] = ()) -> None:
        own = {"localhost", socket.gethostname().lower()}
        self._names = own | {name.lower() for name in more}

    def allows(self, host: str) -> bool:
        """Return whether a ``Host`` header, with or without a port, names this server."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
