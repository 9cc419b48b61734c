"""Outcomes of ending a half message."""

from __future__ import annotations

from dataclasses import dataclass

from metaq_broker.log.engine.outcomes import Refusal


@dataclass(frozen=True, slots=True)
class Decided:
    """The message is delivered (``commit``), or never will be; that is durable."""

    commit: bool


@dataclass(frozen=True, slots=True)
class HalfUnknown(Refusal):
    """There is no half message with this ordinal."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class HalfEnded(Refusal):
    """The half message was committed or rolled back before, or is being ended now. Nothing was done."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class GroupWrong(Refusal):
    """The half message is of another producer group."""

    group: str


@dataclass(frozen=True, slots=True)
class OriginWrong(Refusal):
    """The half message with this ordinal is stored at another place."""

    origin: int
