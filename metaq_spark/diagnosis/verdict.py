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


MEANINGS: Final[Mapping[QueryVerdict, tuple[str, int]]] = {
    QueryVerdict.IDLE: ("everything is read", 0),
    QueryVerdict.WORKING: (
        "a batch runs within its usual time, batches follow each other and the query keeps up, or it has just started",
        0,
    ),
    QueryVerdict.CATCHING_UP: ("messages wait, and it reads faster than they arrive; with the time to go", 0),
    QueryVerdict.WAITING: ("messages wait on purpose: for the trigger, for `minOffsetsPerTrigger`, for a start", 0),
    QueryVerdict.FALLING_BEHIND: ("messages arrive faster than it reads; with both rates", 10),
    QueryVerdict.STUCK: ("a batch takes far longer than usual, or none begins though messages wait", 11),
    QueryVerdict.FAILED: ("the last run ended with an error, or the checkpoint is damaged", 12),
    QueryVerdict.GONE: ("no driver runs the query, and messages wait", 13),
    QueryVerdict.UNKNOWN: ("the evidence does not say; what is missing is named", 14),
    QueryVerdict.NOT_OURS: ("the checkpoint is of another connector, such as Kafka or files", 15),
}
"""What each verdict means, and the exit status of the command."""

EXIT_CODES: Final[Mapping[QueryVerdict, int]] = {verdict: code for verdict, (_, code) in MEANINGS.items()}
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
    """What a rule found. ``verdict``: the verdict that it is the reason for, if it is one.

    ``title``: what is the case, in general. ``chinese``: title and advice in Chinese.
    """

    rule: str
    sentence: str
    advice: str
    command: str
    numbers: tuple[Number, ...] = ()
    verdict: QueryVerdict | None = None
    title: str = ""
    chinese: tuple[str, str] = ("", "")

    @property
    def block(self) -> str:
        """The letter of the rule's block."""
        return self.rule[0]
