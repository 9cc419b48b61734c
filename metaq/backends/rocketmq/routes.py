"""The brokers' addresses, as readers and writers need them. Implemented in ``metaq.discovery``."""

from __future__ import annotations

from typing import Final, Protocol

from metaq.model import Address
from metaq.protocols.remoting.announcement import MetaQBroker

MASTER_ID: Final = 0
"""The broker id of a master; its slaves have others."""

SLAVE_ID: Final = 1
"""The broker id of the first slave, or of the only one."""


class Routes(Protocol):
    """Addresses of brokers, according to the name servers. Thread-safe."""

    @property
    def namespace(self) -> str | None:
        """Prefix of topics and groups, if any."""

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID, *, topic: str | None = None) -> Address:
        """Return the address to read from a broker: of that id, else the master, else any slave; silent ones last.

        ``topic``: a topic of the broker, whose route has the broker's address and may be its only source.

        Raises:
            BrokerAway: No route ever had an address of it.
            NameServersAway: No name server could be asked.
        """

    def write_address(self, broker_name: str, *, topic: str | None = None) -> Address:
        """Return the address to send to, and to commit: the master.

        Raises:
            BrokerAway: There is no master now.
            NameServersAway: No name server could be asked.
        """

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        """Return the MetaQ identity of the broker at an address, from its registration; ``None`` if it has none."""

    def avoid(self, address: Address) -> None:
        """Note that an address does not answer: other addresses of its broker are preferred for a while."""

    def invalidate(self) -> None:
        """Ask the name servers on the next request: cached data has turned out wrong."""
