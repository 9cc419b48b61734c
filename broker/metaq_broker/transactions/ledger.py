"""Which journal records are still needed, and by whom.

A slot names one thing that a record keeps alive: a chunk of messages, a prepare, a commit that is not yet in the
partitions, a remembered decision or heuristic outcome. A slot's record may be written again at the young end of the
journal (``rewrite`` makes the new one from what is true then), so that old files can go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from metaq_broker.transactions.journal import Location
from metaq_broker.transactions.records import Record

Slot = Hashable
Rewrite = Callable[[], Record]


@dataclass(slots=True)
class _Retained:
    location: Location
    rewrite: Rewrite | None


class Ledger:
    """Slots and where their records stand. Several slots may share one record."""

    def __init__(self) -> None:
        self._retained: dict[Slot, _Retained] = {}
        self._live_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of the records that are needed; a shared record counts once per slot."""
        return self._live_bytes

    def hold(self, slot: Slot, location: Location, rewrite: Rewrite | None = None) -> None:
        """Note that ``slot`` needs the record at ``location``, instead of any that it needed before.

        Without ``rewrite`` a new copy of the record is made of its bytes.
        """
        self.release(slot)
        self._retained[slot] = _Retained(location, rewrite)
        self._live_bytes += location.length

    def release(self, slot: Slot) -> None:
        """Note that ``slot`` is over; nothing happens if it never was."""
        retained = self._retained.pop(slot, None)
        if retained is not None:
            self._live_bytes -= retained.location.length

    def location(self, slot: Slot) -> Location:
        """Return where the record of ``slot`` stands.

        Raises:
            KeyError: The slot is not held.
        """
        return self._retained[slot].location

    def oldest_lsn(self, otherwise: int) -> int:
        """Return the LSN of the oldest record that is needed; ``otherwise`` if none is."""
        return min((retained.location.lsn for retained in self._retained.values()), default=otherwise)

    def before(self, lsn: int) -> list[Slot]:
        """Return the slots whose records stand before ``lsn``, oldest first."""
        found = [
            (retained.location.lsn, slot) for slot, retained in self._retained.items() if retained.location.lsn < lsn
        ]
        return [slot for _, slot in sorted(found, key=lambda item: item[0])]

    def move(self, slot: Slot, location: Location) -> None:
        """Note that the record of ``slot`` was written again at ``location``."""
        self.hold(slot, location, self._retained[slot].rewrite)

    def rewrite_of(self, slot: Slot) -> Rewrite | None:
        """Return how to make a new record for ``slot``; ``None`` = copy the old one."""
        return self._retained[slot].rewrite
