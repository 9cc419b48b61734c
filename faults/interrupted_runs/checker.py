"""What a consumer that is interrupted may hand out: of each partition the next message, or the last one again. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


class Broken(Exception):
    """A message was skipped, or another one than that in hand was repeated."""


@dataclass(slots=True)
class Sequence:
    """Follows numbers that begin at 0 in each partition. ``handled`` is how many there are, ``repeated`` how often."""

    handled: int = 0
    repeated: int = 0
    _next: dict[Hashable, int] = field(default_factory=dict)

    def note(self, partition: Hashable, number: int) -> None:
        """A handler gets a message.

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
