"""Membership of a RocketMQ group: heartbeats announce the members, and each computes the assignment itself.

While two members see different lists of members, both may read one queue for a short time: the next owner begins at the
last saved position. With ``ordered``, queues are locked at their brokers instead.

Source: docs/client-internals.md, "How a group divides partitions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from metaq.backends.rocketmq.errors import BrokerAway
from metaq.backends.rocketmq.groups.group_requests import GroupRequests
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import PulledQueue
from metaq.client.rocketmq.groups.heartbeats import MemberHeartbeats
from metaq.client.rocketmq.groups.locks import MemberLocks
from metaq.client.rocketmq.groups.subscriptions import Subscriptions
from metaq.discovery.name_server import NameServerDirectory
from metaq.discovery.zk_groups import GroupView
from metaq.errors import ConsumerIdInUse, MetaqError, TopicNotFound, likeliest_to_pass
from metaq.model import Address, Partition, TopicPartition
from metaq.net.clock import Clock
from metaq.net.remoting_client import RemotingClient

REFRESH_S: Final = 20.0
"""Interval of checks of members and queues, the same as in Java's client."""
NEW_TOPIC_S: Final = 1.0
"""The interval while a topic has no queues yet."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """``own_id``: whether the program chose the id, which another consumer may have chosen, too."""

    ordered: bool = False
    broadcast: bool = False
    own_id: bool = False


class RocketMembership:
    """The membership of consumer ``consumer_id`` in ``group``. ``client`` is closed with it.

    All methods raise ``MetaqError``. One thread at a time, beside the client's own.
    """

    registry = "RocketMQ's brokers"

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        client: RemotingClient,
        requests: GroupRequests,
        consumer_id: str,
        subscriptions: Subscriptions,
        settings: MemberSettings,
        clock: Clock,
    ) -> None:
        self.group, self.consumer_id = subscriptions.group, consumer_id
        self.exclusive = settings.ordered
        self._directory, self._pool, self._client, self._requests = directory, pool, client, requests
        self._subscriptions, self._settings = subscriptions, settings
        self._heartbeats = MemberHeartbeats(requests, self._brokers, self._lost, clock)
        self._locks = MemberLocks(requests, clock) if settings.ordered else None
        self._on_change: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self._on_away: Callable[[Collection[str]], None] = lambda names: None
        self._broker_names: set[str] = set()
        self._started = self._joined = self._closed = False
        self._queues: dict[str, list[Partition]] = {}

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Set the callbacks: ``on_lost`` when no broker accepts heartbeats any more, ``on_change`` after any change."""
        self._on_change, self._on_lost = on_change, on_lost
        self._requests.when_members_change(on_change)
        self._heartbeats.start()
        if self._locks is not None:
            self._locks.start(on_change)
        self._started = True

    def when_brokers_are_away(self, call: Callable[[Collection[str]], None]) -> None:
        """Set a callback for each check of the queues: it gets the brokers that had queues and are in no route now."""
        self._on_away = call

    def _lost(self) -> None:
        self._on_lost()
        self._on_change()

    def link_ended(self, address: Address) -> None:
        """A connection has ended: its broker has removed this member."""
        if not self._closed and address in self._heartbeats.reached:
            self._heartbeats.soon()

    @property
    def connected(self) -> bool:
        """Always true: brokers can be asked at any time; ``registered`` shows whether they answer."""
        return self._started

    @property
    def registered(self) -> bool:
        """Whether a broker accepted the last heartbeat."""
        return self._joined and bool(self._heartbeats.reached)

    @property
    def refresh_s(self) -> float | None:
        waits = len(self._queues) < len(self._subscriptions.all_topics) or not all(self._queues.values())
        return NEW_TOPIC_S if waits else REFRESH_S

    def register(self) -> None:
        """Join the group.

        Raises:
            TopicNotFound: No name server knows one of the topics.
            ConsumerIdInUse: The brokers know another consumer with this id.
            RequestRefused: The brokers do not compile the SQL expression, or refuse this consumer.
        """
        found = {topic: self._directory.queues(topic) for topic in self._subscriptions.topics}
        if not self._queues:
            self._check_filter(found)
            if self._settings.own_id:
                self._check_id(found)
        self._queues |= found  # from now on, heartbeats announce this consumer
        self._heartbeats.beat()
        self._joined = True

    def _check_filter(self, queues: Mapping[str, Sequence[Partition]]) -> None:
        """Have a broker compile the SQL expression, if there is one."""
        for topic in self._subscriptions.topics:
            subscription = self._subscriptions.of(topic)
            if subscription.type == "TAG" or not queues[topic]:
                continue
            name = queues[topic][0].broker_name
            queue = PulledQueue(
                with_namespace(topic, self._directory.namespace), name, 0, self._requests.group, subscription
            )
            with self._pool.lease(self._directory.read_address(name, topic=topic)) as session:
                queue.check(session)

    def _check_id(self, queues: Mapping[str, Sequence[Partition]]) -> None:
        topic = self._subscriptions.topics[0]
        if self.consumer_id in self._members(topic, queues[topic]):
            raise ConsumerIdInUse(self.group, self.consumer_id, self.registry)

    def view(self) -> GroupView:
        """Return the members that the brokers of each topic know, and the readable queues."""
        for topic in self._subscriptions.all_topics:
            try:
                self._queues[topic] = self._directory.queues(topic)
            except TopicNotFound:
                self._queues.setdefault(topic, [])
        topics = [topic for topic, queues in self._queues.items() if queues]
        names = {queue.broker_name for queues in self._queues.values() for queue in queues}
        self._broker_names |= names
        self._on_away(self._broker_names - names)
        if set(self._brokers()) - self._heartbeats.reached:
            self._heartbeats.soon()  # a broker is new, or has restarted
        if self._settings.broadcast:
            return GroupView({self.consumer_id: topics}, self._queues)
        members: dict[str, list[str]] = {}
        for topic in topics:
            for member in self._members_with_us(topic):
                members.setdefault(member, []).append(topic)
        return GroupView(members or {self.consumer_id: []}, self._queues)

    def _members_with_us(self, topic: str) -> Collection[str]:
        """Return the members that any broker of a topic knows.

        All brokers are asked: one that has just restarted knows only members that sent a heartbeat since, and an
        assignment by its list alone would take queues from other members.
        """
        listed = self._lists(topic)
        if any(self.consumer_id not in members for members in listed):
            self._heartbeats.beat()  # a broker has removed this member, or has just started
            listed = self._lists(topic)
        found = {member for members in listed for member in members}
        if self.consumer_id not in found:
            raise _NotListed(self.consumer_id, topic)
        return found

    def _lists(self, topic: str) -> list[Collection[str]]:
        """Return the member list of each broker of a topic that answers; raise if none does."""
        found: list[Collection[str]] = []
        failures: list[MetaqError] = []
        for address in self._readable_at(topic, self._queues[topic]):
            try:
                found.append(self._requests.members(address))
            except MetaqError as error:
                failures.append(error)
        if not found:
            raise likeliest_to_pass(failures) or _NotListed(self.consumer_id, topic)
        return found

    def _members(self, topic: str, queues: Sequence[Partition]) -> Collection[str]:
        """Ask a broker of a topic for the members of the group."""
        failures: list[MetaqError] = []
        for address in self._readable_at(topic, queues):
            try:
                return self._requests.members(address)
            except MetaqError as error:
                failures.append(error)
        raise likeliest_to_pass(failures) or _NotListed(self.consumer_id, topic)

    def _readable_at(self, topic: str, queues: Sequence[Partition]) -> list[Address]:
        """Return the read addresses of a topic's brokers that accepted the last heartbeat; of all if none did."""
        addresses = []
        for name in dict.fromkeys(queue.broker_name for queue in queues):
            with suppress(BrokerAway):
                addresses.append(self._directory.read_address(name, topic=topic))
        reached = self._heartbeats.reached
        return [address for address in addresses if address in reached] or addresses

    def _brokers(self) -> Collection[Address]:
        names = {queue.broker_name for queues in self._queues.values() for queue in queues}
        known = self._directory.brokers()
        return [address for name in names for address in known.get(name, {}).values()]

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Claim partitions; return the claimed ones: all, or with locks the ones that could be locked."""
        return set(partitions) if self._locks is None else self._locks.lock(partitions)

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose locks were never lost or, without locks, whose brokers list this consumer."""
        if self._locks is not None:
            return self._locks.renew(partitions)
        if self._settings.broadcast:
            return set(partitions)
        topics = {where.topic for where in partitions}
        listed = {topic for topic in topics if self.consumer_id in self._members(topic, self._queues[topic])}
        if listed != topics:
            self._heartbeats.soon()
        return {where for where in partitions if where.topic in listed}

    def until_s(self, where: TopicPartition) -> float:
        """Until when a queue is locked; without locks, until when the brokers count this consumer as a member."""
        if self._locks is not None:
            return self._locks.until_s(where)
        return inf if self._settings.broadcast else self._heartbeats.until_s

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Unlock the partitions, if they are locked."""
        if self._locks is not None:
            self._locks.unlock(partitions)

    def close(self) -> None:
        self._closed = True
        if self._locks is not None:
            self._locks.close()
        self._heartbeats.close()
        self._client.close()


class _NotListed(MetaqError):
    """The brokers of ``topic`` do not list this consumer among the members."""

    retryable = True

    def __init__(self, consumer_id: str, topic: str) -> None:
        super().__init__(consumer_id, topic)

    def __str__(self) -> str:
        return f"the brokers of topic {self.args[1]!r} do not list {self.args[0]!r} as a member"
