"""Reasons for a broker to refuse messages: its role (a slave takes none), and disks that are nearly full."""

from __future__ import annotations

from typing import Final, Protocol

from metaq_broker.log.engine.outcomes import Refusal


class PutGate:
    """Open at first. While it is shut, puts and everything that makes a transaction's messages durable are refused.

    ``shut_by`` is that refusal. ``slave`` is the broker's role in ``stats``.
    """

    shut_by: Refusal | None = None
    slave: bool = False

    def shut(self, refusal: Refusal) -> None:
        self.shut_by = refusal

    def open(self) -> None:
        self.shut_by = None


class Space(Protocol):
    """Free space, for code that writes. Check a folder only if ``low``, which means that any folder is low."""

    @property
    def low(self) -> bool:
        """Whether puts are refused in any folder."""

    def refusal(self, path: str) -> str | None:
        """Return why puts below the folder ``path`` are refused; ``None`` if they are not."""

    def ran_out(self, path: str) -> None:
        """Record that a write below the folder ``path`` found no space."""


class NoDiskGuard:
    """``Space`` without a check."""

    low: Final = False

    def refusal(self, path: str) -> str | None:
        return None

    def ran_out(self, path: str) -> None:
        ...
