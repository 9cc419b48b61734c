"""The actions that follow from one event, numbered where the disk has to complete them."""

from __future__ import annotations

from metaq_broker.replication.pair.actions import PairAction, SendToMember
from metaq_broker.replication.pair.messages import PairMessage


class Outbox:
    """Shared by the parts of one member."""

    def __init__(self) -> None:
        self.actions: list[PairAction] = []
        self._last_number = 0

    def add(self, action: PairAction) -> None:
        self.actions.append(action)

    def send(self, link: int, message: PairMessage) -> None:
        self.actions.append(SendToMember(link, message))

    def next_number(self) -> int:
        """Return a number for an action that ends with ``DiskDone``."""
        self._last_number += 1
        return self._last_number

    def take(self) -> list[PairAction]:
        """Return the actions since the last call."""
        actions, self.actions = self.actions, []
        return actions
