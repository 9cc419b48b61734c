"""Parses the answers to ``stats`` of a Java broker or the bundled one. Pure: text in, values out.

Lines are ``STATS`` ... ``END``, ended by CR LF, tokens separated by one space; ``config`` is the raw server.ini.
Source: docs/protocol.md (stats), docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from metaq.errors import ProtocolError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition

_OFFSETS_LINE = re.compile(r"(\S+) part (\d+) min_offset (\d+) max_offset (\d+)")
_INCARNATIONS_LINE = re.compile(r"(\S+) (\d+) (-|[0-9a-f]{32}) (\d+) (\d+)")
_PRODUCT = re.compile(r"\d+(?:\s*\*\s*\d+)*")
_TOPIC_SECTION = "topic="

SETTINGS_KEPT: Final = 64
"""Limit on parsed answers to ``stats config`` that are cached: about one per broker."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The identity that a broker reports."""

    broker_id: int
    slave: bool


def parse_broker(text: str) -> BrokerInfo:
    """Parse the answer to ``stats`` without an item.

    Raises:
        ProtocolError: It has no broker id.
    """
    fields = dict(line.partition(" ")[::2] for line in lines_of(text))
    if not fields.get("broker_id", "").isdecimal():
        raise ProtocolError("the answer to stats has no broker_id", text.encode(errors="replace"))
    return BrokerInfo(int(fields["broker_id"]), fields.get("slave") == "true")


def parse_figures(text: str) -> dict[str, str]:
    """Parse an answer with lines of a name, a blank and a value; a line of one word has an empty value.

    Raises:
        ProtocolError: It is not an answer to ``stats``.
    """
    parts = (line.partition(" ") for line in lines_of(text))
    return {name: value for name, _, value in parts if name}


def parse_topics(text: str) -> list[str]:
    """Parse the topics in the answer to ``stats topics``, without the patterns (``*``) of the configuration."""
    return [topic for line in lines_of(text) if (topic := line.split(" ")[0]) and "*" not in topic]


def parse_offered(text: str) -> dict[str, bool]:
    """Parse the answer to ``stats topics``: topic -> whether it has partitions that producers or consumers may use.

    Patterns (``*``) of the configuration are left out.
    """
    return {
        topic: "partitions" in fields and {fields.get("accept_publish"), fields.get("accept_subscribe")} != {"false"}
        for topic, fields in topic_fields(text)
    }


