"""A directory that keeps answers for some seconds, for programs that ask many questions at a time.

The list of brokers, and the places of partitions, are asked for every few seconds at most. For the places, each broker
walks over all of its partitions: an answer that took long is kept longer, and the offsets of a few partitions are
looked up one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import states_of
from metaq.discovery.base import Directory
from metaq.discovery.survey import SurveyedDirectory
from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.net.clock import Clock

PLACES_S: Final = 2.0
"""Shortest time for which the places of partitions are kept."""
FRESH_SHARE: Final = 100
"""An answer is kept for at least this many times the seconds that it took: so a question takes a hundredth of a
server's time at most, however many clients ask it.
"""
FRESH_S_MAX: Final = 30.0
"""Longest time for which an answer is kept because of ``FRESH_SHARE``."""
LOOKED_UP_MAX: Final = 200
"""Limit on partitions that are looked up one by one: beyond it, one answer about all partitions costs less."""

_T = TypeVar("_T")


def serves_s(least_s: float, took_s: float) -> float:
    """Return for how long an answer is kept that took ``took_s``."""
    return max(least_s, min(FRESH_S_MAX, took_s * FRESH_SHARE))


class KeptAnswer(Generic[_T]):
    """The answer to ``ask``, for any thread. ``fresh_s``: seconds an answer took -> seconds for which it is kept."""

    def __init__(self, ask: Callable[[], _T], fresh_s: Callable[[float], float], clock: Clock) -> None:
        self._ask, self._fresh_s, self._clock = ask, fresh_s, clock
        self._lock = threading.Lock()
        self._answers: list[_T] = []
        self._fresh_until_s = float("-inf")
        self._failures: list[Exception] = []

    def get(self, serves: Callable[[_T], bool]) -> _T:
        """Return the last answer if it is fresh and ``serves``, else a new one.

        Raises what ``ask`` raises. Threads that waited for a question that failed raise its error, too, and do not ask
        again.
        """
        failures = self._failures
        with self._lock:
            if self._failures is not failures:  # failed while this thread waited; the broker may hang
                raise self._failures[0]
            began_s = self._clock.monotonic()
            if not (self._answers and began_s < self._fresh_until_s and serves(self._answers[0])):
                try:
                    self._answers = [self._ask()]
                except Exception as error:
                    self._failures = [error]
                    raise
                now_s = self._clock.monotonic()
                self._fresh_until_s = now_s + self._fresh_s(now_s - began_s)
            return self._answers[0]


_Brokers = Mapping[int, Address]
_Places = Mapping[str, Mapping[Partition, Address]]


class KeptDirectory(Directory):
    """Keeps the answers of ``directory``: its brokers for ``brokers_s`` seconds. Thread-safe if ``directory`` is.

    An unknown topic may be new, and is asked for each time. A new partition of a known topic is found when the places
    are asked for again.
    """

    def __init__(self, directory: SurveyedDirectory, pool: SessionPool, brokers_s: float) -> None:
        self._directory, self._pool = directory, pool
        clock: Clock = pool.clock
        self._brokers: KeptAnswer[tuple[Collection[Address], _Brokers]] = KeptAnswer(
            lambda: (directory.left_out, directory.brokers()), lambda _: brokers_s, clock
        )
        self._places: KeptAnswer[tuple[Collection[Address], _Places]] = KeptAnswer(
            lambda: (directory.left_out, self._ask_places()), partial(serves_s, PLACES_S), clock
        )

    def brokers(self) -> dict[int, Address]:
        away = self._directory.left_out
        return dict(self._brokers.get(lambda found: found[0] == away)[1])

    def addresses(self) -> Collection[Address]:
        return self._directory.addresses()

    @property
    def left_out(self) -> frozenset[Address]:
        return self._directory.left_out

    def topics(self, among: Collection[str] | None = None) -> dict[str, list[Partition]]:
        return self._directory.topics(among)

    def partitions(self, topic: str) -> dict[Partition, Address]:
        return dict(self._places_of([topic])[topic])

    def writable(self, topic: str) -> dict[Partition, Address]:
        return self._directory.writable(topic)

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        return self._directory.ends(topics)

    def available(self, topics: Iterable[str] | None = None) -> Mapping[TopicPartition, PartitionState]:
        if topics is None:
            return self._directory.available()
        places = self._places_of(list(topics))
        if sum(map(len, places.values())) > LOOKED_UP_MAX:
            return self._directory.available(places)
        by_broker: dict[Address, list[TopicPartition]] = {}
        for topic, found in places.items():
            for partition, address in found.items():
                by_broker.setdefault(address, []).append(TopicPartition(topic, partition))
        states: dict[TopicPartition, PartitionState] = {}
        for address, wanted in by_broker.items():
            with self._pool.lease(address) as session:
                states |= states_of(session, wanted)
        return states

    def available_now(
        self, topics: Iterable[str] | None = None, among: Collection[int | str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        return self._directory.available_now(topics, among)

    def _places_of(self, topics: Collection[str]) -> _Places:
        """Return the partitions of topics, each with its broker."""
        away = self._directory.left_out
        _, found = self._places.get(lambda one: one[0] == away and all(topic in one[1] for topic in topics))
        return {topic: found.get(topic, {}) for topic in topics}

    def _ask_places(self) -> _Places:
        found: dict[str, dict[Partition, Address]] = {}
        brokers = self.brokers()
        for topic, partition in self._directory.available():
            if (address := brokers.get(partition.broker_id)) is not None:  # else the broker is newer than the list
                found.setdefault(topic, {})[partition] = address
        return found
