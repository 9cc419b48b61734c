"""Views of a cluster of MetaQ brokers: topics, partitions, offsets, and the lag of consumer groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from metaq.backends.metaq.boundaries import first_at_time
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import ordinal_at
from metaq.client.groups.ownership.starts import Start, StartResolver
from metaq.client.statistics import (
    BrokerStatistics,
    TopicSize,
    TopicStatistics,
    broker_statistics,
    replication_figures,
    topic_sizes,
    topic_statistics,
)
from metaq.client.topic_reader import TopicReader
from metaq.discovery.base import Directory
from metaq.discovery.broker_groups import BrokerGroupStore
from metaq.discovery.group_offsets import GroupOffsetStore
from metaq.discovery.unlisted import unlisted_partitions, unlisted_text
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import ExtensionMissing, TopicNotFound
from metaq.model import Address, Partition, PartitionState, TopicPartition
from metaq.net.transport import Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition and its stored range: bytes ``[start, end)``. ``address`` is the broker that serves reads.

    ``messages`` is the number of messages, ``None`` if the broker does not count them (a Java broker). An empty
    partition has ``start`` = ``end`` = 0. ``listed`` is false if this range is not certain: a Java broker offers the
    partition but has not opened it.
    """

    topic: str
    partition: Partition
    address: Address
    start: int
    end: int
    messages: int | None
    incarnation: str | None
    listed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a consumer group is behind in a partition; ``position`` is ``None`` if it has not committed one.

    ``bytes_behind`` counts from the position, or from the first stored byte if there is no position or it is lower.
    """

    group: str
    topic: str
    partition: Partition
    position: int | None
    end: int
    bytes_behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """A group's offset in a partition before a reset (``None``: none is stored), and after."""

    topic: str
    partition: Partition
    position: int | None
    to: int


def unlisted_warning(infos: Iterable[object]) -> str | None:
    """Return a warning about the unlisted partitions among ``infos``; ``None`` if all are listed."""
    names = [f"{one.topic}/{one.partition}" for one in infos if isinstance(one, PartitionInfo) and not one.listed]
    return unlisted_text(names) if names else None


