"""What a query's progress looks like: an offset for every partition. Its form in Spark's checkpoint is
``metaq.formats.checkpoint_offsets``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from metaq.formats.checkpoint_offsets import Offsets, ParsePartition, Progress, Since, parse_progress, to_json
from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq_spark.errors import CheckpointError

__all__ = [
    "AvailableRanges",
    "Offsets",
    "ParsePartition",
    "Progress",
    "ProgressMemory",
    "Ranges",
    "Since",
    "ends_of",
    "from_json",
    "incarnations_of",
    "read_progress",
    "to_json",
    "unit_of",
]

Ranges = Mapping[TopicPartition, OffsetRange]
"""A range of offsets of each of some partitions."""

AvailableRanges = Mapping[TopicPartition, PartitionState]
"""What the brokers hold of every partition: first offset, readable end, and its incarnation."""


def unit_of(where: TopicPartition) -> str:
    """What the offsets of a partition count: "bytes" in MetaQ, "messages" in RocketMQ."""
    return "bytes" if isinstance(where.partition.broker, int) else "messages"


def ends_of(available: AvailableRanges) -> Progress:
    """Where a query is that has read everything."""
    offsets = {where: of_one.offsets.end for where, of_one in available.items()}
    return Progress(offsets, incarnations_of(available))


def incarnations_of(available: AvailableRanges) -> dict[TopicPartition, str]:
    """The incarnations that brokers reported."""
    return {where: of_one.incarnation for where, of_one in available.items() if of_one.incarnation is not None}


def from_json(tree: Any) -> dict[TopicPartition, int]:
    """The offsets in the checkpoint form. Raises as ``read_progress``."""
    return dict(read_progress(tree).offsets)


def read_progress(tree: Any, parse_partition: ParsePartition = Partition.parse_any) -> Progress:
    """Read the checkpoint form. ``parse_partition``: that of the system that the query reads, if it is known.

    Raises:
        CheckpointError: It was written by a newer version, or is not an offset of this source.
    """
    try:
        return parse_progress(tree, parse_partition)
    except ValueError as error:
        raise CheckpointError(tree, str(error)) from None


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
        tree = to_json(progress.offsets, progress.incarnations, progress.last, progress.since)
        self._known.append((progress, tree))
        return _copy_tree(tree)


def _copy_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """What the caller does to one of them must not reach the other."""
    return {
        key: {topic: dict(values) for topic, values in each.items()} if isinstance(each, dict) else each
        for key, each in tree.items()
    }
