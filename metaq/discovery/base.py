"""What every directory can tell; the seam between "which brokers are there" and everybody who reads or writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition


class Directory(Protocol):
    """Answers from the cluster as it is now: nothing is cached here, so how often to ask is the caller's business.

    Every method raises ``ConnectionFailed`` or ``DeadlineExceeded`` naming the broker that could not be asked: a broker
    that is away must not look like one without partitions.
    """

    def brokers(self) -> dict[int, Address]:
        """Broker id to address, for reading: the master, else a slave of the same id."""

    def topics(self, among: Collection[str] | None = None) -> dict[str, list[Partition]]:
        """Each known topic with its partitions that hold or held messages, sorted; an empty list if none does yet.

        With ``among``, brokers that are away and cannot have any of those topics need not answer.
        """

    def partitions(self, topic: str) -> dict[Partition, Address]:
        """Where to read: the partitions of ``topic`` that hold or held messages. Empty if there is none."""

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Where to write: all partitions that accept ``topic``, at their masters, whether written to before or not.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        """For each partition in ``partitions`` of these topics, what can be read now: ``[first, readable end)``."""

    def available(self, topics: Iterable[str] | None = None) -> Mapping[TopicPartition, PartitionState]:
        """Like ``ends``, of all topics if none are named, with each partition's incarnation where its broker tells it.

        Range and incarnation of a partition belong together: no recreation can come between them. While nothing has
        changed it is the same object.
        """

    def available_now(
        self, topics: Iterable[str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        """Like ``available``, of those brokers that answer at once; and why the others do not."""
