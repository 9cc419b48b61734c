"""What happens to damaged messages: the option ``onCorrupt`` as an object.

``fail``        the task fails; nothing else is done
``skip``        a warning in the executor's log, and on with the next message
``deadletter``  the same, after the damaged bytes were stored in another topic

A dead letter is one message. Its payload is the damaged bytes, header included, at most ``LETTER_BYTES_MAX`` of them;
its attribute says ``topic=..;partition=..;start=..;end=..;reason=..``, which ``attributeFormat`` = ``map`` reads. The
bytes that a broker has quarantined are not served by it, so their letter has an empty payload. A task that runs again
stores it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from metaq.model import OffsetRange, TopicPartition

LETTER_BYTES_MAX: Final = 1_000_000
"""So that a letter with its header and attribute fits into one transfer of a broker with default settings."""

ReadDamaged = Callable[[int, int], bytes]
"""Reads bytes of the damaged partition: offset, count. Fewer come where its log ends."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of ``source`` that are no messages, as far as anybody knows; ``served`` if the broker gives them out."""

    source: TopicPartition
    offsets: OffsetRange
    reason: str
    served: bool = True

    def __str__(self) -> str:
        start, end = self.offsets.start, self.offsets.end
        return f"{self.source}: bytes [{start}, {end}) are damaged: {self.reason}"

    @property
    def attribute(self) -> str:
        """What a dead letter's attribute says."""
        where = self.source
        pairs = {
            "topic": where.topic,
            "partition": where.partition,
            "start": self.offsets.start,
            "end": self.offsets.end,
            "reason": self.reason,
        }
        return ";".join(f"{key}={str(value).replace(';', ',')}" for key, value in pairs.items())


class DamageHandler(Protocol):
    """One way to go on."""

    fails: bool
    """Whether damage ends the task; then ``handle`` is not called."""

    def handle(self, damage: Damage, read: ReadDamaged) -> None:
        """Do what is to be done before the damage is passed over; ``read`` gives its bytes."""


class Fail:
    """``fail``."""

    fails = True

    def handle(self, damage: Damage, read: ReadDamaged) -> None:
        """Not called."""


class Skip:
    """``skip``."""

    fails = False

    def handle(self, damage: Damage, read: ReadDamaged) -> None:
        """Warn."""
        _log.warning("%s. Skipped, because onCorrupt is skip", damage)
