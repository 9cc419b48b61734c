"""What is appended to a partition, whoever asks for it, and on which terms; puts that can be stored without the others.

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
    """What is checked before frames are stored, and what becomes of a wrong one."""

    PUTS = "puts"
    """Messages that a client put one by one. A wrong one is left out, and a segment may end between two of them."""

    BLOCK = "block"
    """A client's block: checked, and stored whole, in one segment, or not at all."""

    MADE = "made"
    """Frames that this process has made of a client's messages: as a block, but their checksums are right. They may go
    to topics that are reserved for the broker."""

    COMMITTED = "committed"
    """Checked, numbered and promised before: nothing but the disk refuses them. Durable in every mode."""


class Append(NamedTuple):
    """A ``block`` for one partition, and those ``behind`` it in the same unit of the log, which only commits have.

    A body may have ``extra_bytes`` beyond maxMessageSize. Message ids are given when the unit is appended, into the
    memory of the block where that can be written; those of committed frames are kept.
    """

    topic: str
    partition: int
    block: FrameBlock
    terms: Terms
    extra_bytes: int = 0
    behind: Sequence[FrameBlock] = ()


def sort_out(block: FrameBlock, body_bytes_max: int) -> tuple[FrameBlock | None, dict[int, Refusal]]:
    """Return the correct frames of a block, ``None`` if there is none, and why the others are wrong, by position.

    Raises:
        BlockRefused: It is not so many whole frames.
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
