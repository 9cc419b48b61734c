"""Blocks: whole frames of one partition, gathered over record batches until they are worth a request.

An ``OpenBlock`` is the block that a partition's next frames go to; ``encode`` writes into it, the sink decides when one
that is not full is sent.

A block has a fingerprint, which shows whether two sets of rows became the same messages, in any order. The fingerprint
of a message is a 64-bit mix of its frame's length, checksum and flag, so it covers value and attribute; for a set, it
is the sum modulo 2**64. It detects accidental differences; it does not protect against an attacker who searches for
collisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metaq.formats.frames import header_at
from metaq.model import Buffer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_EMPTY: Final = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """``count`` whole frames, back to back, and their ``fingerprint``. ``data`` does not change any more."""

    data: Buffer
    count: int
    fingerprint: int


class OpenBlock:
    """Unsent frames of one partition, in a buffer that grows up to ``bytes_max``.

    A larger frame becomes a separate block. At most ``messages_max`` frames.
    """

    __slots__ = ("_was_full", "buffer", "bytes_max", "count", "fingerprint", "messages_max", "used")

    def __init__(self, bytes_max: int, messages_max: int) -> None:
        self.bytes_max, self.messages_max = bytes_max, messages_max
        self.buffer: Bytes = _EMPTY
        self.used = self.count = self.fingerprint = 0
        self._was_full = False

    def ensure_capacity(self, needed: int, expected: int) -> bool:
        """Enlarge the buffer so that a frame of ``needed`` bytes fits; ``False`` if it must go into the next block.

        ``expected``: likely bytes to follow, including that frame.
        """
        if self.count == self.messages_max:
            return False
        if self.count and self.used + needed > self.bytes_max:
            self._was_full = True
            return False
        # At least doubled: a block that fills little by little is copied but once on the whole. One after a full one,
        # or that the rows at hand make half full, is likely to get full as well, and is not copied at all.
        wanted = max(self.used + expected, 2 * len(self.buffer))
        wanted = self.bytes_max if self._was_full or 2 * wanted >= self.bytes_max else wanted
        larger = np.empty(max(self.used + needed, wanted), np.uint8)
        larger[: self.used] = self.buffer[: self.used]
        self.buffer = larger
        return True

    def add(self, frame: bytes) -> bool:
        """Append a frame; ``False`` if it belongs into the next block."""
        end = self.used + len(frame)
        if (end > len(self.buffer) or self.count == self.messages_max) and not self.ensure_capacity(
            len(frame), len(frame)
        ):
            return False
        self.buffer[self.used : end] = np.frombuffer(frame, dtype=np.uint8)
        self.used, self.count = end, self.count + 1
        self.fingerprint += of_frame(frame)
        return True

    def take(self) -> EncodedBlock:
        """The frames so far, as a block; the next frame begins another. There has to be one."""
        assert self.count > 0
        block = EncodedBlock(self.buffer[: self.used].data, self.count, self.fingerprint & MASK)
        self.buffer, self.used, self.count, self.fingerprint = _EMPTY, 0, 0, 0
        return block


MULTIPLIERS: Final = (0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15)
"""Two odd numbers whose bits look random; the first is also used by other 64-bit mixers."""

MASK: Final = (1 << 64) - 1


def of_frame(frame: Buffer, at: int = 0) -> int:
    """The fingerprint of the frame at a position, 0..2**64-1."""
    length, checksum, _, flag = header_at(frame, at)
    return of_header(length, checksum, flag)


def of_header(length: int, checksum: int, flag: int) -> int:
    """Return the fingerprint of a frame with this header; the message id is ignored."""
    mixed = ((length << 32 | checksum) ^ (flag & 1) << 63) * MULTIPLIERS[0] & MASK
    mixed = (mixed ^ mixed >> 32) * MULTIPLIERS[1] & MASK
    mixed ^= mixed >> 29
    return int(mixed)


def of_block(block: Buffer) -> int:
    """The fingerprint of the whole frames in a block, 0..2**64-1."""
    view, at, total = memoryview(block).cast("B"), 0, 0
    while at < len(view):
        header = header_at(view, at)
        total += of_header(header.length, header.checksum, header.flag)
        at += header.frame_bytes
    return total & MASK
