"""Handling of lost and damaged messages: the options ``failOnDataLoss`` and ``onCorrupt``.

``onCorrupt`` determines the handling of damage:

``fail``        the task fails; nothing else is done
``skip``        a warning in the executor's log; reading continues with the next message
``deadletter``  the same, after the damaged bytes were stored in another topic

A dead letter is one message. Its payload is the damaged bytes, header included, at most ``LETTER_BYTES_MAX`` of them;
its attribute is ``topic=..;partition=..;start=..;end=..;reason=..``, for ``attributeFormat`` = ``map``. A broker does
not serve quarantined bytes, so their letter has an empty payload. A repeated task stores the letter again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import DataLoss
from metaq_spark.offsets import unit_of

LETTER_BYTES_MAX: Final = 1_000_000
"""A letter with its header and attribute fits into one transfer of a broker with default settings."""

ReportLoss = Callable[[str], None]
"""``report_data_loss`` with a fixed policy: raises, or warns and returns."""

ReadDamaged = Callable[[int, int], bytes]
"""Reads bytes of the damaged partition: offset, count. Returns fewer at the end of the log."""

_log = logging.getLogger(__name__)


def report_data_loss(what: str, *, fail: bool) -> None:
    """Fail the query, or log a warning and return, as the option ``failOnDataLoss`` says.

    Raises:
        DataLoss: ``fail`` is true.
    """
    if fail:
        raise DataLoss(what)
    _log.warning("%s. Reading continues, because failOnDataLoss is false", what)


class LossReport:
    """``report_data_loss`` for callers that see the same loss at every poll: warns of each once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def __call__(self, what: str) -> None:
        """Fail, or warn once.

        Raises:
            DataLoss: Losses fail the query.
        """
        if what not in self._reported:
            report_data_loss(what, fail=self._fail)
            self._reported.add(what)


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Unreadable offsets of ``source``; ``served`` if the broker returns their bytes."""

    source: TopicPartition
    offsets: OffsetRange
    reason: str
    served: bool = True

    def __str__(self) -> str:
        start, end = self.offsets.start, self.offsets.end
        return f"{self.source}: {unit_of(self.source)} [{start}, {end}) are damaged: {self.reason}"

    @property
    def attribute(self) -> str:
        """The attribute of the dead letter."""
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
    """A value of the option."""

    fails: bool
    """Whether damage ends the task; then ``handle`` is not called."""

    def handle(self, damage: UnreadableRange, read: ReadDamaged) -> None:
        """Handle damage before it is skipped; ``read`` returns its bytes."""


class Fail:
    """``fail``."""

    fails = True

    def handle(self, damage: UnreadableRange, read: ReadDamaged) -> None:
        """Not called."""


class Skip:
    """``skip``."""

    fails = False

    def handle(self, damage: UnreadableRange, read: ReadDamaged) -> None:
        _log.warning("%s. Skipped, because onCorrupt is skip", damage)
