"""Reads the arguments of a control command; whatever is missing, too much or wrong is refused with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from metaq.model import INT32_MAX, INT32_MIN
from metaq_broker.admin.messages import MALFORMED, CommandRefused

RANGE_MAX: Final = 100_000
"""Most partitions that one command may name."""

_MISSING: Final = object()


class Arguments:
    """The arguments of one request. Take them one by one, then call ``end``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._left = dict(values)

    def text(self, name: str) -> str:
        """Take a text that is not empty.

        Raises:
            CommandRefused: It is missing or none.
        """
        value = self._left.pop(name, _MISSING)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        """Take a text that may be missing. Raises as ``text``."""
        return self.text(name) if self._left.get(name) is not None else self._left.pop(name, None)

    def number(self, name: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
        """Take a whole number ``low..high``.

        Raises:
            CommandRefused: It is missing or none.
        """
        value = self._left.pop(name, _MISSING)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number {low}..{high}")
        return value

    def flag(self, name: str) -> bool:
        """Take true or false; missing is false. Raises as ``text``."""
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def indexes(self) -> Sequence[int]:
        """Take ``first`` and ``last`` (missing: the same) and return the partition indexes from one to the other.

        Raises:
            CommandRefused: They are no range, or one of too many partitions.
        """
        first = self.number("first", 0)
        last = self.number("last", 0) if self._left.get("last") is not None else first
        self._left.pop("last", None)
        if not first <= last < first + RANGE_MAX:
            raise CommandRefused(
                MALFORMED, f"partitions {first}-{last}: expected FIRST-LAST, at most {RANGE_MAX} of them"
            )
        return range(first, last + 1)

    def end(self) -> None:
        """Make sure that nothing is left.

        Raises:
            CommandRefused: There is an argument that the command does not know.
        """
        if self._left:
            raise CommandRefused(MALFORMED, f"unknown argument {min(self._left)[:80]!r}")

    def _wrong(self, name: str, value: object, allowed: str) -> CommandRefused:
        given = "is missing" if value is _MISSING else f"is {str(value)[:80]!r}"
        return CommandRefused(MALFORMED, f"argument {name!r} {given}; expected {allowed}")
