"""Verdicts, and findings with their numbers. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class QueryVerdict(enum.StrEnum):
    """How the query is."""

    IDLE = "idle"
    WORKING = "working"
    CATCHING_UP = "catching up"
    FALLING_BEHIND = "falling behind"
    WAITING = "waiting"
    STUCK = "stuck"
    FAILED = "failed"
    GONE = "gone"
    UNKNOWN = "unknown"
    NOT_OURS = "not ours"


EXIT_CODES: Final[Mapping[QueryVerdict, int]] = {
    QueryVerdict.IDLE: 0,
    QueryVerdict.WORKING: 0,
    QueryVerdict.CATCHING_UP: 0,
    QueryVerdict.WAITING: 0,
    QueryVerdict.FALLING_BEHIND: 10,
    QueryVerdict.STUCK: 11,
    QueryVerdict.FAILED: 12,
    QueryVerdict.GONE: 13,
    QueryVerdict.UNKNOWN: 14,
    QueryVerdict.NOT_OURS: 15,
}
"""The exit status of the command for each verdict."""


@dataclass(frozen=True, slots=True)
class Number:
    """A figure of a finding; ``age_s``: seconds since it was measured."""

    name: str
    value: float | int | str
    unit: str
    age_s: float


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What a rule found. ``verdict``: the verdict that it is the reason for, if it is one."""

    rule: str
    sentence: str
    advice: str
    command: str
    numbers: tuple[Number, ...] = ()
    verdict: QueryVerdict | None = None

    @property
    def block(self) -> str:
        """The letter of the rule's block."""
        return self.rule[0]
