"""Whether a broker takes messages at all: a slave does not, nor does a master that must not acknowledge anything."""

from __future__ import annotations

from metaq_broker.engine.outcomes import Refusal


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
