"""How connections to servers are made: the settings that sessions and pools take apart, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport


@dataclass(frozen=True, slots=True)
class Reach:
    """How long to wait, and how connections are secured (``None``: they are not). Equal settings are equal."""

    timeouts: Timeouts = DEFAULT_TIMEOUTS
    tls: TlsSettings | None = None

    def transport(self) -> Transport:
        """Return what opens connections.

        Raises:
            ValueError: A file of the settings cannot be used.
        """
        return TCP if self.tls is None else TlsTransport(self.tls)
