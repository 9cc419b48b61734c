"""Which partition a message goes to, if the caller names none."""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from metaq.formats.checksum import crc32
from metaq.model import Partition

Partitioner = Callable[[str, Sequence[Partition], bytes | None], Partition]
"""(topic, its writable partitions in order, key or ``None``) -> one of these partitions."""


def round_robin() -> Partitioner:
    """Return a partitioner that takes the partitions of each topic in turn. Keys are ignored."""
    counters: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        return partitions[next(counters[topic]) % len(partitions)]

    return choose


def by_key(without_key: Partitioner | None = None) -> Partitioner:
    """Return a partitioner that sends the same key to the same partition, while the topic's partitions do not change.

    The partition's place in the list is the key's CRC-32 modulo their number, as for the column ``key`` of a Spark
    write. Messages without a key go where ``without_key`` sends them, by default in turn as with ``round_robin``.
    """
    counters: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        if key is not None:
            return partitions[crc32(key) % len(partitions)]
        if without_key is not None:
            return without_key(topic, partitions, key)
        return partitions[next(counters[topic]) % len(partitions)]

    return choose


def fixed(index: int) -> Partitioner:
    """Return a partitioner that takes the partition at place ``index`` (>= 0) of the topic's list.

    Raises:
        ValueError: The topic has no such place (raised when a message is sent).
    """

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        if not 0 <= index < len(partitions):
            raise ValueError(f"partition {index}: topic {topic!r} has the partitions 0 to {len(partitions) - 1}")
        return partitions[index]

    return choose


def at_random(seed: int | None = None) -> Partitioner:
    """Return a partitioner that takes any partition; ``seed`` makes the choice repeatable."""
    chooser = random.Random(seed)

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        return chooser.choice(partitions)

    return choose


def one_at_a_time(partitioner: Partitioner) -> Partitioner:
    """Return a thread-safe version of a partitioner.

    The partitioners of this module need no lock: their only state is a counter, which changes atomically.
    """
    lock = threading.Lock()

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        with lock:
            return partitioner(topic, partitions, key)

    return choose
