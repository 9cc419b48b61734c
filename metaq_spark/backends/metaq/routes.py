"""Where a topic can be written, remembered for a few seconds.

Spark makes a new writer for every micro-batch, twice; asking the brokers each time would cost more than it tells. A
topic that gets more partitions is noticed when the memory is that old.
"""

from __future__ import annotations

from typing import Final

from metaq.model import Address, Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_spark.backends.metaq.cluster import Cluster, SessionPool
from metaq_spark.backends.metaq.options import BrokerOptions
from metaq_spark.errors import PartitionAway

ROUTE_AGE_S_MAX: Final = 10.0

Route = dict[Partition, Address]
"""A topic's writable partitions in order, each with its broker."""


class RouteMemory:
    """One for each process; see ``shared_routes``."""

    def __init__(self, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pool, self._clock = pool, clock
        self._known: dict[tuple[tuple[str, ...], str], tuple[float, Route]] = {}

    def find(self, options: BrokerOptions, topic: str) -> Route:
        """The route of ``topic``, at most ``ROUTE_AGE_S_MAX`` old.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ConnectionFailed, DeadlineExceeded: A broker could not be asked.
        """
        key, now_s = (options.places, topic), self._clock.monotonic()
        since_s, route = self._known.get(key, (-ROUTE_AGE_S_MAX, {}))
        if not route or now_s - since_s >= ROUTE_AGE_S_MAX:
            route = Cluster(options, self._pool, self._clock).writable(topic)
            self._known[key] = now_s, route
        return route


def address_of(target: TopicPartition, route: Route) -> Address:
    """The broker that takes messages for ``target``, whose topic has this route.

    Raises:
        PartitionAway: None does; a row got there by ``orderedPartitions``, which is no list of what is there.
    """
    if target.partition not in route:
        raise PartitionAway(str(target), [str(partition) for partition in route])
    return route[target.partition]


_SHARED: Final = RouteMemory()


def shared_routes() -> RouteMemory:
    """The memory of this process."""
    return _SHARED
