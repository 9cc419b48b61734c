"""Checks that a copy of a partition is a prefix of its original, so that the rest may be appended to it.

Both must have the same incarnation, the copy must end within the original, and the last bytes of the copy must equal
the original's: they contain message ids, which are unique. Anything else would mix two histories, so it is refused, and
an operator decides which of the two is deleted.

Source: docs/replication.md, "When a copy is refused".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from metaq_broker.replication.local import CopyRefused
from metaq_broker.replication.peer import StoredRange

COMPARED_BYTES: Final = 4096
"""How many bytes of a copy's end are compared with the original."""

ReadAt = Callable[[int, int], Awaitable[bytes]]
"""Takes an offset and a byte limit; returns at least one byte from that offset on."""


class Agreement(Enum):
    """What to do with a copy: append to it, or replace it, because it has no message that the original still has."""

    CONTINUES = "continues"
    REPLACE = "replace"


def judge(copy: StoredRange, original: StoredRange) -> Agreement:
    """Compare incarnation and offsets of a copy and its original. An unknown incarnation matches none.

    Raises:
        CopyRefused: The copy is of another partition, or ends past the end of its original.
    """
    foreign = None not in (copy.incarnation, original.incarnation) and copy.incarnation != original.incarnation
    end = copy.readable_end
    if end == copy.start:
        within = original.start <= end <= original.readable_end
        return Agreement.CONTINUES if within and not foreign else Agreement.REPLACE
    if foreign:
        incarnations = f"incarnation {copy.incarnation} of the copy, {original.incarnation} of the original"
        raise CopyRefused(
            f"the copy is of another incarnation of the partition ({incarnations}); delete one of the two"
        )
    if end > original.readable_end:
        ends = f"{end}, past the end of its original, {original.readable_end}"
        raise CopyRefused(f"the copy ends at {ends}; delete one of the two")
    if end < original.start:
        if original.incarnation is None:
            starts = f"{end}, and its original begins at {original.start} by now"
            raise CopyRefused(f"the copy ends at {starts}; delete the copy")
        return Agreement.REPLACE  # the original has deleted all of it by now
    return Agreement.CONTINUES


def require_same_number(copy: int, original: int | None, offset: int) -> None:
    """Check that copy and original count equally many messages before an offset; ``None``: the original does not report
    it.

    Otherwise readers of the copy would mistake one message for another.

    Raises:
        CopyRefused: They differ: one of the two has lost its indexes.
    """
    if original is not None and copy != original:
        numbers = f"the copy counts {copy} messages before offset {offset}, and its original {original}"
        raise CopyRefused(f"{numbers}; delete the copy, or the original if that was renumbered")


async def compare_ends(copy: StoredRange, original: StoredRange, read_copy: ReadAt, read_original: ReadAt) -> None:
    """Compare the last bytes of a copy that ``judge`` found to continue its original.

    Raises:
        CopyRefused: They differ.
    """
    offset = max(copy.start, original.start, copy.readable_end - COMPARED_BYTES)
    while offset < copy.readable_end:
        mine = await read_copy(offset, copy.readable_end - offset)
        theirs = await read_original(offset, len(mine))
        common = min(len(mine), len(theirs))
        if not common or mine[:common] != theirs[:common]:
            ends = f"[{offset}, {copy.readable_end})"
            raise CopyRefused(f"the copy differs from its original within bytes {ends}; delete one of the two")
        offset += common
