"""The fingerprint of messages: whether two sets of rows became the same messages, in whatever order.

A message's fingerprint is a 64-bit mix of its frame's length, checksum and flag, so it covers value and attribute. That
of a set is the sum modulo 2**64. It tells apart what was written by mistake; it is no protection against somebody who
looks for two sets with one sum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from metaq.formats.frames import HEADER_BYTES
from metaq.model import Buffer

MULTIPLIERS: Final = (0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15)
"""Two odd numbers whose bits look random; the first is also used by other 64-bit mixers."""

MASK: Final = (1 << 64) - 1
_HEAD: Final = struct.Struct(">Q8xi")
"""Length and checksum as one number, the message id left out, the flag."""


def of_frame(frame: Buffer, at: int = 0) -> int:
    """The fingerprint of the frame at a position, 0..2**64-1."""
    head, flag = _HEAD.unpack_from(frame, at)
    mixed = (head ^ (flag & 1) << 63) * MULTIPLIERS[0] & MASK
    mixed = (mixed ^ mixed >> 32) * MULTIPLIERS[1] & MASK
    mixed ^= mixed >> 29
    return int(mixed)


def of_block(block: Buffer) -> int:
    """The fingerprint of the whole frames in a block, 0..2**64-1."""
    view = memoryview(block).cast("B")
    return sum(of_frame(view, at) for at in _starts(view)) & MASK


def _starts(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        yield at
        at += HEADER_BYTES + int.from_bytes(view[at : at + 4])
