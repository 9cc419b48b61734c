"""Up to where two copies of a stream have the same bytes, and what the core remembers of each stream.

Two copies of one incarnation that have an entry ``(epoch, start)`` in common have the same bytes up to the end of that
epoch, or of the shorter copy: only the master of an epoch appends bytes of it, each offset once, and a master that
restarts or whose disk fails leads again in a later epoch only. So epochs are compared, not bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from metaq_broker.log.streams.facts import Epochs, StreamFacts, StreamOrigin


def epoch_end(epochs: Epochs, epoch: int, end: int) -> int:
    """Return the offset after the last byte of ``epoch`` in a copy that ends at ``end``."""
    return min((entry.start for entry in epochs if entry.epoch > epoch), default=end)


def agreed_end(one: StreamFacts, other: StreamFacts) -> int | None:
    """Return the offset up to which both copies have the same bytes, at most the smaller end.

    ``None``: they have nothing in common, because they are of different incarnations, or what they have in common lies
    before the start of one of them.
    """
    if one.origin.incarnation != other.origin.incarnation:
        return None
    starts = dict(other.epochs)
    common = next((entry.epoch for entry in reversed(one.epochs) if starts.get(entry.epoch) == entry.start), 0)
    ends = (epoch_end(copy.epochs, common, copy.end) for copy in (one, other))
    agreed = min(one.end, other.end, *ends)
    return agreed if agreed >= max(one.origin.start, other.origin.start) else None


@dataclass(slots=True)
class StreamState:
    """A stream as the core follows it: ``confirmed`` <= ``durable`` <= ``written``, and the epochs of its bytes.

    ``confirmed`` is what this member knows: readable at the master, and never cut.
    """

    origin: StreamOrigin
    epochs: Epochs
    written: int
    durable: int
    confirmed: int

    @classmethod
    def of(cls, facts: StreamFacts, confirmed: int) -> Self:
        return cls(facts.origin, facts.epochs, facts.end, facts.end, confirmed)

    def note(self, end: int, *, durable: bool) -> None:
        """Note that everything before ``end`` is written, or durable."""
        self.written = max(self.written, end)
        if durable:
            self.durable = max(self.durable, end)

    def facts(self) -> StreamFacts:
        """Return what another member compares; a member without writes under way has it durably."""
        return StreamFacts(self.origin, self.written, self.epochs, 0)
