"""The offsets of a query in Spark's checkpoint, as the connector's source writes them.

An offset belongs to the first message *not yet* read: its first byte in MetaQ, its number in the queue in RocketMQ. An
incarnation identifies one creation of the partition, if the broker reports it. The checkpoint has::

    {"v": 4, "topics": {"orders": {"0-0": 123, "0-1": 0}}, "incarnations": {"orders": {"0-0": "5f0c..."}},
     "last": {"orders": {"0-0": "0000..."}}, "since_ms": 1795156200000, "since_brokers": ["0"]}
    {"v": 4, "topics": {"orders": {"broker-a:0": 12, "broker-b:3": 0}}, "incarnations": {},
     "last": {"orders": {"broker-a:0": "0000..."}}, "since_ms": 1795156200000, "since_brokers": []}

``last`` identifies the message before each offset, where it is known: 16 bytes that only a backend interprets. In a
partition that was restored from an older copy, another message is there.

``since_ms`` is the start time of a query that skips older messages (``latest``, or a time): a partition that appears
later may hold older messages, if its broker was away then. ``since_brokers`` are the brokers that were asked then and
list every partition with messages, so a partition that appears there later is new.

A query that was moved manually (docs/checkpoints.md) has ``"moved": true`` in the offset of one batch: that batch reads
nothing, and the next one continues from there.

``v`` is raised when the form changes, so that an older connector rejects what it would misinterpret. Form 1 had no
incarnations, form 2 has no ``last``, form 3 no ``since_ms``. All are still read; the oldest of 2 to 4 that can express
the offsets is written. Spark compares offsets as text; topics and partitions are therefore always written in ascending
order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from metaq.model import INT64_MAX, Partition, TopicPartition

VERSION: Final = 4

Offsets = Mapping[TopicPartition, int]
"""The next offset to read of every known partition."""

ParsePartition = Callable[[str], Partition]
"""Parses the name of a partition; raises ``ValueError``."""

_KEYS: Final = {
    1: {"v", "topics"},
    2: {"v", "topics", "incarnations"},
    3: {"v", "topics", "incarnations", "last"},
    4: {"v", "topics", "incarnations", "last", "since_ms", "since_brokers"},
}
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_NONE: Final[Mapping[TopicPartition, str]] = MappingProxyType({})
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Since:
    """When a query began, in ms since 1970, and the names of the ``brokers`` that listed all that they held then."""

    ms: int
    brokers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a query: an offset for every known partition, and its incarnation if it has one.

    ``moved``: an operator has set the position; the batch that ends here reads nothing. ``last``: identifies the
    message before an offset. ``since``: what a query skips that does not start at the first message.
    """

    offsets: Offsets
    incarnations: Mapping[TopicPartition, str] = field(default_factory=dict)
    moved: bool = field(default=False, compare=False)
    last: Mapping[TopicPartition, str] = field(default_factory=dict, compare=False)
    since: Since | None = field(default=None, compare=False)


def to_json(
    offsets: Offsets,
    incarnations: Mapping[TopicPartition, str] = _NONE,
    last: Mapping[TopicPartition, str] = _NONE,
    since: Since | None = None,
) -> dict[str, Any]:
    """Return the checkpoint form for ``json.dumps``; equal progress always yields equal text."""
    version = VERSION if since is not None else 3 if last else 2
    tree: dict[str, Any] = {"v": version, "topics": _tree(offsets), "incarnations": _tree(incarnations)}
    if version > 2:
        tree["last"] = _tree(last)
    if since is not None:
        tree |= {"since_ms": since.ms, "since_brokers": sorted(since.brokers)}
    return tree


def parse_progress(tree: Any, parse_partition: ParsePartition = Partition.parse_any) -> Progress:
    """Parse the checkpoint form. ``parse_partition``: for the system that the query reads, if it is known.

    Raises:
        ValueError: It was written by a newer version, or is not an offset of this source.
    """
    version = tree.get("v") if isinstance(tree, dict) else None
    known = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(version, int) and known and version > VERSION:
        raise ValueError(f"it was written by a newer metaq-spark (form {version}, known is {VERSION}); upgrade")
    moved = version in range(2, VERSION + 1) and tree.get("moved") is True
    if type(version) is not int or set(tree) - ({"moved"} if moved else set()) != _KEYS.get(version):
        raise ValueError(
            'expected {"v": 4, "topics": {...}, "incarnations": {...}, "last": {...}, "since_ms": MS, "since_brokers": '
            "[...]} or an older form; is this the checkpoint of another source?"
        )
    offsets = dict(_entries(tree, "topics", parse_partition, _offset))
    if len({type(where.partition.broker) for where in offsets}) > 1:
        raise ValueError("it names partitions of MetaQ and queues of RocketMQ; a source reads one of them")
    incarnations = dict(_entries(tree, "incarnations", parse_partition, _incarnation)) if version > 1 else {}
    last = dict(_entries(tree, "last", parse_partition, _last)) if version > 2 else {}
    return Progress(offsets, incarnations, moved, last, _since(tree) if version > 3 else None)


def _tree(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[str, _Value]]:
    topics: dict[str, dict[str, _Value]] = {}
    for where in sorted(values):
        topics.setdefault(where.topic, {})[str(where.partition)] = values[where]
    return topics


def _entries(
    tree: dict[str, Any], key: str, parse_partition: ParsePartition, read: Callable[[Partition, Any], _Value]
) -> Iterator[tuple[TopicPartition, _Value]]:
    topics = tree[key]
    if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
        raise ValueError(f"{key} must map each topic to its partitions")
    for topic, partitions in topics.items():
        for name, value in partitions.items():
            try:
                partition = parse_partition(name)
                yield TopicPartition(topic, partition), read(partition, value)
            except ValueError as error:
                raise ValueError(f"{topic}/{name}: {error}") from None


def _offset(partition: Partition, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        kind = "byte offset" if isinstance(partition.broker, int) else "queue offset"
        raise ValueError(f"{value!r} is not a {kind}")
    return value


def _incarnation(_: Partition, value: Any) -> str:
    return _hex("incarnation", value)


def _last(_: Partition, value: Any) -> str:
    return _hex("last message", value)


def _since(tree: dict[str, Any]) -> Since:
    ms, brokers = tree["since_ms"], tree["since_brokers"]
    if isinstance(ms, bool) or not isinstance(ms, int) or not 0 <= ms <= INT64_MAX:
        raise ValueError(f"since_ms is {ms!r}, which is no time in ms since 1970")
    if not isinstance(brokers, list) or not all(isinstance(broker, str) for broker in brokers):
        raise ValueError(f"since_brokers is {brokers!r}, which is no list of names")
    return Since(ms, frozenset(brokers))


def _hex(what: str, value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"{value!r} is no valid {what}: it needs 32 hexadecimal digits")
    return value
