"""What a query's progress looks like: a byte offset for every partition, and its form in Spark's checkpoint.

An offset is the first byte *not yet* read. The checkpoint holds::

    {"v": 1, "topics": {"orders": {"0-0": 123, "0-1": 0}}}

``v`` grows when the form grows, so that an older connector refuses what it would misunderstand. Spark compares two
offsets by their text; topics and partitions are therefore always written in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metaq.model import INT64_MAX, OffsetRange, Partition, TopicPartition
from metaq_spark.errors import CheckpointError

VERSION: Final = 1

Offsets = Mapping[TopicPartition, int]
"""The next byte to read of every known partition."""

Ranges = Mapping[TopicPartition, OffsetRange]
"""What the brokers hold of every partition: first byte and readable end."""


def to_json(offsets: Offsets) -> dict[str, Any]:
    """The checkpoint form, ready for ``json.dumps``; equal offsets always give equal text."""
    topics: dict[str, dict[str, int]] = {}
    for where in sorted(offsets):
        topics.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return {"v": VERSION, "topics": topics}


def from_json(tree: Any) -> dict[TopicPartition, int]:
    """Read the checkpoint form.

    Raises:
        CheckpointError: It was written by a newer version, or is not an offset of this source.
    """
    version = tree.get("v") if isinstance(tree, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            tree, f"it was written by a newer metaq-spark (form {version}, known is {VERSION}); upgrade"
        )
    if version != VERSION or isinstance(version, bool) or set(tree) != {"v", "topics"}:
        raise CheckpointError(tree, 'expected {"v": 1, "topics": {...}}; is this the checkpoint of another source?')
    return dict(_entry(tree, topic, name, at) for topic, name, at in _rows(tree))


def _rows(tree: dict[str, Any]) -> list[tuple[str, str, Any]]:
    topics = tree["topics"]
    if not isinstance(topics, dict) or not all(isinstance(partitions, dict) for partitions in topics.values()):
        raise CheckpointError(tree, "topics must map each topic to its partitions")
    return [(topic, name, at) for topic, partitions in topics.items() for name, at in partitions.items()]


def _entry(tree: dict[str, Any], topic: str, name: str, at: Any) -> tuple[TopicPartition, int]:
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= INT64_MAX:
        raise CheckpointError(tree, f"{topic}/{name}: {at!r} is no byte offset")
    try:
        return TopicPartition(topic, Partition.parse(name)), at
    except ValueError as error:
        raise CheckpointError(tree, str(error)) from None
