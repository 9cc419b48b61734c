"""Where a read starts or ends: a small family of values, parsed from ``startingOffsets`` and ``endingOffsets``.

``Earliest``, ``Latest`` and ``Group`` name no partition; ``Specific`` and ``Timestamps`` name theirs. Turning a
position into byte offsets needs to know what the brokers hold and is done in ``planning``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.model import INT64_MAX, Partition, TopicPartition
from metaq_spark.options.values import timestamp_ms

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What stands for "earliest" and "latest" inside the JSON form, as in Spark's Kafka source."""

POSITION_SYNTAX: Final = (
    'earliest, latest, group, or JSON such as {"orders": {"0-0": 123, "0-1": -2}} where -2 is earliest and -1 is latest'
)

TIMESTAMPS_SYNTAX: Final = (
    'JSON with ms since 1970 or ISO 8601, such as {"orders": {"0-0": 1795156200000, "0-1": "2026-11-20T06:30:00Z"}}'
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


@dataclass(frozen=True, slots=True)
class Group:
    """Where a MetaQ consumer group has come to."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The first message at or after a time, in ms since 1970: one for all partitions, or one for each."""

    of_all_ms: int | None = None
    of_each_ms: Mapping[TopicPartition, int] = field(default_factory=dict)


Position = Earliest | Latest | Group | Specific | Timestamps


def parse_position(text: str) -> Position:
    """Read ``earliest``, ``latest``, ``group`` or the JSON form.

    Raises:
        ValueError: The text is none of these; the message says what was wrong.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if word.lower() == "group":
        return Group()
    return Specific({where: _offset(where, value) for where, value in _entries(word, POSITION_SYNTAX)})


def parse_timestamps(text: str) -> Timestamps:
    """Read the JSON form with times in ms since 1970 or ISO 8601.

    Raises:
        ValueError: The text is not that; the message says what was wrong.
    """
    return Timestamps(of_each_ms={where: _time(where, value) for where, value in _entries(text, TIMESTAMPS_SYNTAX)})


def _entries(text: str, syntax: str) -> list[tuple[TopicPartition, object]]:
    word = text.strip()
    if not word.startswith("{"):
        raise ValueError(f"expected {syntax}")
    try:
        tree = json.loads(word)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error}); expected {syntax}") from None
    entries = []
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"topic {topic!r} needs an object of partitions; expected {syntax}")
        entries += [(TopicPartition(topic, Partition.parse(name)), value) for name, value in partitions.items()]
    return entries


def _offset(where: TopicPartition, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST_OFFSET <= value <= INT64_MAX:
        raise ValueError(f"{where}: {value!r} is no byte offset; expected {POSITION_SYNTAX}")
    return value


def _time(where: TopicPartition, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {value!r} is no time; expected {TIMESTAMPS_SYNTAX}")
    try:
        return timestamp_ms(str(value))
    except ValueError as error:
        raise ValueError(f"{where}: {value!r}: {error}") from None
