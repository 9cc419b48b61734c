"""How blocks of messages reach their brokers: the seam between a task that makes them and what is promised about them.

The backends implement it: ``backends/metaq/acknowledged_puts.py`` for at-least-once, ``backends/metaq/exactly_once``.
"""

from __future__ import annotations

from typing import Protocol

from metaq.model import Address, TopicPartition, Xid
from metaq_spark.columns.blocks import Block


class Delivery(Protocol):
    """Takes the blocks of one task. ``finish`` or ``give_up`` is called once, at the end."""

    def put(self, target: TopicPartition, address: Address, block: Block) -> None:
        """Send a block to a partition of the broker at ``address``. Blocks of a partition keep their order.

        Raises:
            MetaqError: This block or an older one was refused or got no answer.
        """

    def finish(self) -> tuple[Xid, ...]:
        """Wait until every block is safe; the branches that the driver has to commit, in order. Raises as ``put``."""

    def give_up(self, error: BaseException) -> None:
        """Let go of the connections, because the task failed with ``error``."""


class UnsentPuts:
    """Sends nothing, because the batch was written before: its tasks only say what they would have written."""

    def put(self, target: TopicPartition, address: Address, block: Block) -> None:
        """See ``Delivery``."""

    def finish(self) -> tuple[Xid, ...]:
        """See ``Delivery``."""
        return ()

    def give_up(self, error: BaseException) -> None:
        """See ``Delivery``."""
