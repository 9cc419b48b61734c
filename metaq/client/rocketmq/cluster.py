"""Views of a cluster of RocketMQ brokers: topics, queues, offsets, and the lag of consumer groups."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.bundled import ask_for_metaq
from metaq.client.browser import Start
from metaq.client.cluster import OffsetChange
from metaq.client.rocketmq.group_view import ListedConsumer, RocketGroupView
from metaq.client.rocketmq.statistics import (
    QueueStatistics,
    RocketBrokerStatistics,
    broker_statistics,
    topic_rates,
    topic_statistics,
)
from metaq.client.rocketmq.topics import TopicAdministration
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError, TopicNotFound
from metaq.model import Address, OffsetRange, Partition, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue and its stored range: the messages ``[start, end)``. ``address`` is where the queue is read."""

    topic: str
    partition: Partition
    address: Address
    start: int
    end: int

    @property
    def messages(self) -> int:
        """Number of stored messages."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """The lag of a group in a queue; ``position`` is ``None`` if the group has not committed one.

    ``messages_behind`` counts from the position, or from the first stored message if there is no position or it is
    lower.
    """

    group: str
    topic: str
    partition: Partition
    position: int | None
    end: int
    messages_behind: int


class RocketClusterView:
    """The state of the cluster at the time of each call.

    Methods raise ``TopicNotFound`` for a topic that no name server knows, ``NameServersAway`` if none answers, and
    ``ConnectionFailed``, ``DeadlineExceeded`` or ``BrokerAway`` with the broker that could not be asked.
    """

    def __init__(self, directory: NameServerDirectory, pool: SessionPool) -> None:
        self._servers, self._pool = directory, pool
        self._offsets = Offsets(pool, directory, within_s=pool.timeouts.all_tries_s)
        self._groups = RocketGroupView(directory, pool, self._offsets)

    @property
    def _directory(self) -> NameServerDirectory:
        self._pool.check_open()  # a directory may answer from memory, without the pool
        return self._servers

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._pool.opened

    def topic_names(self) -> list[str]:
        """Return all topics, sorted, from one request to a name server. Raises as ``topics``."""
        return sorted(self._directory.topics())

    def topics(self) -> dict[str, list[Partition]]:
        """Return each topic with its queues that may be read.

        Raises:
            TopicListMissing: The name server does not list topics (a proxy).
        """
        found = {}
        for topic in self._directory.topics():
            with suppress(TopicNotFound):  # it was deleted meanwhile
                found[topic] = self._directory.queues(topic)
        return found

    def topic_messages(self) -> dict[str, int]:
        """Return how many messages each topic holds, in queues that may be read.

        Raises:
            TopicListMissing: The name server does not list topics (a proxy).
        """
        topics = self.topics()
        queues = [TopicPartition(topic, queue) for topic, found in topics.items() for queue in found]
        counts = dict.fromkeys(topics, 0)
        for where, offsets in self._offsets.ranges(queues).items():
            counts[where.topic] += offsets.end - offsets.start
        return counts

    def topic_rates(self) -> dict[str, float | None]:
        """Return how many messages a second each topic got in the last minute; ``None`` if a broker does not say.

        Raises:
            TopicListMissing: The name server does not list topics (a proxy).
        """
        return topic_rates(self._directory, self._pool, self.topics())

    def brokers(self) -> dict[str, Address]:
        """Return broker name -> address to read from, for brokers with at least one user topic."""
        names = {queue.broker_name for queues in self.topics().values() for queue in queues}
        return {name: self._directory.read_address(name) for name in sorted(names)}

    def addresses(self) -> set[Address]:
        """Return the addresses of name servers, and of the brokers that were registered there last; asks none."""
        return self._directory.addresses()

    @property
    def left_out(self) -> frozenset[Address]:
        """The brokers that answers leave out, because the client was created to do so."""
        return self._directory.left_out

    def servers(self) -> set[Address]:
        """Return the addresses of name servers and brokers; for the bundled broker, also its port for MetaQ clients.

        A broker that does not answer that question is not asked again.
        """
        masters = self._directory.masters()
        found = {*self._directory.servers, *masters.values()}
        for name, address in masters.items():
            with suppress(MetaqError):
                found.add(ask_for_metaq(self._pool, name, address).address)
        return found

    def partitions(self, topic: str) -> list[Partition]:
        """Return the queues of a topic that may be read, sorted."""
        return self._directory.queues(topic)

    def writable(self, topic: str) -> list[Partition]:
        """Return the queues of a topic that take messages, sorted."""
        return self._directory.writable(topic)

    def describe(self, topic: str) -> list[QueueInfo]:
        """Return the queues of a topic that may be read, sorted."""
        return [
            QueueInfo(
                topic=topic,
                partition=where.partition,
                address=self._directory.read_address(where.partition.broker_name, topic=topic),
                start=offsets.start,
                end=offsets.end,
            )
            for where, offsets in sorted(self._ranges(topic).items())
        ]

    def offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        """Return the offset of each queue's first message stored at or after ``time_ms`` (since 1970), else its end."""
        times = {TopicPartition(topic, queue): time_ms for queue in self._directory.queues(topic)}
        return {where.partition: offset for where, offset in sorted(self._offsets.at(times).items())}

    def groups(self) -> list[str]:
        """Return the consumer groups that the brokers know, sorted; without RocketMQ's own.

        Raises:
            RequestRefused: A broker does not list them (a proxy).
        """
        return self._groups.names()

    def members(self, group: str) -> list[str]:
        """Return the ids of the consumers of ``group`` that are running, as the brokers know them, sorted."""
        return self._groups.members(group)

    def consumers(self, group: str) -> list[ListedConsumer]:
        """Return the consumers of ``group`` that are running, with address, language and version, sorted."""
        return self._groups.consumers(group)

    def lag(self, group: str, topics: Collection[str] | None = None) -> list[QueueLag]:
        """Return the lag of ``group`` in ``topics``, by default in all topics for which the brokers have its offsets.

        Raises:
            ValueError: No topic is named, and the brokers do not report what a group reads (a proxy).
        """
        found = []
        for topic in self._groups.topics(group) if topics is None else topics:
            ranges = self._ranges(topic)
            committed = self._offsets.committed(group, ranges)
            found += [_lag(group, where, ranges[where], committed[where]) for where in sorted(ranges)]
        return found

    def statistics(self) -> list[RocketBrokerStatistics]:
        """Return the statistics of each broker, masters and slaves.

        Raises:
            RequestRefused, AccessDenied: A broker does not report it.
        """
        return broker_statistics(self._directory, self._pool)

    def topic_statistics(self, topic: str) -> list[QueueStatistics]:
        """Return the range of each queue of a topic, and when its last message was stored. Raises as ``statistics``."""
        return topic_statistics(self._directory, self._pool, topic)

    def plan_reset(
        self, group: str, topic: str, start: Start, partitions: Collection[Partition] | None = None
    ) -> list[OffsetChange]:
        """Return the changes for ``reset`` that make ``group`` begin at ``start``, in ``partitions`` or in all.

        Raises:
            ValueError: The topic has no such queue, or the queue no such offset.
        """
        return self._groups.plan_reset(group, topic, start, partitions)

    def reset(self, group: str, changes: Collection[OffsetChange]) -> None:
        """Set the offsets of a group that is not running.

        Raises:
            ValueError: The group has running consumers, which would overwrite the offsets.
        """
        self._groups.reset(group, changes)

    def create_topic(self, topic: str, queues: int = 8) -> dict[str, Address]:
        """Create a topic at every broker; see ``TopicAdministration.create``."""
        return TopicAdministration(self._directory, self._pool).create(topic, queues)

    def delete_topic(self, topic: str) -> dict[str, Address]:
        """Delete a topic at every broker; see ``TopicAdministration.delete``."""
        return TopicAdministration(self._directory, self._pool).delete(topic)

    def _ranges(self, topic: str) -> dict[TopicPartition, OffsetRange]:
        return self._offsets.ranges(TopicPartition(topic, queue) for queue in self._directory.queues(topic))


def _lag(group: str, where: TopicPartition, offsets: OffsetRange, position: int | None) -> QueueLag:
    behind = max(0, offsets.end - max(offsets.start, position or 0))
    return QueueLag(
        group=group,
        topic=where.topic,
        partition=where.partition,
        position=position,
        end=offsets.end,
        messages_behind=behind,
    )
