"""A directory that keeps the list of brokers for a moment, for programs that ask many questions at a time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from metaq.discovery.base import Directory
from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.net.clock import Clock


class KeptBrokers(Directory):
    """``directory``, whose ``brokers`` are asked for again after ``fresh_s`` seconds at the earliest; thread-safe if
    that is.
    """

    def __init__(self, directory: Directory, fresh_s: float, clock: Clock) -> None:
        self._directory, self._fresh_s, self._clock = directory, fresh_s, clock
        self._lock = threading.Lock()
        self._brokers: dict[int, Address] = {}
        self._fresh_until_s = float("-inf")
        self._failed: list[MetaqError] = []

    def brokers(self) -> dict[int, Address]:
        failed = self._failed
        with self._lock:
            if self._failed is not failed:  # the question that was waited for, of a broker that hangs perhaps
                raise self._failed[0]
            if self._clock.monotonic() >= self._fresh_until_s:
                try:
                    self._brokers = self._directory.brokers()
                except MetaqError as error:
                    self._failed = [error]
                    raise
                self._fresh_until_s = self._clock.monotonic() + self._fresh_s
            return dict(self._brokers)

    def topics(self, among: Collection[str] | None = None) -> dict[str, list[Partition]]:
        return self._directory.topics(among)

    def partitions(self, topic: str) -> dict[Partition, Address]:
        return self._directory.partitions(topic)

    def writable(self, topic: str) -> dict[Partition, Address]:
        return self._directory.writable(topic)

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        return self._directory.ends(topics)

    def available(self, topics: Iterable[str] | None = None) -> Mapping[TopicPartition, PartitionState]:
        return self._directory.available(topics)

    def available_now(
        self, topics: Iterable[str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        return self._directory.available_now(topics)
