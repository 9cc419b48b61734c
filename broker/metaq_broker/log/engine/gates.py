"""What keeps messages out of a broker: its role (a slave takes none), and disks that are nearly full."""

from __future__ import annotations

from typing import Final, Protocol

from metaq_broker.log.engine.outcomes import Refusal


class PutGate:
    """Open at first. While it is shut, every put, and whatever makes a transaction's messages durable, is refused.

    ``shut_by`` is that refusal. ``slave`` is what ``stats`` says the broker is.
    """

    shut_by: Refusal | None = None
    slave: bool = False

    def shut(self, refusal: Refusal) -> None:
        """Refuse from now on."""
        self.shut_by = refusal

    def open(self) -> None:
        """Take messages from now on."""
        self.shut_by = None


class Space(Protocol):
    """What those who write ask. ``low`` is true if any folder is low: only then need more be asked."""

    @property
    def low(self) -> bool:
        """Whether puts are refused in any folder."""

    def refusal(self, path: str) -> str | None:
        """Return why nothing more may be put below the folder ``path``, ``None`` if it may."""

    def ran_out(self, path: str) -> None:
        """Take note that a write below the folder ``path`` found no space."""


class NoDiskGuard:
    """``Space`` without a check."""

    low: Final = False

    def refusal(self, path: str) -> str | None:
        """Never a refusal."""
        return None

    def ran_out(self, path: str) -> None:
        """Nothing follows from it."""
