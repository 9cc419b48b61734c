"""Where a read starts or ends: a small family of values, parsed from ``startingOffsets`` and ``endingOffsets``.

``Earliest`` and ``Latest`` name no partition; ``Specific`` names every one. Turning a position into byte offsets
needs to know what the brokers hold and is done in ``planning``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metaq.model import INT64_MAX, Partition, TopicPartition

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What stands for "earliest" and "latest" inside the JSON form, as in Spark's Kafka source."""

POSITION_SYNTAX: Final = (
    'earliest, latest, or JSON such as {"orders": {"0-0": 123, "0-1": -2}} where -2 is earliest and -1 is latest'
)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first byte that each partition still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of each partition at the moment of asking."""


@dataclass(frozen=True, slots=True)
class Specific:
    """A byte offset for each partition, or ``EARLIEST_OFFSET`` / ``LATEST_OFFSET``."""

    offsets: Mapping[TopicPartition, int]


Position = Earliest | Latest | Specific


def parse_position(text: str) -> Position:
    """Read ``earliest``, ``latest`` or the JSON form.

    Raises:
        ValueError: The text is none of these; the message says what was wrong.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if not word.startswith("{"):
        raise ValueError(f"expected {POSITION_SYNTAX}")
    try:
        tree = json.loads(word)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error}); expected {POSITION_SYNTAX}") from None
    return Specific(dict(_entries(tree)))


def _entries(tree: dict[str, object]) -> list[tuple[TopicPartition, int]]:
    entries = []
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"topic {topic!r} needs an object of partitions; expected {POSITION_SYNTAX}")
        for name, offset in partitions.items():
            entries.append((TopicPartition(topic, Partition.parse(name)), _offset(topic, name, offset)))
    return entries


def _offset(topic: str, partition: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST_OFFSET <= value <= INT64_MAX:
        raise ValueError(f"{topic}/{partition}: {value!r} is no byte offset; expected {POSITION_SYNTAX}")
    return value
