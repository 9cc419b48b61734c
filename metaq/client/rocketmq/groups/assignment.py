"""RocketMQ's consistent hashing of queues, with the arithmetic of its Java client. Pure.

RocketMQ's default strategy, "averagely", gives the same blocks as ``range_of`` of ``groups.ownership.assignment``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from metaq.model import Partition

POINTS: Final = 10
"""Points of each consumer on the ring."""


def consistent(topic: str, consumer: str, consumers: Sequence[str], queues: Sequence[Partition]) -> list[Partition]:
    """Return the queues that consistent hashing assigns to ``consumer``.

    When a member joins or leaves, only its own queues move; shares are uneven.
    """
    ring = {_hash(f"{each}-{number}"): each for each in consumers for number in range(POINTS)}
    points = sorted(ring)
    if not points:
        return []
    found = []
    for queue in queues:
        name = f"MessageQueue [topic={topic}, brokerName={queue.broker}, queueId={queue.index}]"
        if ring[points[bisect_left(points, _hash(name)) % len(points)]] == consumer:
            found.append(queue)
    return found


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])
