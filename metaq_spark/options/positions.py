"""Where a read starts or ends: a small family of values, parsed from ``startingOffsets`` and ``endingOffsets``.

``Earliest``, ``Latest`` and ``Group`` name no partition; ``Specific`` and ``Timestamps`` name theirs. How topics,
partitions and offsets are written is a format's ``Notation``. Turning a position into offsets needs to know what the
brokers hold and is done in ``source/resolution.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from metaq.model import INT64_MAX, Partition, TopicPartition
from metaq_spark.columns.row_layout import choose_columns
from metaq_spark.offsets import ParsePartition
from metaq_spark.options.values import Name, listed, timestamp_ms

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""What stands for "earliest" and "latest" inside the JSON form, as in Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first message that each partition still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of each partition at the moment of asking."""


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition, or ``EARLIEST_OFFSET`` / ``LATEST_OFFSET``."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Group:
    """Where a consumer group has come to."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The first message at or after a time, in ms since 1970: one for all partitions, or one for each."""

    of_all_ms: int | None = None
    of_each_ms: Mapping[TopicPartition, int] = field(default_factory=dict)


Position = Earliest | Latest | Group | Specific | Timestamps


@dataclass(frozen=True, slots=True)
class Notation:
    """How the options of a format write topics, partitions and offsets.

    ``name``: what is allowed in the name of a topic or a group. ``columns``: those that a read has. ``words``: what
    the documentation of shared options has in braces, such as ``first`` and ``second``, two partitions, and ``offset``,
    what an offset is called.
    """

    parse_partition: ParsePartition
    name: Name
    columns: Collection[str]
    words: Mapping[str, str]

    @property
    def examples(self) -> tuple[str, str]:
        """Two partitions."""
        return self.words["first"], self.words["second"]

    @property
    def offset(self) -> str:
        """What an offset is called, such as "byte offset"."""
        return self.words["offset"]

    def fill(self, text: str) -> str:
        """``text`` with the format's words in place of those in braces."""
        for name, word in self.words.items():
            text = text.replace("{" + name + "}", word)
        return text

    def topic(self, text: str) -> str:
        """Read the name of a topic. Raises as ``Name``."""
        return self.name(text)

    def topics(self, text: str) -> tuple[str, ...]:
        """Read names of topics, separated by commas. Raises as ``Name``."""
        return tuple(dict.fromkeys(map(self.name, listed(text, "topic names"))))

    def group(self, text: str) -> str:
        """Read the name of a group. Raises as ``Name``."""
        return self.name.of("group")(text)

    def chosen_columns(self, text: str) -> tuple[str, ...]:
        """Read names of columns. Raises as ``choose_columns``."""
        return choose_columns(text, self.columns)

    @property
    def position_syntax(self) -> str:
        """What ``position`` takes, for messages."""
        first, second = self.examples
        return (
            f'earliest, latest, group, or JSON such as {{"orders": {{"{first}": 123, "{second}": -2}}}} where -2 is '
            "earliest and -1 is latest"
        )

    @property
    def timestamps_syntax(self) -> str:
        """What ``timestamps`` takes, for messages."""
        first, second = self.examples
        example = f'{{"orders": {{"{first}": 1795156200000, "{second}": "2026-11-20T06:30:00Z"}}}}'
        return f"JSON with ms since 1970 or ISO 8601, such as {example}"

    @property
    def assignment_syntax(self) -> str:
        """What ``assignment`` takes, for messages."""
        first, second = self.examples
        return f'JSON such as {{"orders": ["{first}", "{second}"]}}'

    def position(self, text: str) -> Position:
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
        entries = self._entries(word, self.position_syntax)
        return Specific({where: self._offset(where, value) for where, value in entries})

    def timestamps(self, text: str) -> Timestamps:
        """Read the JSON form with times in ms since 1970 or ISO 8601.

        Raises:
            ValueError: The text is not that; the message says what was wrong.
        """
        entries = self._entries(text.strip(), self.timestamps_syntax)
        return Timestamps(of_each_ms={where: self._time(where, value) for where, value in entries})

    def assignment(self, text: str) -> dict[str, frozenset[Partition]]:
        """Read the option ``assign``: lists of partitions by topic.

        Raises:
            ValueError: The text is not that form, names no partition, or one twice.
        """
        tree = _json(text, self.assignment_syntax)
        if not isinstance(tree, dict) or not tree:
            raise ValueError(f"expected {self.assignment_syntax}")
        return {self.name(topic): self._partitions(topic, names) for topic, names in tree.items()}

    def _partitions(self, topic: str, names: object) -> frozenset[Partition]:
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"topic {topic!r} needs a list of partitions; expected {self.assignment_syntax}")
        found = frozenset(map(self.parse_partition, names))
        if len(found) < len(names):
            raise ValueError(f"topic {topic!r} names a partition twice")
        return found

    def _entries(self, word: str, syntax: str) -> list[tuple[TopicPartition, object]]:
        if not word.startswith("{"):
            raise ValueError(f"expected {syntax}")
        entries = []
        for topic, partitions in _json(word, syntax).items():
            if not isinstance(partitions, dict):
                raise ValueError(f"topic {topic!r} needs an object of partitions; expected {syntax}")
            entries += [
                (TopicPartition(topic, self.parse_partition(name)), value) for name, value in partitions.items()
            ]
        return entries

    def _offset(self, where: TopicPartition, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST_OFFSET <= value <= INT64_MAX:
            raise ValueError(f"{where}: {value!r} is no {self.offset}; expected {self.position_syntax}")
        return value

    def _time(self, where: TopicPartition, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{where}: {value!r} is no time; expected {self.timestamps_syntax}")
        try:
            return timestamp_ms(str(value))
        except ValueError as error:
            raise ValueError(f"{where}: {value!r}: {error}") from None


NOTATED: Final = (
    *(Notation.position, Notation.timestamps, Notation.assignment),
    *(Notation.topic, Notation.topics, Notation.group, Notation.chosen_columns),
)
"""What an option's row has as its ``parse`` where that depends on the format."""


def _json(text: str, syntax: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error}); expected {syntax}") from None
