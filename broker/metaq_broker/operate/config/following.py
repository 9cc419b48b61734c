"""Computes the server.ini of an asynchronous slave that follows its master. Pure: two texts in, one text out.

The slave takes over which topics there are, and the keys ``FOLLOWED`` of each and of ``[system]``, which apply to
topics without a section. Everything else remains as the slave has it, comments included: address and folders,
retention, ZooKeeper, ``[slave]``, TLS, allow lists, limits.

Source: docs/replication.md, "Following the master's topics".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.ini import ConfigError, Section, decode_text, parse_ini
from metaq_broker.operate.config.keys import Key
from metaq_broker.operate.config.sections import TOPIC_KEYS, TOPIC_PREFIX, SystemConfig, TopicConfig

FOLLOWED: Final = (
    "num_partitions",
    "stat",
    "unflush_threshold",
    "unflush_interval_ms",
    "accept_publish",
    "accept_subscribe",
)
"""Attributes that a slave takes over; retention, folders and allow lists of topics are its own."""

_KEYS: Final = tuple(key for key in TOPIC_KEYS if key.attribute in FOLLOWED)


@dataclass(slots=True)
class _Block:
    """The lines of one section and the comment right above it; ``name`` is ``""`` before the first section."""

    name: str
    lines: list[str]

    @property
    def topic(self) -> str | None:
        """The topic of the section; ``None`` if it is another section."""
        return self.name.removeprefix(TOPIC_PREFIX).strip() if self.name.startswith(TOPIC_PREFIX) else None

    def set(self, key: str, value: str) -> None:
        """Set a key in its line, or in a new last line."""
        line = f"{key}={value}"
        for number, found in enumerate(self.lines):
            if re.split("[=:]", found, maxsplit=1)[0].strip() == key:
                self.lines[number] = line
                return
        last = max(number for number, found in enumerate(self.lines) if not _is_comment(found))
        self.lines.insert(last + 1, line)


def follow_topics(master_text: bytes, own_text: bytes, master_source: str, own_source: str) -> bytes:
    """Return ``own_text`` with the topics of ``master_text``; the same bytes if there is nothing to change.

    The sources name the texts in errors. The followed keys are written into the topics' own sections, so that they take
    effect at a reload.

    Raises:
        ConfigError: One of the texts, or the result, is not a valid configuration; or their broker ids differ.
    """
    master, own = parse(master_text, master_source), parse(own_text, own_source)
    ids = master.system.broker_id, own.system.broker_id
    if ids[0] != ids[1]:
        raise ConfigError(f"{master_source} [system] brokerId", f"value {ids[0]}; expected this slave's, {ids[1]}")
    before = decode_text(own_text, own_source).splitlines()
    blocks = [block for block in _split(before) if block.topic is None or block.topic in master.topics]
    written = {section.name: section for section in parse_ini(own_text, own_source)}
    for block in blocks:
        if block.name == "system":
            _follow_system(block, master.system, own.system)
        elif block.topic is not None:
            _follow_topic(block, master.topics[block.topic], written[block.name])
    blocks += _new_blocks(master.topics, {block.topic for block in blocks})
    after = [line for block in blocks for line in block.lines]
    if after == before:
        return own_text
    merged = ("\n".join(after) + "\n").encode()
    parse(merged, own_source)
    return merged


def _split(lines: Iterable[str]) -> list[_Block]:
    blocks = [_Block("", [])]
    for line in lines:
        text = line.strip()
        if text.startswith("["):
            above: list[str] = []
            rest = blocks[-1].lines
            while len(blocks) > 1 and rest and rest[-1].strip() and _is_comment(rest[-1]):
                above.insert(0, rest.pop())
            blocks.append(_Block(text[1:-1].strip(), above))
        blocks[-1].lines.append(line)
    return blocks


def _is_comment(line: str) -> bool:
    text = line.strip()
    return not text or text[0] in ";#"


def _follow_system(block: _Block, master: SystemConfig, own: SystemConfig) -> None:
    for key in _KEYS:
        value = getattr(master, key.attribute)
        if getattr(own, key.attribute) != value:
            block.set(key.name, _text(value))


def _follow_topic(block: _Block, topic: TopicConfig, written: Section) -> None:
    for key in _KEYS:
        value = getattr(topic, key.attribute)
        if not _says(written, key, value):
            block.set(key.name, _text(value))


def _says(section: Section, key: Key, value: object) -> bool:
    text = section.values.get(key.name, "")
    return bool(text) and key.read(text) == value


def _new_blocks(topics: Mapping[str, TopicConfig], there: Iterable[str | None]) -> list[_Block]:
    blocks = []
    for name in topics.keys() - set(there):
        keys = [f"{key.name}={_text(getattr(topics[name], key.attribute))}" for key in _KEYS]
        blocks.append(_Block(TOPIC_PREFIX + name, ["", f"[{TOPIC_PREFIX}{name}]", *keys]))
    return sorted(blocks, key=lambda block: block.name)


def _text(value: int | bool) -> str:
    return str(value).lower()
