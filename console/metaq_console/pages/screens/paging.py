"""Pages of a table, and the order of its rows, as parameters of an address."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from metaq_console.pages.visit import Visit

ROWS: Final = 50
"""Rows of a page."""


@dataclass(frozen=True, slots=True)
class Paging:
    """Page ``number``, counted from 1, of ``total`` rows."""

    number: int
    total: int

    @property
    def count(self) -> int:
        return max(1, -(-self.total // ROWS))

    @property
    def start(self) -> int:
        return (self.number - 1) * ROWS


@dataclass(frozen=True, slots=True)
class Order:
    """The column by which rows are sorted; ``falls``: the largest first. ``text``: as in the address."""

    key: str
    falls: bool

    @property
    def text(self) -> str:
        return f"-{self.key}" if self.falls else self.key


def page_number(visit: Visit) -> int:
    """Return the number of the page that is asked for; the first one if it is not a number."""
    given = visit.given("page", "1")
    is_number = given.isdecimal() and given.isascii()
    return max(1, min(int(given[:8]), 1_000_000)) if is_number else 1


def order(visit: Visit, keys: Collection[str], default: str) -> Order:
    """Return the order that is asked for."""
    given = visit.given("sort", default)
    key = given.removeprefix("-")
    if key not in keys:
        given, key = default, default.removeprefix("-")
    return Order(key, given.startswith("-"))
