"""Where a read starts or ends: a small family of values, parsed from ``startingOffsets`` and ``endingOffsets``.

``Earliest``, ``Latest`` and ``Group`` name no partition; ``Specific`` and ``Timestamps`` name theirs. A format's
``Notation`` defines the text of topics, partitions and offsets. ``source/resolution.py`` resolves positions into
offsets, which needs the brokers' ranges.
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
"""Values for "earliest" and "latest" in the JSON form, as in Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first message that each partition still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of each partition at the time of the request."""


@dataclass(frozen=True, slots=True)
class Specific:
    """An offset for each partition, or ``EARLIEST_OFFSET`` / ``LATEST_OFFSET``."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Group:
    """The committed offsets of a consumer group."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The first message at or after a time, in ms since 1970: one for all partitions, or one for each."""

    of_all_ms: int | None = None
    of_each_ms: Mapping[TopicPartition, int] = field(default_factory=dict)


Position = Earliest | Latest | Group | Specific | Timestamps


@dataclass(frozen=True, slots=True)
class Notation:
    """A format's notation of topics, partitions and offsets in options.

    ``name``, ``group_name``: valid names of topics and of groups. ``columns``: the columns of a read. ``words``: values
    for the words in braces in the documentation of shared options, such as ``first`` and ``second``, two partitions,
    and ``offset``, the term for an offset.
    """

    parse_partition: ParsePartition
    name: Name
    group_name: Name
    columns: Collection[str]
    words: Mapping[str, str]

    @property
    def examples(self) -> tuple[str, str]:
        return self.words["first"], self.words["second"]

    @property
    def offset(self) -> str:
        """The term for an offset, such as "byte offset"."""
        return self.words["offset"]

    def fill(self, text: str) -> str:
        """Replace the words in braces in ``text`` by the format's."""
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
        return self.group_name(text)

    def chosen_columns(self, text: str) -> tuple[str, ...]:
        """Read names of columns. Raises as ``choose_columns``."""
        return choose_columns(text, self.columns)

    @property
    def position_syntax(self) -> str:
        """The syntax of ``position``, for messages."""
        first, second = self.examples
        return (
            f'earliest, latest, group, or JSON such as {{"orders": {{"{first}": 123, "{second}": -2}}}} where -2 is '
            "earliest and -1 is latest"
        )

    @property
    def timestamps_syntax(self) -> str:
        """The syntax of ``timestamps``, for messages."""
        first, second = self.examples
        example = f'{{"orders": {{"{first}": 1795156200000, "{second}": "2026-11-20T06:30:00Z"}}}}'
        return f"JSON with ms since 1970 or ISO 8601, such as {example}"

    @property
    def assignment_syntax(self) -> str:
        """The syntax of ``assignment``, for messages."""
        first, second = self.examples
        return f'JSON such as {{"orders": ["{first}", "{second}"]}}'

    def position(self, text: str) -> Position:
        """Parse ``earliest``, ``latest``, ``group`` or the JSON form.

        Raises:
            ValueError: The text has another form; the error says what is wrong.
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
        """Parse the JSON form with times in ms since 1970 or ISO 8601.

        Raises:
            ValueError: The text has another form; the error says what is wrong.
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
"""``parse`` of an option's row if it depends on the format."""


def _json(text: str, syntax: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error}); expected {syntax}") from None
