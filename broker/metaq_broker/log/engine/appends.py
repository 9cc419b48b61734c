"""Units that are appended to a partition, and the terms on which they are checked.

Source: docs/adr/0014, 0039.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from metaq.formats.frame_block import BlockRefused, FrameBlock
from metaq.formats.frames import walk
from metaq_broker.log.engine.outcomes import ChecksumMismatch, Refusal, TooLarge


class Terms(Enum):
    """What is checked before frames are stored, and what happens to a wrong frame."""

    PUTS = "puts"
    """Messages that a client put one by one. A wrong one is left out, and a segment may end between two of them."""

    BLOCK = "block"
    """A client's block: checked, and stored in one segment as a whole, or not at all."""

    MADE = "made"
    """Frames that this process made from a client's messages: as a block, but their checksums are known to be right.
    They may go to topics that are reserved for the broker.
    """

    COMMITTED = "committed"
    """Messages that are committed already: only a disk error prevents the append. Durable in every mode."""


class Append(NamedTuple):
    """A ``block`` for one partition; commits may append the blocks ``behind`` it in the same unit.

    A body may have ``extra_bytes`` beyond maxMessageSize. Message ids are given at the append, in place if the block is
    writable; committed frames keep theirs. ``is_patient``: it is not refused when the slave of a pair is disconnected
    after the append, but waits until the slave is back.
    """

    topic: str
    partition: int
    block: FrameBlock
    terms: Terms
    extra_bytes: int = 0
    behind: Sequence[FrameBlock] = ()
    is_patient: bool = False


def sort_out(block: FrameBlock, body_bytes_max: int) -> tuple[FrameBlock | None, dict[int, Refusal]]:
    """Return the correct frames of a block (``None``: there are none), and why others are wrong, by position.

    Raises:
        BlockRefused: The block is not ``count`` whole frames.
        CorruptFrame: A length is negative.
    """
    found = list(walk(block.data, verify=False))
    if len(found) != block.count or (found and found[-1].end != len(block)):
        raise BlockRefused(f"the block of {len(block)} bytes is not {block.count} whole frames")
    rejected: dict[int, Refusal] = {}
    for position, frame in enumerate(found):
        if not frame.intact:
            rejected[position] = ChecksumMismatch()
        elif len(frame.body) > body_bytes_max:
            rejected[position] = TooLarge(len(frame.body), body_bytes_max)
    correct = [position for position in range(block.count) if position not in rejected]
    return (block.picked(correct) if correct else None), rejected