class ClusterView:
    """The state of the cluster at the time of each call.

    Methods raise ``ConnectionFailed`` or ``DeadlineExceeded`` with the address of a broker that did not answer,
    ``ZooKeeperAway`` if ZooKeeper did not, and ``TopicNotFound`` for a topic that no broker has.
    """

    def __init__(
        self, directory: Directory, pool: SessionPool, zookeeper: ZooKeeperAddress | None, timeouts: Timeouts
    ) -> None:
        self._servers, self._pool = directory, pool
        self._zookeeper, self._timeouts = zookeeper, timeouts

    @property
    def _directory(self) -> Directory:
        self._pool.check_open()  # a directory may answer from memory, without the pool
        return self._servers

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._pool.opened

    def brokers(self) -> dict[int, Address]:
        """Return broker id -> address to read from."""
        return self._directory.brokers()

    def topics(self) -> dict[str, list[Partition]]:
        """Return each topic with its partitions that have or had messages."""
        return self._directory.topics()

    def addresses(self) -> set[Address]:
        """Return the address of each broker that is known; asks none."""
        return set(self._directory.addresses())

    @property
    def left_out(self) -> frozenset[Address]:
        """The brokers that answers leave out, because the client was created to do so."""
        return self._directory.left_out

    def servers(self) -> set[Address]:
        return set(self._directory.brokers().values())

    def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that hold or accept messages, sorted."""
        stored = set(self._directory.partitions(topic))
        try:
            return sorted(stored | set(self._directory.writable(topic)))
        except TopicNotFound:
            if not stored:
                raise
            return sorted(stored)

    def writable(self, topic: str) -> list[Partition]:
        """Return the partitions that accept messages of a topic, sorted."""
        return sorted(self._directory.writable(topic))

    def describe(self, topic: str) -> list[PartitionInfo]:
        """Describe the partitions of a topic that hold or accept messages, sorted."""
        available, brokers = self._available(topic), self._directory.brokers()
        addresses = {
            where.partition: address
            for where in available
            if (address := brokers.get(where.partition.broker_id)) is not None  # else it came after the list
        }
        try:
            accepting = self._directory.writable(topic)
        except TopicNotFound:
            if not available:
                raise
            accepting = {}
        found = [self._info(topic, partition, addresses[partition], available) for partition in sorted(addresses)]
        is_whole = accepting.keys() <= addresses.keys()
        unlisted = [] if is_whole else unlisted_partitions(self._directory, self._pool, topic, addresses)
        empty = [
            PartitionInfo(
                topic=topic,
                partition=partition,
                address=address,
                start=0,
                end=0,
                messages=None if partition in unlisted else 0,
                incarnation=None,
                listed=partition not in unlisted,
            )
            for partition, address in accepting.items()
            if partition not in addresses
        ]
        return sorted([*found, *empty], key=lambda info: info.partition)

    def offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        """Return the offset of each partition's first message at or after ``time_ms`` (since 1970), else its end.

        Raises:
            ExtensionMissing: A broker stores no times (a Java broker).
        """
        found = {}
        for partition, address in self._require_stored(topic).items():
            with self._pool.lease(address) as session:
                found[partition] = first_at_time(session, topic, partition.index, time_ms)
        return found

    def reader(self, topic: str) -> TopicReader:
        """Return a reader of the partitions of a topic that have or had messages; of none if no message was put yet."""
        return TopicReader(self._pool, topic, self._require_stored(topic))

    def statistics(self) -> list[BrokerStatistics]:
        return broker_statistics(self._directory, self._pool)

    def replication(self) -> dict[Address, dict[str, str]]:
        """Return what each broker reports of its replication; empty for a Java broker, which has no such question."""
        return replication_figures(self._directory, self._pool)

    def topic_sizes(self) -> list[TopicSize]:
        """Return what the brokers hold of each topic, sorted, with topics that have no message yet."""
        return topic_sizes(self._directory, self._pool)

    def topic_statistics(self, topic: str) -> list[TopicStatistics]:
        """Return the statistics of the topic from each broker that has it.

        Raises:
            ValueError: The name is reserved in MetaQ's protocol, such as ``config``.
        """
        return topic_statistics(self._directory, self._pool, topic)

    def groups(self) -> list[str]:
        """Return the consumer groups that are known in ZooKeeper or, with a list of brokers, at the brokers, sorted.

        Raises:
            ValueError: A broker of a list keeps no groups.
        """
        return self._group_offsets().groups()

    def members(self, group: str) -> list[str]:
        """Return the ids of the running consumers of ``group``, sorted. Raises as ``lag``."""
        return self._group_offsets().consumers(group)

    def lag(self, group: str, topics: Collection[str] | None = None) -> list[GroupLag]:
        """Return the lag of ``group`` in ``topics``, by default in all topics for which it has committed offsets.

        Raises:
            ValueError: A broker of a list keeps no groups, or ``group`` is not a valid group name.
        """
        store = self._group_offsets()
        wanted = list(topics) if topics is not None else store.topics(group)
        available = self._directory.available(wanted)
        order = {topic: number for number, topic in enumerate(wanted)}
        there = sorted((one for one in available if one.topic in order), key=lambda one: (order[one.topic], one))
        offsets = store.read(group, there)
        return [
            _lag(group, where, available[where], offsets[where].offset if where in offsets else None) for where in there
        ]

    def plan_reset(
        self, group: str, topic: str, start: Start, partitions: Collection[Partition] | None = None
    ) -> list[OffsetChange]:
        """Return the changes for ``reset`` that make ``group`` begin at ``start``, in ``partitions`` or in all.

        Raises:
            ValueError: A broker of a list keeps no groups, the topic has no such partition, or no message
                begins at an offset in ``start``.
            ExtensionMissing: ``start`` is a time, and a broker stores none (a Java broker).
        """
        store, there = self._group_offsets(), sorted(self._require_stored(topic))
        wanted = there if partitions is None else list(partitions)
        if unknown := sorted(set(wanted) - set(there)):
            raise ValueError(f"topic {topic!r} has no partition {unknown[0]}; it has {', '.join(map(str, there))}")
        resolver = StartResolver(self._directory, self._pool, start)
        offsets = store.read(group, [TopicPartition(topic, partition) for partition in wanted])
        return [
            OffsetChange(
                topic=topic,
                partition=partition,
                position=None if (old := offsets.get(TopicPartition(topic, partition))) is None else old.offset,
                to=resolver.resolve(TopicPartition(topic, partition)).offset,
            )
            for partition in wanted
        ]

    def reset(self, group: str, changes: Collection[OffsetChange]) -> None:
        """Set the offsets of a group that is not running.

        Raises:
            ValueError: The group has running consumers, which would overwrite the offsets.
        """
        store = self._group_offsets()
        if running := store.consumers(group):
            raise ValueError(f"group {group!r} has running consumers, which would overwrite it: {', '.join(running)}")
        store.write(group, {TopicPartition(one.topic, one.partition): GroupOffset(one.to) for one in changes})

    def _info(
        self, topic: str, partition: Partition, address: Address, available: Mapping[TopicPartition, PartitionState]
    ) -> PartitionInfo:
        state = available[TopicPartition(topic, partition)]
        start, end = state.offsets.start, state.offsets.end
        return PartitionInfo(
            topic=topic,
            partition=partition,
            address=address,
            start=start,
            end=end,
            messages=self._count(topic, partition, address, start, end),
            incarnation=state.incarnation,
        )

    def _count(self, topic: str, partition: Partition, address: Address, start: int, end: int) -> int | None:
        with self._pool.lease(address) as session:
            try:
                first, last = (ordinal_at(session, topic, partition.index, offset) for offset in (start, end))
            except ExtensionMissing:
                return None
        return last - first

    def _available(self, topic: str) -> Mapping[TopicPartition, PartitionState]:
        return {where: state for where, state in self._directory.available([topic]).items() if where.topic == topic}

    def _require_stored(self, topic: str) -> dict[Partition, Address]:
        addresses = self._directory.partitions(topic)
        if not addresses:
            self._directory.writable(topic)  # raises TopicNotFound if no broker knows the topic
        return addresses

    def _group_offsets(self) -> GroupOffsetStore | BrokerGroupStore:
        self._pool.check_open()
        if self._zookeeper is None:
            return BrokerGroupStore(self._servers, self._pool)
        return GroupOffsetStore(self._zookeeper, self._timeouts.connect_s)


def _lag(group: str, where: TopicPartition, state: PartitionState, position: int | None) -> GroupLag:
    start, end = state.offsets.start, state.offsets.end
    behind = max(0, end - max(start, position or 0))
    return GroupLag(
        group=group, topic=where.topic, partition=where.partition, position=position, end=end, bytes_behind=behind
    )
