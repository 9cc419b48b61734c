"""The queues of a cluster and their ranges, as a driver needs them. Implements ``Cluster``.

A queue that was listed once is asked for as long as this object exists: a broker that leaves the route is probably
restarting, or its slave still has the data. If no server answers, the broker counts as away, and the queue's position
does not change. ``expect`` adds the queues of a query's checkpoint, for a run that begins while their broker is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

from metaq.backends.rocketmq.errors import QueuesAway, TopicNotReadable
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError, TopicNotFound
from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.retry import persist
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.last_messages import StoredMessages
from metaq_spark.backends.rocketmq.options import ServerOptions
from metaq_spark.backends.rocketmq.positions import QueuePositions
from metaq_spark.errors import OptionError
from metaq_spark.offsets import AvailableRanges
from metaq_spark.options.selection import Assigned, Named, Selection, TopicPattern, chosen

LOOK_AGAIN_S: Final = 1.0
"""Seconds between requests to name servers while a broker is away."""


class Cluster:
    """All brokers together.

    All methods raise ``MetaqError``, naming the server, when retrying did not help.
    """

    def __init__(
        self,
        options: ServerOptions,
        pool: SessionPool | None = None,
        directory: NameServerDirectory | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if pool is None or directory is None:
            pool, directory = connections_of(options)
        self._pool, self.directory, self._policy, self._clock = pool, directory, options.first_policy, clock
        self._waiting = options.waiting_policy
        self.offsets = Offsets(pool, directory, self._policy, options.asking_group)
        self._group = options.asking_group
        self._known: set[TopicPartition] = set()
        self._last: AvailableRanges = {}
        self._looked_s = -LOOK_AGAIN_S
        self._missed: Mapping[str, MetaqError] = {}

    @cached_property
    def positions(self) -> QueuePositions:
        return QueuePositions(self._pool, self.directory, self.offsets, self._group, self._waiting)

    @cached_property
    def last_messages(self) -> StoredMessages:
        return StoredMessages(self._pool, self.directory, self._group, self._policy)

    @property
    def connections(self) -> int:
        return self._pool.opened

    def listed_whole(self) -> Collection[str]:
        """Return nothing: read permission and number of queues can be lowered temporarily."""
        return ()

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        self._known.update(partitions)

    @property
    def missed(self) -> Mapping[str, MetaqError]:
        return self._missed

    def available(self, selection: Selection) -> AvailableRanges:
        """Return the ranges of the queues. Brokers missing at all name servers are asked once, at their last
        address.
        """
        queues, listed = self._queues(selection)
        ranges = self.offsets.ranges([queue for queue in queues if queue.partition.broker in listed])
        others = [queue for queue in queues if queue.partition.broker not in listed]
        more, self._missed = self.offsets.ranges_now(others) if others else ({}, {})
        self._look_again(self._missed)
        return self._noted(ranges | more)

    def available_now(self, selection: Selection) -> tuple[AvailableRanges, Mapping[str, MetaqError]]:
        ranges, away = self.offsets.ranges_now(self._queues(selection)[0])
        self._look_again(away)
        return self._noted(ranges), away

    def _look_again(self, away: Mapping[str, MetaqError]) -> None:
        """Ask the name servers soon where brokers are that do not answer."""
        now_s = self._clock.monotonic()
        if away and now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            self.directory.invalidate()

    def broker_of(self, where: TopicPartition) -> str | None:
        return where.partition.broker_name

    def require(self, selection: Selection, read: Collection[str] = ()) -> None:
        """Check the named topics and queues as far as possible. Topics that a query has ``read`` are not checked, but
        waited for.

        Raises:
            TopicNotFound: No name server knows a topic.
            TopicNotReadable: No broker allows reads of it.
            TopicListMissing: A pattern is given, and the name server lists no topics.
            QueuesAway: A queue's broker is in no route.
            OptionError: A topic has no queue of that name.
        """
        if isinstance(selection, TopicPattern):
            self.topics()
            return
        topics = selection.topics if isinstance(selection, Named) else tuple(selection.partitions)
        for topic in (topic for topic in topics if topic not in read):
            if not persist(partial(self.directory.queues, topic), self._policy, self._clock):
                raise TopicNotReadable(topic, list(map(str, self.directory.servers)))
            if isinstance(selection, Assigned):
                named = [TopicPartition(topic, queue) for queue in selection.partitions[topic]]
                self.require_there("assign", named)

    def require_there(self, option: str, partitions: Collection[TopicPartition]) -> None:
        """Check that ``partitions`` exist: name servers list every queue of a registered broker."""
        persist(partial(self._require_there, option, sorted(partitions)), self._policy, self._clock)

    def _require_there(self, option: str, partitions: Sequence[TopicPartition]) -> None:
        for topic in sorted({where.topic for where in partitions}):
            try:
                listed = self.directory.queues(topic)
            except TopicNotFound:
                listed = []
            missing = [where for where in partitions if where.topic == topic and where.partition not in listed]
            there = {queue.broker_name for queue in listed}
            away = sorted({where.partition.broker_name for where in missing} - there)
            if away:
                self.directory.invalidate()
                names = ", ".join(str(where) for where in missing if where.partition.broker_name in away)
                raise QueuesAway(f"option {option}: {names}", away, list(map(str, self.directory.servers)))
            if missing:
                names = ", ".join(str(where.partition) for where in missing)
                present = ", ".join(map(str, listed)) or "none"
                raise OptionError(option, f"topic {topic!r} has no queue {names}; there is {present}")

    def require_brokers(self, option: str, names: Collection[str], selection: Selection) -> None:
        def look() -> None:
            there = self._queues(selection)[1]
            if missing := sorted(set(names) - set(map(str, there))):
                self.directory.invalidate()
                raise QueuesAway(f"option {option}", missing, list(map(str, self.directory.servers)))

        persist(look, self._policy, self._clock)

    def require_writable(self, topic: str) -> None:
        """Check that messages can be sent to ``topic``.

        Raises:
            TopicNotFound: No name server knows it, or no broker accepts messages for it.
        """
        if not persist(lambda: self.directory.writable(topic), self._policy, self._clock):
            raise TopicNotFound(topic, [f"{server} (with write permission)" for server in self.directory.servers])

    def topics(self) -> list[str]:
        """All topics that are listed. Raises ``TopicListMissing`` where none are."""
        return persist(self.directory.topics, self._policy, self._clock)

    def _queues(self, selection: Selection) -> tuple[list[TopicPartition], set[int | str]]:
        """The queues to ask for, and the brokers that are listed for any topic."""
        brokers: set[int | str] = set()
        for topic in self._topics(selection):
            try:
                listed = self.directory.queues(topic)
            except TopicNotFound:  # it is waited for, or was deleted: then the brokers have no messages of it
                continue
            self._known.update(TopicPartition(topic, queue) for queue in listed)
            brokers.update(queue.broker for queue in listed)
        return sorted(chosen(selection, dict.fromkeys(self._known))), brokers

    def _topics(self, selection: Selection) -> Iterable[str]:
        match selection:
            case Named(topics):
                return topics
            case Assigned(partitions):
                return list(partitions)
            case TopicPattern(pattern):
                return [topic for topic in self.directory.topics() if pattern.fullmatch(topic)]

    def _noted(self, ranges: Mapping[TopicPartition, OffsetRange]) -> AvailableRanges:
        found = {where: PartitionState(span, None) for where, span in ranges.items()}
        if found != self._last:
            self._last = found
        return self._last
