"""What a query's progress looks like: an offset for every partition, and its form in Spark's checkpoint.

An offset is that of the first message *not yet* read: its first byte in MetaQ, its number in the queue in RocketMQ. An
incarnation identifies one creation of the partition, where the broker reports it. The checkpoint holds::

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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from metaq.model import INT64_MAX, OffsetRange, Partition, PartitionState, TopicPartition
from metaq_spark.errors import CheckpointError

VERSION: Final = 2

Offsets = Mapping[TopicPartition, int]
"""The next offset to read of every known partition."""

Ranges = Mapping[TopicPartition, OffsetRange]
"""A range of offsets of each of some partitions."""

Holdings = Mapping[TopicPartition, PartitionState]
"""What the brokers hold of every partition: first offset, readable end, and its incarnation."""

ParsePartition = Callable[[str], Partition]
"""From the name of a partition as text; raises ValueError."""

_KEYS: Final = {1: {"v", "topics"}, 2: {"v", "topics", "incarnations"}}
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_NONE: Final[Mapping[TopicPartition, str]] = MappingProxyType({})
_Value = TypeVar("_Value")


def unit_of(where: TopicPartition) -> str:
    """What the offsets of a partition count: "bytes" in MetaQ, "messages" in RocketMQ."""
    return "bytes" if isinstance(where.partition.broker, int) else "messages"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a query is: an offset for every known partition, and the incarnations of those that have one.

    ``moved``: an operator has put the query here; the batch that ends here reads nothing.
    """

    offsets: Offsets
    incarnations: Mapping[TopicPartition, str] = field(default_factory=dict)
    moved: bool = field(default=False, compare=False)


def ends_of(available: Holdings) -> Progress:
    """Where a query is that has read everything."""
    offsets = {where: of_one.offsets.end for where, of_one in available.items()}
    return Progress(offsets, incarnations_of(available))


def incarnations_of(available: Holdings) -> dict[TopicPartition, str]:
    """The incarnations that brokers reported."""
    return {where: of_one.incarnation for where, of_one in available.items() if of_one.incarnation is not None}


def to_json(offsets: Offsets, incarnations: Mapping[TopicPartition, str] = _NONE) -> dict[str, Any]:
    """The checkpoint form, ready for ``json.dumps``; equal progress always gives equal text."""
    return {"v": VERSION, "topics": _tree(offsets), "incarnations": _tree(incarnations)}


def from_json(tree: Any) -> dict[TopicPartition, int]:
    """The offsets in the checkpoint form. Raises as ``read_progress``."""
    return dict(read_progress(tree).offsets)


def read_progress(tree: Any, parse_partition: ParsePartition = Partition.parse_any) -> Progress:
    """Read the checkpoint form. ``parse_partition``: that of the system that the query reads, if it is known.

    Raises:
        CheckpointError: It was written by a newer version, or is not an offset of this source.
    """
    version = tree.get("v") if isinstance(tree, dict) else None
    known = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(version, int) and known and version > VERSION:
        raise CheckpointError(
            tree, f"it was written by a newer metaq-spark (form {version}, known is {VERSION}); upgrade"
        )
    moved = version == VERSION and tree.get("moved") is True
    if type(version) is not int or set(tree) - ({"moved"} if moved else set()) != _KEYS.get(version):
        raise CheckpointError(
            tree, 'expected {"v": 2, "topics": {...}, "incarnations": {...}}; is this the checkpoint of another source?'
        )
    offsets = dict(_entries(tree, "topics", parse_partition, _offset))
    if len({type(where.partition.broker) for where in offsets}) > 1:
        raise CheckpointError(tree, "it names partitions of MetaQ and queues of RocketMQ; a source reads one of them")
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
        raise CheckpointError(tree, f"{key} must map each topic to its partitions")
    for topic, partitions in topics.items():
        for name, value in partitions.items():
            try:
                partition = parse_partition(name)
                yield TopicPartition(topic, partition), read(partition, value)
            except ValueError as error:
                raise CheckpointError(tree, f"{topic}/{name}: {error}") from None


def _offset(partition: Partition, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        kind = "byte offset" if isinstance(partition.broker, int) else "queue offset"
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _incarnation(_: Partition, value: Any) -> str:
    if not isinstance(value, str) or not _INCARNATION.fullmatch(value):
        raise ValueError(f"{value!r} is no incarnation, which has 32 hexadecimal digits")
    return value


_KEPT: Final = 4
"""Start and end of a batch, the newest end, and one that is being made."""


class ProgressMemory:
    """The last few offsets that were read or written, in both forms, so that none is converted twice.

    Spark hands a source the same few offsets again and again: of an idle query one, some ten times a second, of a
    running one the start and the end of a batch, each in several calls. With thousands of partitions the conversion
    would be most of what the query does. ``parse_partition``: that of the system that the query reads.
    """

    def __init__(self, parse_partition: ParsePartition = Partition.parse_any) -> None:
        self._parse_partition = parse_partition
        self._known: deque[tuple[Progress, dict[str, Any]]] = deque(maxlen=_KEPT)

    def read(self, tree: Any) -> Progress:
        """``read_progress``; for an offset that is known the same object as before."""
        for progress, known in self._known:
            if known == tree:
                return progress
        progress = read_progress(tree, self._parse_partition)
        self._known.append((progress, _copy_tree(tree)))
        return progress

    def write(self, progress: Progress) -> dict[str, Any]:
        """``to_json``."""
        for known, tree in self._known:
            if known is progress:
                return _copy_tree(tree)
        tree = to_json(progress.offsets, progress.incarnations)
        self._known.append((progress, tree))
        return _copy_tree(tree)


def _copy_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """What the caller does to one of them must not reach the other."""
    return {
        key: {topic: dict(values) for topic, values in each.items()} if isinstance(each, dict) else each
        for key, each in tree.items()
    }
