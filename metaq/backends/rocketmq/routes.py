"""What readers and writers need to know of the cluster: where a broker is. It comes from ``metaq.discovery``."""

from __future__ import annotations

from typing import Final, Protocol

from metaq.model import Address
from metaq.protocols.remoting.announcement import MetaQBroker

MASTER_ID: Final = 0
"""The broker id of a master; its slaves have others."""

SLAVE_ID: Final = 1
"""The broker id of the first slave, or of the only one."""


class Routes(Protocol):
    """Where brokers are, as the name servers say. Safe to use from several threads."""

    @property
    def namespace(self) -> str | None:
        """What is put in front of topics and groups, if anything."""

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID, *, topic: str | None = None) -> Address:
        """Where to read from a broker: that id, else the master, else any slave; those that do not answer come last.

        ``topic``: one that the broker has; its route says where the broker is, and may be the only source.

        Raises:
            BrokerAway: No route ever had an address of it.
            NameServersAway: None could be asked.
        """

    def write_address(self, broker_name: str, *, topic: str | None = None) -> Address:
        """Where to send to, and to commit: the master.

        Raises:
            BrokerAway: It has none now.
            NameServersAway: None could be asked.
        """

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        """What the broker at an address is to MetaQ's clients, by its registration; ``None``: nothing, or not known."""

    def avoid(self, address: Address) -> None:
        """Take note that nobody answers there: others of its broker are read from for a while."""

    def invalidate(self) -> None:
        """Ask the name servers the next time: something that they said has turned out not to work."""
