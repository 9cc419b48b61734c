"""Checks an interrupted consumer: of each partition it must hand out the next message, or the last one again. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


class Broken(Exception):
    """A message was skipped, or one was repeated that was not being handled."""


@dataclass(slots=True)
class Sequence:
    """Follows message numbers, which begin at 0 in each partition. Counts ``handled`` and ``repeated`` messages."""

    handled: int = 0
    repeated: int = 0
    _next: dict[Hashable, int] = field(default_factory=dict)

    def note(self, partition: Hashable, number: int) -> None:
        """Check a message that a handler received.

        Raises:
            Broken: It is neither the next one of its partition nor the last one.
        """
        expected = self._next.get(partition, 0)
        if number == expected:
            self._next[partition] = expected + 1
            self.handled += 1
        elif number == expected - 1:
            self.repeated += 1
        else:
            raise Broken(f"partition {partition}: message {number}, expected {expected}, or {expected - 1} again")
