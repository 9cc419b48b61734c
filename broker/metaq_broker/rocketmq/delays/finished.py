"""Which messages of a queue are finished: all below a number, and some above it.

The latter are bits in chunks of 4,096 messages, each a value of 512 bytes in the state table. Chunks below the number
are removed.

::

    KEY            the number below which all are finished, in decimal
    KEY/CHUNK      bits of the ordinals from CHUNK * 4,096 on, the lowest bit of the first byte first
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.rocketmq.moves.log import MoveTable, Saved

CHUNK_MESSAGES: Final = 4096
CHUNK_BYTES: Final = CHUNK_MESSAGES // 8


class Finished:
    """``below``: all ordinals below it are finished."""

    def __init__(self, state: MoveTable, key: str) -> None:
        self._state, self._key = state, key
        value = state.get(key)
        self.below = 0 if value is None else int(value)
        self._chunks: dict[int, bytearray] = {}

    def __contains__(self, ordinal: int) -> bool:
        if ordinal < self.below:
            return True
        byte, bit = divmod(ordinal % CHUNK_MESSAGES, 8)
        return bool(self._chunk(ordinal // CHUNK_MESSAGES)[byte] >> bit & 1)

    def add(self, ordinals: Iterable[int], saved: Saved | None = None) -> None:
        """Mark ordinals as finished, in memory also if the table is full; ``saved`` is called once, when that is
        durable.
        """
        changed = self._marked(ordinals)
        self._chunks.update(changed)
        self._save(changed, saved)

    def add_saved(self, ordinal: int, saved: Saved) -> None:
        """Mark an ordinal as finished, unless the table is full or closed: then nothing changes."""
        self._save(self._marked([ordinal]), saved)

    def cut(self, end: int) -> bool:
        """Unmark the ordinals from ``end`` on, which do not exist yet; return whether some were marked."""
        found = False
        first, bits = divmod(end, CHUNK_MESSAGES)
        for key, value in list(self._state.items(f"{self._key}/")):
            number = int(key.removeprefix(f"{self._key}/"))
            kept = (1 << bits) - 1 if number == first else 0
            if number < first or not int.from_bytes(value, "little") & ~kept:
                continue
            found = True
            left = int.from_bytes(value, "little") & kept
            self._chunks[number] = bytearray(left.to_bytes(CHUNK_BYTES, "little"))
            self._state.put(key, bytes(self._chunks[number]))
        if self.below > end:
            found, self.below = True, end
            self._state.put(self._key, str(end).encode())
        return found

    def begin_at(self, first: int, *, keep: bool) -> None:
        """Mark all ordinals below ``first`` as finished; with ``keep``, keep the marks of the others."""
        for key, _ in list(self._state.items(f"{self._key}/")):
            number = int(key.removeprefix(f"{self._key}/"))
            if not keep or number < first // CHUNK_MESSAGES:
                self._state.delete(key)
                self._chunks.pop(number, None)
        self.below = first
        self._state.put(self._key, str(first).encode())

    def when_saved(self, saved: Saved) -> None:
        """Call ``saved`` once all that was added so far is durable."""
        self._state.when_durable(saved)

    def _marked(self, ordinals: Iterable[int]) -> dict[int, bytearray]:
        """Return changed copies of the chunks."""
        changed: dict[int, bytearray] = {}
        for ordinal in ordinals:
            if ordinal >= self.below:
                number = ordinal // CHUNK_MESSAGES
                byte, bit = divmod(ordinal % CHUNK_MESSAGES, 8)
                if number not in changed:
                    changed[number] = self._chunk(number).copy()
                changed[number][byte] |= 1 << bit
        return changed

    def _save(self, changed: dict[int, bytearray], saved: Saved | None) -> None:
        try:
            for number, chunk in changed.items():
                self._state.put(f"{self._key}/{number}", bytes(chunk))
                self._chunks[number] = chunk
        except (MetaqError, ValueError) as error:  # the table is full, or closed
            if saved is not None:
                saved(error)
            return
        below = self._first_open()
        if below > self.below:
            with suppress(MetaqError, ValueError):  # the chunks are enough; it is tried again with the next ones
                self._raise(below)
        if saved is not None:
            self._state.when_durable(saved)

    def _first_open(self) -> int:
        number, at = divmod(self.below, CHUNK_MESSAGES)
        while True:
            chunk = self._chunk(number)
            value = int.from_bytes(chunk, "little") >> at
            if value != (1 << CHUNK_MESSAGES - at) - 1:
                return number * CHUNK_MESSAGES + at + (~value & value + 1).bit_length() - 1
            number, at = number + 1, 0

    def _raise(self, below: int) -> None:
        first, last = self.below // CHUNK_MESSAGES, below // CHUNK_MESSAGES
        self._state.put(self._key, str(below).encode())
        self.below = below
        for number in range(first, last):
            if self._chunks.pop(number, None) is not None or self._state.get(f"{self._key}/{number}") is not None:
                self._state.delete(f"{self._key}/{number}")

    def _chunk(self, number: int) -> bytearray:
        chunk = self._chunks.get(number)
        if chunk is None:
            value = self._state.get(f"{self._key}/{number}") or b""
            chunk = self._chunks[number] = bytearray(value.ljust(CHUNK_BYTES, b"\0")[:CHUNK_BYTES])
        return chunk
