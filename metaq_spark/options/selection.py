"""The topics and partitions of a read: named topics, a pattern of names, or given partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from metaq.model import Partition, TopicPartition


@dataclass(frozen=True, slots=True)
class Named:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """All partitions of the topics whose whole name matches."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions of each topic."""

    partitions: Mapping[str, frozenset[Partition]]


Selection = Named | TopicPattern | Assigned
_Value = TypeVar("_Value")


def topics_of(selection: Selection) -> list[str] | None:
    """Return the named topics; ``None`` for a pattern."""
    match selection:
        case Named(topics):
            return list(topics)
        case Assigned(partitions):
            return list(partitions)
        case TopicPattern():
            return None


def option_of(selection: Selection) -> str:
    """Return the option of a selection."""
    match selection:
        case Named():
            return "subscribe"
        case Assigned():
            return "assign"
        case TopicPattern():
            return "subscribePattern"


def chosen(selection: Selection, found: Mapping[TopicPartition, _Value]) -> dict[TopicPartition, _Value]:
    """The part of ``found`` that the selection is about."""
    return {where: value for where, value in found.items() if is_chosen(selection, where)}


def is_chosen(selection: Selection, where: TopicPartition) -> bool:
    """Whether the selection is about a partition."""
    match selection:
        case Named(topics):
            return where.topic in topics
        case TopicPattern(pattern):
            return pattern.fullmatch(where.topic) is not None
        case Assigned(partitions):
            return where.partition in partitions.get(where.topic, ())
