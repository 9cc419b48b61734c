"""Blocks: whole frames of one partition, gathered over record batches until they are worth a request.

An ``OpenBlock`` is the block that a partition's next frames go to; ``encode`` writes into it, the sink decides when one
that is not full is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metaq.client.shared_memory import Slot
from metaq.model import Buffer
from metaq_spark.columns.fingerprint import MASK, of_frame

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

TakeSlot = Callable[[], Slot | None]
"""Asked when a block is likely to become as large as it may: memory for it that its broker sees, or ``None``."""

_NO_ROOM: Final = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Block:
    """``count`` whole frames, back to back, and their ``fingerprint``.

    Nobody writes to ``data`` any more; ``slot``: what it is in, if in one.
    """

    data: Buffer
    count: int
    fingerprint: int
    slot: Slot | None = None


def no_slot(_target: object = None) -> None:
    """Say that there is no slot, whatever it is for."""


class OpenBlock:
    """Frames of one partition that are not sent yet, in a room that grows up to ``bytes_max``.

    A frame larger than that is a block of its own. At most ``messages_max`` frames. ``take_slot``: where a room of
    ``bytes_max`` may come from.
    """

    __slots__ = (
        "_slot", "_take_slot", "_was_full", "bytes_max", "count", "fingerprint", "messages_max", "room", "used"
    )  # fmt: skip

    def __init__(self, bytes_max: int, messages_max: int, take_slot: TakeSlot = no_slot) -> None:
        self.bytes_max, self.messages_max = bytes_max, messages_max
        self._take_slot, self._slot = take_slot, None
        self.room: Bytes = _NO_ROOM
        self.used = self.count = self.fingerprint = 0
        self._was_full = False

    def make_room(self, needed: int, expected: int) -> bool:
        """Enlarge the room so that a frame of ``needed`` bytes fits; ``False`` if it belongs into the next block.

        ``expected``: how many bytes are likely to come, that frame included.
        """
        if self.count == self.messages_max:
            return False
        if self.count and self.used + needed > self.bytes_max:
            self._was_full = True
            return False
        # At least doubled: a block that fills little by little is copied but once on the whole. One behind a full one,
        # or that the rows at hand make half full, is likely to get full as well, and is not copied at all.
        wanted = max(self.used + expected, 2 * len(self.room))
        wanted = self.bytes_max if self._was_full or 2 * wanted >= self.bytes_max else wanted
        larger = self._new_room(max(self.used + needed, wanted))
        larger[: self.used] = self.room[: self.used]
        self.room = larger
        return True

    def _new_room(self, size: int) -> Bytes:
        if self._slot is not None:  # nothing is in it: a frame that it cannot hold is a block of its own
            self._slot.free()
        self._slot = self._take_slot() if size == self.bytes_max else None
        return np.empty(size, np.uint8) if self._slot is None else np.frombuffer(self._slot.view, np.uint8)[:size]

    def add(self, frame: bytes) -> bool:
        """Append a frame; ``False`` if it belongs into the next block."""
        end = self.used + len(frame)
        if (end > len(self.room) or self.count == self.messages_max) and not self.make_room(len(frame), len(frame)):
            return False
        self.room[self.used : end] = np.frombuffer(frame, dtype=np.uint8)
        self.used, self.count = end, self.count + 1
        self.fingerprint += of_frame(frame)
        return True

    def take(self) -> Block:
        """The frames so far, as a block; the next frame begins another. There has to be one."""
        assert self.count > 0
        block = Block(memoryview(self.room)[: self.used], self.count, self.fingerprint & MASK, self._slot)
        self.room, self.used, self.count, self._slot = _NO_ROOM, 0, 0, None
        self.fingerprint = 0
        return block
