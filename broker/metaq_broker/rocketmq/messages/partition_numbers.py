"""The physical offset of a message: a number that identifies its frame, like RocketMQ's commit-log offset.

::

    bit 62          40 39                     0
        number        | offset in the stretch          number: of one stretch of 1 TiB of one partition

A stretch gets its number when its first message is sent or read by a RocketMQ client, and keeps it: the table of state
has key ``partition-number/NUMBER``, value ``incarnation (or -) / stretch / queue / topic``. A number is used when it is
durable, so that after a crash no other stretch gets it. A number is never reused, even if the table is replaced by an
older copy (``StateMark``): a recreated partition has another incarnation, and gets new numbers. A promoted slave may
not know its master's last numbers: it skips ``LEFT_OUT``. This is recorded in the mark, and for its own slaves, which
copy only the table, under the key ``partition-number-floor``. When the numbers of a deleted partition are forgotten,
the next number is recorded there, too.

Source: docs/log-format.md, "Physical offsets".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.partitions.partition_log import PartitionLog

STRETCH_BITS: Final = 40
STRETCH_BYTES: Final = 1 << STRETCH_BITS
NUMBERS_MAX: Final = 1 << 63 - STRETCH_BITS
KEY_PREFIX: Final = "partition-number/"
FLOOR_KEY: Final = "partition-number-floor"
LEFT_OUT: Final = 1 << 16
"""Numbers that a master may have assigned since its state was last copied."""
_UNKNOWN: Final = "-"

OnNumber = Callable[[int | Exception], None]


class NumberTable(Protocol):
    """The part of ``StateTable`` that is needed here."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Return keys and values."""

    def put(self, key: str, value: bytes, on_durable: Callable[[Exception | None], None] | None = None) -> None: ...

    def delete(self, key: str) -> None: ...


class Reserved(Protocol):
    """The part of ``StateMark`` that is needed here."""

    @property
    def first_number(self) -> int:
        """Lower numbers may be in use."""

    def reserve(self, number: int) -> None:
        """Ensure that a number is never assigned again, even if the table is lost. Raises ``OSError``."""


class Stretch(NamedTuple):
    """One stretch of a partition: its bytes from ``number * STRETCH_BYTES`` on; ``incarnation`` is the partition's."""

    topic: str
    queue: int
    number: int
    incarnation: str | None


class PartitionNumbers:
    """For one broker; not thread-safe."""

    def __init__(self, state: NumberTable, reserved: Reserved | None = None) -> None:
        self._state, self._reserved = state, reserved
        self._stretches: dict[int, Stretch] = {}
        self._numbers: dict[tuple[str, int, int], int] = {}
        # No message is at 0, which means none in references between messages.
        self._next = max(1, 0 if reserved is None else reserved.first_number)
        self._waiting: dict[int, list[OnNumber]] = {}
        for key, value in state.items(KEY_PREFIX):
            self._note(int(key.removeprefix(KEY_PREFIX)), _decode(value))
        for _, value in state.items(FLOOR_KEY):
            self._next = max(self._next, int(value))

    @property
    def next(self) -> int:
        """The number that the next stretch gets."""
        return self._next

    def base(self, log: PartitionLog, offset: int) -> int | None:
        """Return the number to add to offsets in the stretch of ``offset`` to make them physical.

        ``None``: it has no durable number yet; call ``require``.
        """
        stretch = offset >> STRETCH_BITS
        number = self._number_of(log, stretch)
        return None if number is None or number in self._waiting else (number - stretch) << STRETCH_BITS

    def require(self, log: PartitionLog, offset: int, then: OnNumber) -> None:
        """Call ``then`` with the result of ``base``, or the reason why there is none. At least one byte of it is
        durable.

        May call it before this returns.
        """
        stretch = offset >> STRETCH_BITS
        number = self._number_of(log, stretch)
        if number is None:
            self._assign(log, stretch, then)
        elif number in self._waiting:
            self._waiting[number].append(then)
        else:
            then((number - stretch) << STRETCH_BITS)

    def _number_of(self, log: PartitionLog, stretch: int) -> int | None:
        """Return the number of a stretch, durable or being written."""
        number = self._numbers.get((log.topic, log.index, stretch))
        if number is None:
            return None
        incarnation, present = self._stretches[number].incarnation, log.incarnation
        return number if incarnation is None or present is None or incarnation == present else None

    def find(self, physical_offset: int) -> tuple[Stretch, int] | None:
        """Return the stretch of a physical offset, and the offset in its partition; ``None`` if it is not assigned.

        The caller checks whether the partition still has that incarnation.
        """
        stretch = self._stretches.get(physical_offset >> STRETCH_BITS) if physical_offset >= 0 else None
        if stretch is None:
            return None
        return stretch, stretch.number * STRETCH_BYTES + physical_offset % STRETCH_BYTES

    def forget(self, topic: str, queue: int) -> None:
        """Forget the numbers of a partition that was deleted: its offsets lead nowhere. They are not used again."""
        at = 0
        while (number := self._numbers.get((topic, queue, at))) is not None and number not in self._waiting:
            if at == 0:
                self._state.put(FLOOR_KEY, str(self._next).encode())
            del self._numbers[topic, queue, at], self._stretches[number]
            self._state.delete(f"{KEY_PREFIX}{number}")
            at += 1

    def _assign(self, log: PartitionLog, stretch_number: int, then: OnNumber) -> None:
        number = self._next
        stretch = Stretch(log.topic, log.index, stretch_number, log.incarnation)
        if number >= NUMBERS_MAX:
            then(OverflowError(f"{number} numbers for partitions are in use, there are no more"))
            return
        try:
            if self._reserved is not None:
                self._reserved.reserve(number)
        except OSError as error:
            then(error)
            return
        self._note(number, stretch)
        self._waiting[number] = [then]

        def written(error: Exception | None) -> None:
            waiting = self._waiting.pop(number)
            if error is not None:
                self._numbers.pop((log.topic, log.index, stretch_number), None)
            for each in waiting:
                each((number - stretch_number) << STRETCH_BITS if error is None else error)

        try:
            self._state.put(f"{KEY_PREFIX}{number}", _encode(stretch), written)
        except Exception as error:  # it is full or closed
            written(error)

    def _note(self, number: int, stretch: Stretch) -> None:
        self._stretches[number] = stretch
        self._next = max(self._next, number + 1)
        key = stretch.topic, stretch.queue, stretch.number
        self._numbers[key] = max(number, self._numbers.get(key, -1))


def leave_numbers_out(state: NumberTable, reserved: Reserved) -> None:
    """Skip numbers that the master may have assigned after the copy of ``state``.

    Raises:
        OSError: The disk refuses (it is written at once).
    """
    reserved.reserve(PartitionNumbers(state).next + LEFT_OUT)
    with suppress(StateFull):  # only a slave of this broker would need it
        state.put(FLOOR_KEY, str(reserved.first_number).encode())


def _encode(stretch: Stretch) -> bytes:
    return f"{stretch.incarnation or _UNKNOWN}/{stretch.number}/{stretch.queue}/{stretch.topic}".encode()


def _decode(value: bytes) -> Stretch:
    incarnation, number, queue, topic = value.decode().split("/", 3)
    return Stretch(topic, int(queue), int(number), None if incarnation == _UNKNOWN else incarnation)
