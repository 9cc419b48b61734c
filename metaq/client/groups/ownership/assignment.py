"""How the members of a group divide a topic's partitions. Pure; the same arithmetic as MetaQ's Java client.

Each member computes the assignment itself from the same two lists, so all must use one strategy and one order:
consumers and MetaQ partitions are sorted as texts (``0-10`` before ``0-2``), RocketMQ queues by broker and number.

Source: docs/client-internals.md, "How a group divides partitions".
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from metaq.model import Partition, TopicPartition

Strategy = Callable[[str, str, Sequence[str], Sequence[Partition]], Collection[Partition]]
"""(topic, own consumer id, ids of all consumers of the topic, partitions) -> own partitions. Both lists are sorted as
texts.
"""

Order = Callable[[Partition], str | Partition]
"""Partition -> its sort key."""

_POINTS: Final = struct.Struct("<4I")
_DIGESTS_PER_CONSUMER: Final = 40


def range_of(topic: str, consumer: str, consumers: Sequence[str], partitions: Sequence[Partition]) -> list[Partition]:
    """Return a contiguous block of partitions; the first ``len(partitions) % len(consumers)`` consumers get one more.

    When a member joins or leaves, about half of all partitions move.
    """
    if consumer not in consumers:
        return []
    number = list(consumers).index(consumer)
    each, more = divmod(len(partitions), len(consumers))
    start = each * number + min(number, more)
    return list(partitions[start : start + each + (1 if number < more else 0)])


def consistent(topic: str, consumer: str, consumers: Sequence[str], partitions: Sequence[Partition]) -> list[Partition]:
    """Return the partitions that consistent hashing assigns to ``consumer``, with 160 points per consumer on the ring.

    When a member joins or leaves, only its own partitions move; shares are uneven.
    """
    ring = _ring(consumers)
    points = sorted(ring)
    return [partition for partition in partitions if points and _owner(ring, points, partition) == consumer]


def _ring(consumers: Iterable[str]) -> dict[int, str]:
    return {
        point: consumer
        for consumer in consumers
        for number in range(_DIGESTS_PER_CONSUMER)
        for point in _POINTS.unpack(_md5(f"{consumer}-{number}"))
    }


def _owner(ring: Mapping[int, str], points: Sequence[int], partition: Partition) -> str:
    hashed = _POINTS.unpack(_md5(str(partition)))[0]
    return ring[points[bisect_left(points, hashed) % len(points)]]


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


STRATEGIES: Final[Mapping[str, Strategy]] = {"range": range_of, "consistent": consistent}


def wanted_partitions(
    strategy: Strategy,
    consumer: str,
    members: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[Partition]],
    order: Order = str,
) -> set[TopicPartition]:
    """Return the partitions assigned to ``consumer``.

    ``members``: consumer id -> topics that it subscribes to. ``partitions``: topic -> its partitions, for the topics of
    ``consumer``.

    Raises:
        ValueError: The program's strategy returned a partition that the topic does not have.
    """
    found: set[TopicPartition] = set()
    for topic, there in partitions.items():
        consumers = sorted(member for member, topics in members.items() if topic in topics)
        own = strategy(topic, consumer, consumers, sorted(there, key=order))
        if not set(own) <= set(there):
            raise ValueError(f"assignment of {topic!r}: the strategy returned partitions that the topic does not have")
        found |= {TopicPartition(topic, partition) for partition in own}
    return found
