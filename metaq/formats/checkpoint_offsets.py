"""Where a query is, as it stands in Spark's checkpoint: the form in which the connector's source writes its offsets.

An offset is that of the first message *not yet* read: its first byte in MetaQ, its number in the queue in RocketMQ. An
incarnation identifies one creation of the partition, where the broker reports it. The checkpoint has::

    {"v": 2, "topics": {"orders": {"0-0": 123, "0-1": 0}}, "incarnations": {"orders": {"0-0": "5f0c..."}}}
    {"v": 2, "topics": {"orders": {"broker-a:0": 12, "broker-b:3": 0}}, "incarnations": {}}

A query that was moved by hand (docs/checkpoints.md) has ``"moved": true`` in the offset of one batch: that batch reads
nothing, and the next one goes on from there.

``v`` grows when the form grows, so that an older connector refuses what it would misunderstand. Form 1 had no
incarnations and is still read. Spark compares two offsets by their text; topics and partitions are therefore always
written in ascending order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from metaq.model import INT64_MAX, Partition, TopicPartition

VERSION: Final = 2

Offsets = Mapping[TopicPartition, int]
"""The next offset to read of every known partition."""

ParsePartition = Callable[[str], Partition]
"""From the name of a partition as text; raises ValueError."""

_KEYS: Final = {1: {"v", "topics"}, 2: {"v", "topics", "incarnations"}}
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_NONE: Final[Mapping[TopicPartition, str]] = MappingProxyType({})
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a query is: an offset for every known partition, and the incarnations of those that have one.

    ``moved``: an operator has put the query here; the batch that ends here reads nothing.
    """

    offsets: Offsets
    incarnations: Mapping[TopicPartition, str] = field(default_factory=dict)
    moved: bool = field(default=False, compare=False)


def to_json(offsets: Offsets, incarnations: Mapping[TopicPartition, str] = _NONE) -> dict[str, Any]:
    """The checkpoint form, ready for ``json.dumps``; equal progress always gives equal text."""
    return {"v": VERSION, "topics": _tree(offsets), "incarnations": _tree(incarnations)}


def parse_progress(tree: Any, parse_partition: ParsePartition = Partition.parse_any) -> Progress:
    """Read the checkpoint form. ``parse_partition``: that of the system that the query reads, if it is known.

    Raises:
        ValueError: It was written by a newer version, or is not an offset of this source.
    """
    version = tree.get("v") if isinstance(tree, dict) else None
    known = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(version, int) and known and version > VERSION:
        raise ValueError(f"it was written by a newer metaq-spark (form {version}, known is {VERSION}); upgrade")
    moved = version == VERSION and tree.get("moved") is True
    if type(version) is not int or set(tree) - ({"moved"} if moved else set()) != _KEYS.get(version):
        raise ValueError(
            'expected {"v": 2, "topics": {...}, "incarnations": {...}}; is this the checkpoint of another source?'
        )
    offsets = dict(_entries(tree, "topics", parse_partition, _offset))
    if len({type(where.partition.broker) for where in offsets}) > 1:
        raise ValueError("it names partitions of MetaQ and queues of RocketMQ; a source reads one of them")
    incarnations = dict(_entries(tree, "incarnations", parse_partition, _incarnation)) if version == VERSION else {}
    return Progress(offsets, incarnations, moved)


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
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _incarnation(_: Partition, value: Any) -> str:
    if not isinstance(value, str) or not _INCARNATION.fullmatch(value):
        raise ValueError(f"{value!r} is no incarnation, which has 32 hexadecimal digits")
    return value
