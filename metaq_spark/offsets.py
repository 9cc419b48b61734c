"""A query's progress: an offset for every partition. ``metaq.formats.checkpoint_offsets`` defines its form in Spark's
checkpoint.
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
"""Range and incarnation of every partition at the brokers."""


def unit_of(where: TopicPartition) -> str:
    """Return the unit of a partition's offsets: "bytes" in MetaQ, "messages" in RocketMQ."""
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
    """Parse the checkpoint form. ``parse_partition``: for the system that the query reads, if it is known.

    Raises:
        CheckpointError: It was written by a newer version, or is not an offset of this source.
    """
    try:
        return parse_progress(tree, parse_partition)
    except ValueError as error:
        raise CheckpointError(tree, str(error)) from None


_KEPT: Final = 4
"""Cache size: start and end of a batch, the newest end, and a new one."""


class ProgressMemory:
    """A cache of the last few offsets in both forms, so that none is converted twice.

    Spark passes a source the same few offsets repeatedly: for an idle query one, some ten times a second, for a running
    one the start and the end of a batch, each in several calls. With thousands of partitions the conversions would take
    most of the time. ``parse_partition``: for the system that the query reads.
    """

    def __init__(self, parse_partition: ParsePartition = Partition.parse_any) -> None:
        self._parse_partition = parse_partition
        self._known: deque[tuple[Progress, dict[str, Any]]] = deque(maxlen=_KEPT)

    def read(self, tree: Any) -> Progress:
        """Return the progress in a checkpoint's form; the same object for a form that is in the cache. Raises as
        ``read_progress``.
        """
        for progress, known in self._known:
            if known == tree:
                return progress
        progress = read_progress(tree, self._parse_partition)
        self._known.append((progress, _copy_tree(tree)))
        return progress

    def write(self, progress: Progress) -> dict[str, Any]:
        """Return the checkpoint form of ``progress``; from the cache if it was made before."""
        for known, tree in self._known:
            if known is progress:
                return _copy_tree(tree)
        tree = to_json(progress.offsets, progress.incarnations, progress.last, progress.since)
        self._known.append((progress, tree))
        return _copy_tree(tree)


def _copy_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a copy, so that changes by the caller do not affect the cache."""
    return {
        key: {topic: dict(values) for topic, values in each.items()} if isinstance(each, dict) else each
        for key, each in tree.items()
    }
