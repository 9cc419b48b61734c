"""Checks whether an address can be reached: name resolution, connection, certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from metaq.client.checkup.findings import Finding, fail, ok, warn
from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms
from metaq.net.reach import Reach
from metaq.net.tls import Certificate, TlsSettings, TlsTransport
from metaq.net.transport import TCP, Timeouts, Transport, resolve

DAYS_MIN: Final = 14
"""Warn if a certificate expires in fewer days."""

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """How to connect to servers: TLS settings, and the time limit of each step in seconds."""

    tls: TlsSettings | None
    timeout_s: float

    @property
    def timeouts(self) -> Timeouts:
        """The same limits for a session."""
        return Timeouts(self.timeout_s, self.timeout_s)

    def transport(self) -> Transport:
        """Return what opens connections. Raises as ``Reach.transport``."""
        return Reach(self.timeouts, self.tls).transport()

    def reach(self, what: str, address: Address) -> Generator[Finding, None, bool]:
        """Yield the findings about the connection to ``address``; return whether a session may be opened."""
        if not _is_number(address.host):
            try:
                yield ok(f"{what} name", f"is {', '.join(resolve(address))}")
            except ConnectionFailed as error:
                yield fail(f"{what} name", f"{address.host!r} cannot be looked up: {error.reason}")
                return False
        began_s = SYSTEM_CLOCK.monotonic()
        try:
            TCP.connect_tcp(address, self.timeout_s).close()
        except (ConnectionFailed, DeadlineExceeded) as error:
            yield fail(f"{what} connect", reason_of(error))
            return False
        yield ok(f"{what} connect", f"in {since_text(began_s)}")
        return self.tls is None or (yield from self._secured(what, address, self.tls))

    def _secured(self, what: str, address: Address, tls: TlsSettings) -> Generator[Finding, None, bool]:
        try:
            shown = TlsTransport(tls).certificate(address, self.timeout_s)
        except (ConnectionFailed, DeadlineExceeded, ValueError) as error:
            yield fail(f"{what} tls", reason_of(error))
            return False
        yield certificate_finding(what, shown, wall_clock_ms())
        return True


def certificate_finding(what: str, shown: Certificate, now_ms: int) -> Finding:
    """Return the finding about a certificate that was accepted."""
    if shown.not_after_ms is None:
        return warn(f"{what} tls", f"{shown.protocol}, the certificate is not verified")
    days = (shown.not_after_ms - now_ms) // _DAY_MS
    names = ", ".join(shown.names) or "no name"
    level = warn if days < DAYS_MIN else ok
    return level(f"{what} tls", f"{shown.protocol}, certificate for {names}, {days} days left")


def reason_of(error: Exception) -> str:
    """Return what went wrong, without the address: the line names it already."""
    if isinstance(error, ConnectionFailed):
        return error.reason
    if isinstance(error, DeadlineExceeded):
        return f"no answer within {error.seconds:g} s"
    return str(error)


def since_text(began_s: float) -> str:
    """Return the time since ``began_s`` as a text."""
    return f"{(SYSTEM_CLOCK.monotonic() - began_s) * 1000:.1f} ms"


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
