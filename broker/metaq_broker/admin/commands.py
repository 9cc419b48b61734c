"""The commands of the control socket by name.

Source: docs/administration.md, "The control socket".
"""

from __future__ import annotations

from metaq_broker.admin.changing import BrokerCommands, PartitionCommands, TransactionCommandsByHand
from metaq_broker.admin.listing import Listing
from metaq_broker.admin.server import Command
from metaq_broker.admin.services import BrokerParts


def control_commands(parts: BrokerParts) -> dict[str, Command]:
    """Return every command of a broker."""
    listing, partitions = Listing(parts), PartitionCommands(parts)
    transactions, broker = TransactionCommandsByHand(parts), BrokerCommands(parts)
    return {
        "status": listing.status,
        "topics": listing.topics,
        "partitions": listing.partitions,
        "close": partitions.close,
        "open": partitions.open,
        "delete": partitions.delete,
        "move": partitions.move,
        "reopen": partitions.reopen,
        "acknowledge": partitions.acknowledge,
        "transactions": transactions.transactions,
        "transaction": transactions.transaction,
        "retention": broker.retention,
        "reload": broker.reload,
        "promote": broker.promote,
        "shutdown": broker.shutdown,
    }