def topic_fields(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each topic in the answer to ``stats topics`` with its fields; an empty topic has none."""
    for line in lines_of(text):
        topic, *words = line.split(" ")
        if topic and "*" not in topic:
            yield topic, dict(zip(words[::2], words[1::2], strict=False))


def data_folder(text: str) -> str | None:
    """Return the folder of messages in the answer to ``stats config``; ``None`` if it is not configured."""
    return _ini_sections(text).get("system", {}).get("dataPath") or None


def parse_offsets(text: str) -> dict[tuple[str, int], OffsetRange]:
    """Parse the answer to ``stats offsets``: topic and partition index to ``[min_offset, max_offset)``.

    Raises:
        ProtocolError: A line has another form.
    """
    return dict(map(offsets_of_line, lines_of(text)))


def offsets_of_line(line: str) -> tuple[tuple[str, int], OffsetRange]:
    """Parse one line of ``stats offsets``. Raises as ``parse_offsets``."""
    match = _OFFSETS_LINE.fullmatch(line.strip())
    if match is None:
        raise ProtocolError("a line of stats offsets that cannot be read", line.encode(errors="replace"))
    return (match[1], int(match[2])), OffsetRange(int(match[3]), int(match[4]))


def parse_incarnations(text: str) -> dict[tuple[str, int], PartitionState]:
    """Parse the answer to ``stats incarnations``: topic and partition index to incarnation and readable range.

    A dash stands for an incarnation that the broker could not make durable yet.

    Raises:
        ProtocolError: A line has another form.
    """
    return dict(map(incarnation_of_line, lines_of(text)))


def incarnation_of_line(line: str) -> tuple[tuple[str, int], PartitionState]:
    """Parse one line of ``stats incarnations``. Raises as ``parse_incarnations``."""
    match = _INCARNATIONS_LINE.fullmatch(line)
    if match is None:
        raise ProtocolError("a line of stats incarnations that cannot be read", line.encode(errors="replace"))
    incarnation = None if match[3] == "-" else match[3]
    return (match[1], int(match[2])), PartitionState(OffsetRange(int(match[4]), int(match[5])), incarnation)


def lines_of(text: str) -> Iterator[str]:
    """The lines between STATS and END.

    Raises:
        ProtocolError: One of the two is missing.
    """
    lines = text.split("\r\n")
    if lines[0] != "STATS" or "END" not in lines:
        raise ProtocolError("the answer to stats is not STATS ... END", text.encode(errors="replace"))
    return iter(lines[1 : lines.index("END")])


class AcceptedTopics:
    """The topics in a broker's server.ini: which it accepts, and their numbers of partitions."""

    def __init__(self, text: str) -> None:
        """Parse the answer to ``stats config``.

        Raises:
            ProtocolError: It has no ``[system]`` section.
        """
        sections = _ini_sections(text)
        if "system" not in sections:
            raise ProtocolError("the answer to stats config has no [system] section", text.encode(errors="replace"))
        self._system = sections["system"]
        self._topics = {
            name.removeprefix(_TOPIC_SECTION).strip(): keys
            for name, keys in sections.items()
            if name.startswith(_TOPIC_SECTION)
        }

    @property
    def transaction_timeout_s_max(self) -> int:
        """The broker's limit on transaction timeouts, in seconds.

        Raises:
            ProtocolError: The value is not a number.
        """
        return self._number(self._system.get("maxTxTimeoutInSeconds") or "60", "maxTxTimeoutInSeconds")

    def partition_count(self, topic: str) -> int:
        """Return how many partitions of ``topic`` accept messages; 0 if the broker does not accept or offer the topic.

        A topic that matches only a section with ``*`` gets the system's number, not the section's.

        Raises:
            ProtocolError: The value is not a number.
        """
        section = self._topics.get(topic, {})
        if topic not in self._topics and not any("*" in name and covers(name, topic) for name in self._topics):
            return 0
        if self._value(section, "acceptPublish").lower() == "false":
            return 0
        return self._count(section, topic)

    def _count(self, section: Mapping[str, str], topic: str) -> int:
        return self._number(self._value(section, "numPartitions") or "1", "numPartitions", f" for topic {topic!r}")

    @staticmethod
    def _number(text: str, key: str, place: str = "") -> int:
        if not _PRODUCT.fullmatch(text):
            raise ProtocolError(f"{key}={text!r}{place} in stats config is not a number")
        return prod(int(factor) for factor in text.split("*"))

    def _value(self, section: Mapping[str, str], key: str) -> str:
        """Return the topic's value, or the system's if it is blank."""
        return section.get(key) or self._system.get(key, "")


@lru_cache(SETTINGS_KEPT)
def parse_settings(text: str) -> AcceptedTopics:
    """Parse the answer to ``stats config``, cached, because it is the same for each topic.

    Raises:
        ProtocolError: It has no ``[system]`` section.
    """
    return AcceptedTopics(text)


def covers(pattern: str, topic: str) -> bool:
    """Return whether a pattern with ``*`` (any characters, also none) matches all of ``topic``."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), topic) is not None


def _ini_sections(text: str) -> dict[str, dict[str, str]]:
    """Return section -> key -> value. Other lines are ignored."""
    sections: dict[str, dict[str, str]] = {}
    keys: dict[str, str] = {}
    for line in map(str.strip, text.lstrip("\ufeff").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            keys = sections.setdefault(line[1:-1].strip(), {})
        elif line and line[0] not in ";#" and "=" in line:
            key, _, value = line.partition("=")
            keys[key.strip()] = value.strip()
    return sections


ReadLine = Callable[[str], tuple[tuple[str, int], PartitionState]]
"""Parses a line: topic and partition index, and the partition's state."""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    broker_id: int
    lines: dict[str, tuple[TopicPartition, PartitionState]]
    available: Mapping[TopicPartition, PartitionState]


class StatsCache:
    """The last answer of each broker, so that only lines that differ from it are parsed.

    A broker with thousands of partitions answers with thousands of lines, of which few or none change.
    """

    def __init__(self) -> None:
        self._last: dict[Address, _Answer] = {}

    def read(
        self, address: Address, broker_id: int, text: str, read_line: ReadLine
    ) -> Mapping[TopicPartition, PartitionState]:
        """Return the partitions in ``text``, parsed with ``read_line``; the same object for the same text.

        Raises:
            ProtocolError: It is not an answer to ``stats``, or has a line that cannot be read.
        """
        last = self._last.get(address)
        if last is not None and last.broker_id == broker_id:
            if last.text == text:
                return last.available
            known = last.lines
        else:
            known = {}
        lines = {line: known.get(line) or _named(broker_id, *read_line(line)) for line in lines_of(text)}
        self._last[address] = answer = _Answer(text, broker_id, lines, dict(lines.values()))
        return answer.available


def _named(broker_id: int, where: tuple[str, int], available: PartitionState) -> tuple[TopicPartition, PartitionState]:
    topic, index = where
    return TopicPartition(topic, Partition(broker_id, index)), available
