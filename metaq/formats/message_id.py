"""Message ids: 64 bits that grow with time and name the broker that gave them.

::

    bit   63        22 21      12 11       0
          milliseconds | broker id | sequence      milliseconds since EPOCH_MS, a signed number

A Java broker counts the milliseconds of its machine's uptime, so its ids are negative and may repeat after a reboot.
Ids made here are based on the wall clock and positive; ids of one ``IdWorker`` grow. Readers treat ids as opaque.

Source: docs/protocol.md, "Message ids".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from metaq.model import BROKER_ID_MAX

EPOCH_MS: Final = 1303895660503
"""Wall-clock milliseconds at which ids start."""

SEQUENCE_BITS: Final = 12
"""Bits of an id below its broker's: the sequence within a millisecond."""
TIME_SHIFT: Final = 22
"""Bits of an id below its milliseconds since ``EPOCH_MS``."""
IDS_PER_MS: Final = 1 << SEQUENCE_BITS

LATEST_MS: Final = EPOCH_MS + (1 << 63 - TIME_SHIFT) - 86_400_000 - 1
"""Last wall-clock milliseconds at which ids are made: they overflow in 2080; a day is left for ids that run ahead of
the clock.
"""

# A "tick" is (milliseconds since EPOCH_MS) * IDS_PER_MS + sequence: an id without the broker's bits. The ticks of
# consecutive ids are consecutive numbers.


def _id_at(tick: int, broker_id: int) -> int:
    return (tick >> SEQUENCE_BITS) << TIME_SHIFT | broker_id << SEQUENCE_BITS | tick & IDS_PER_MS - 1


@dataclass(slots=True)
class IdRange:
    """``count`` consecutive ids of one broker: the sequence counts up and carries into the next millisecond.

    ``first_ms`` is wall-clock milliseconds. Consecutive ids are not consecutive integers where the sequence carries.
    A range is never changed; frozen it would take three times as long to make.
    """

    first_ms: int
    first_sequence: int
    count: int
    broker_id: int

    @classmethod
    def starting_at(cls, message_id: int, count: int) -> IdRange:
        """Return the ``count`` ids from ``message_id`` on; a client derives the ids of a batch from the first."""
        broker_id = message_id >> SEQUENCE_BITS & BROKER_ID_MAX
        return cls((message_id >> TIME_SHIFT) + EPOCH_MS, message_id & IDS_PER_MS - 1, count, broker_id)

    @property
    def first(self) -> int:
        """The first id; it exists even when ``count`` is 0."""
        ms = self.first_ms - EPOCH_MS
        return ms << TIME_SHIFT | self.broker_id << SEQUENCE_BITS | self.first_sequence

    @property
    def first_tick(self) -> int:
        """The first id without the broker's bits; the values of the others follow consecutively."""
        return ((self.first_ms - EPOCH_MS) << SEQUENCE_BITS) + self.first_sequence

    def at(self, index: int) -> int:
        """Return id number ``index``, 0..count-1.

        Raises:
            IndexError: ``index`` is outside the range.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"id {index} of a range of {self.count}")
        return _id_at(self.first_tick + index, self.broker_id)

    def __iter__(self) -> Iterator[int]:
        first, broker_id = self.first_tick, self.broker_id
        return (_id_at(tick, broker_id) for tick in range(first, first + self.count))

    def __len__(self) -> int:
        return self.count


class IdWorker:
    """Generates the ids of one broker, each larger than the one before.

    It never waits: when more than 4096 ids are taken in a millisecond, or the clock goes back, ids run
    ahead of the clock until the clock has caught up. Not thread-safe.
    """

    def __init__(self, broker_id: int) -> None:
        """Start with the ids of ``broker_id``.

        Raises:
            ValueError: ``broker_id`` is not 0..1023.
        """
        if not 0 <= broker_id <= BROKER_ID_MAX:
            raise ValueError(f"broker id {broker_id}: expected 0..{BROKER_ID_MAX}")
        self._broker_id = broker_id
        self._next_tick: int | None = None

    def next_id(self, now_ms: int) -> int:
        """Return a new id for wall-clock time ``now_ms``."""
        return self.reserve(1, now_ms).first

    def reserve(self, count: int, now_ms: int) -> IdRange:
        """Return ``count`` new consecutive ids.

        Raises:
            ValueError: ``count`` is below 1, or ids cannot represent the time; nothing was reserved.
        """
        if count < 1:
            raise ValueError(f"cannot reserve {count} ids: expected 1 or more")
        if now_ms > LATEST_MS:
            raise ValueError(f"cannot take ids at {now_ms} ms: expected at most {LATEST_MS}")
        tick = (now_ms - EPOCH_MS) << SEQUENCE_BITS
        if self._next_tick is not None and self._next_tick > tick:
            tick = self._next_tick
        self._next_tick = tick + count
        return IdRange((tick >> SEQUENCE_BITS) + EPOCH_MS, tick & IDS_PER_MS - 1, count, self._broker_id)

    def start_above(self, message_id: int) -> None:
        """Let every further id be above ``message_id``, whatever the clock says; a negative one has no effect."""
        if message_id >= 0:
            tick = (message_id >> TIME_SHIFT << SEQUENCE_BITS | message_id & IDS_PER_MS - 1) + 1
            self._next_tick = tick if self._next_tick is None else max(tick, self._next_tick)

    def step_back(self) -> None:
        """Let the next id use the clock, even if the clock has gone back: earlier ids were ahead of time."""
        self._next_tick = None


def timestamp_ms(message_id: int) -> int | None:
    """Return the wall-clock milliseconds in an id; ``None`` for negative ids, which contain no time."""
    return None if message_id < 0 else (message_id >> TIME_SHIFT) + EPOCH_MS
