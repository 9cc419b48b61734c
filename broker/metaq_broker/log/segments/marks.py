"""Where some frames of a block begin: what the pass that checks a block leaves for the index of the log."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from metaq.model import Buffer


class IndexPosition(NamedTuple):
    """What an index knows where a block begins, or where it ends.

    ``offset`` and ``ordinal`` of that place; ``time_ms``: no message before it is later; ``marked``: offset of the last
    entry; ``span``: CRC-32 of the log from there to here.
    """

    offset: int
    ordinal: int
    time_ms: int
    marked: int
    span: int


EntryLoop = Callable[[Buffer, int, "Marks", IndexPosition, int, int], tuple[bytes, IndexPosition]]
"""Makes the entries of a block: (block, its messages, marks, state before it, log bytes between entries, time now in
ms, for ids that hold none) -> (entries as in the file, state behind it)."""


@dataclass(slots=True)
class Marks:
    """(offset, ordinal) of some frames, ascending, the first (0, 0); both count from the beginning of the block.

    ``pairs`` has the numbers behind each other. ``loop``: compiled code that can make index entries of them, if the
    block was checked by such.
    """

    pairs: array[int] = field(default_factory=lambda: array("q"))
    loop: EntryLoop | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Marks:
        """The marks that are given as (offset, ordinal)."""
        return cls(array("q", chain.from_iterable(pairs)))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.pairs[::2], self.pairs[1::2], strict=True)

    def __len__(self) -> int:
        return len(self.pairs) // 2

    def add(self, offset: int, ordinal: int) -> None:
        """Add one, behind all others."""
        self.pairs.extend((offset, ordinal))

    def drop_last(self) -> tuple[int, int]:
        """Remove the last one and return it."""
        ordinal, offset = self.pairs.pop(), self.pairs.pop()
        return offset, ordinal

    def copy(self) -> Marks:
        """The same marks, to which others can be added."""
        return Marks(self.pairs[:], self.loop)

    def thinned(self, mark_bytes: int) -> Marks:
        """So many of them that there is at most one for every ``mark_bytes``, beside the first."""
        if len(self) < 2 or self.pairs[-2] >= mark_bytes * (len(self) - 1):
            return self
        kept, next_mark = Marks(loop=self.loop), 0
        for offset, ordinal in self:
            if offset >= next_mark:
                kept.add(offset, ordinal)
                next_mark = offset + mark_bytes
        return kept


class BlockPart(NamedTuple):
    """A part of a unit: ``messages`` whole frames, and where some of them begin."""

    block: Buffer
    messages: int
    marks: Marks
