"""Whether a broker takes messages at all: a slave does not, nor does a master that must not acknowledge anything."""

from __future__ import annotations

from metaq_broker.engine.outcomes import Refused


class PutGate:
    """Open at first. While it is shut, every put, and whatever makes a transaction's messages durable, is refused.

    ``shut_by`` is that refusal: a code, and the bare reason. ``slave`` is what ``stats`` says the broker is.
    """

    shut_by: Refused | None = None
    slave: bool = False

    def shut(self, code: int, reason: str) -> None:
        """Refuse from now on."""
        self.shut_by = Refused(code, reason)

    def open(self) -> None:
        """Take messages from now on."""
        self.shut_by = None
