"""The parts of a consumer of MetaQ brokers: cluster, membership, offsets."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Final

from metaq.backends.metaq.group_requests import check_session
from metaq.backends.metaq.polls import PartitionRequest, Polled
from metaq.backends.metaq.pool import SessionPool
from metaq.client.groups.core import ConsumerCore, Parts
from metaq.client.groups.deliveries import Delivery, parked_delivery
from metaq.client.groups.fetchers import Fetchers
from metaq.client.groups.options import ConsumerOptions
from metaq.client.groups.ownership.bounded import bounded
from metaq.client.groups.ownership.broker_group import BrokerMember, BrokerMembership, new_token
from metaq.client.groups.ownership.coordinator import CoordinatorSettings, MemberCoordinator, Starts
from metaq.client.groups.ownership.incarnations import Incarnations, StoredOffsets
from metaq.client.groups.ownership.last_consumed import LastConsumed
from metaq.client.groups.ownership.listed_group import ListedMembership, ListedOffsets
from metaq.client.groups.ownership.membership import LoneMembership, Membership
from metaq.client.groups.ownership.starts import StartResolver
from metaq.client.groups.parking import PARKED_FILE, ParkedMessages
from metaq.client.groups.partition import OwnedPartition
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import FileOffsets, OffsetStorage
from metaq.client.producer import Producer
from metaq.discovery.base import Directory
from metaq.discovery.zk_groups import ZooKeeperMembership
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import MetaqError, StoreFailed
from metaq.model import Message, TopicPartition
from metaq.net.transport import own_ip

_LOG: Final = logging.getLogger(__name__)

_PARKED_LOOK_S: Final = 5.0
"""Longest pause between two looks for parked messages that are due."""


@dataclass(frozen=True, slots=True)
class MetaqCluster:
    """The parts of a cluster that consumers use; ``name`` is the cluster argument of the program."""

    name: str
    directory: Directory
    pool: SessionPool
    zookeeper: ZooKeeperAddress | None

    @property
    def state_folder(self) -> Path:
        """Folder of this cluster's consumers on this machine."""
        return state_folder(self.name)


def state_folder(cluster: str) -> Path:
    """Return the folder of the consumers of ``cluster`` on this machine."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "metaq" / re.sub(r"[^\w.-]+", "_", cluster)


class _ZooKeeperOffsets:
    """The group's offsets in ZooKeeper, in the session of its membership."""

    def __init__(self, membership: ZooKeeperMembership) -> None:
        self._membership = membership

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return self._membership.load(partitions)

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self._membership.save(offsets)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        return self._membership.save_if_unchanged(offsets, expected)

    def close(self) -> None:
        """Do nothing: the membership closes the session."""


@dataclass(frozen=True, slots=True)
class CheckedStarts:
    """Wraps ``starts`` for partitions that the group has never read: ``check`` raises ``MetaqError`` for others."""

    check: Callable[[TopicPartition], None]
    starts: StartResolver

    def resolve(self, where: TopicPartition, since_ms: int | None = None) -> GroupOffset:
        self.check(where)
        return self.starts.resolve(where, since_ms)


class MetaqCore(ConsumerCore[Delivery]):
    """One consumer of MetaQ brokers."""

    options: ConsumerOptions
    state: ConsumerState[Delivery, PartitionRequest, Polled]

    def __init__(self, cluster: MetaqCluster, options: ConsumerOptions) -> None:
        self.cluster = cluster
        clock, group = cluster.pool.clock, options.group
        state: ConsumerState[Delivery, PartitionRequest, Polled] = ConsumerState(
            retry_max_s=options.retry_max_s, max_attempts=options.max_attempts, dedupe=options.dedupe
        )
        self.consumer_id = f"{group}_{options.consumer_id or f'{own_ip()}-{os.getpid()}-{uuid.uuid4()}'}"
        self._directory = cluster.directory
        self._why_away: Callable[[int | str], MetaqError | None] = lambda broker: None
        membership, storage = self._members(options)
        self._membership = membership
        directory, topics = self._directory, options.topics
        last = LastConsumed(directory, cluster.pool)
        # offsets of an older incarnation do not apply
        start = "earliest" if isinstance(options.start, Mapping) else options.start
        begin = StartResolver(directory, cluster.pool, start).resolve
        checks: type[Incarnations] | type[StoredOffsets] = Incarnations if cluster.zookeeper is None else StoredOffsets
        incarnations = checks(directory, storage, group, topics, begin, last)
        read = options.read_settings(group)
        coordinator = MemberCoordinator(
            state,
            membership,
            storage,
            self._starts(options),
            lambda where, start, generation, saved: OwnedPartition(where, start, generation, read, state, saved),
            CoordinatorSettings(
                strategy=options.strategy,
                save_s=options.save_s,
                drain_s=options.drain_s,
                id_wait_s=2 * options.session_s,
                callbacks=options.on_revoked is not None,
            ),
            clock,
            incarnations,
        )
        self._look_s = 0.0  # when to look for parked messages again
        self.parked = ParkedMessages(options.parking or cluster.state_folder / PARKED_FILE, group)
        super().__init__(options, Parts(self.consumer_id, state, coordinator, self.parked, clock))

    def fetching(self) -> Fetchers:
        check, cluster = self.coordinator.check_incarnations, self.cluster
        check_s = inf if cluster.zookeeper is None else self.options.save_s
        directory, why_away = self._directory, self._why_away
        return Fetchers(self.state, directory, cluster.pool, self.group, check, check_s, self.clock, why_away)

    def _members(self, options: ConsumerOptions) -> tuple[Membership, OffsetStorage]:
        """Return the membership and the offsets. A group at brokers has a directory of those that answer: set it."""
        cluster = self.cluster
        offsets = None if options.offsets is None else bounded(options.offsets)
        if cluster.zookeeper is not None:
            membership = ZooKeeperMembership(
                cluster.zookeeper,
                options.group,
                self.consumer_id,
                options.topics,
                session_s=options.session_s,
                timeout_s=cluster.pool.timeouts.connect_s,
                has_offsets=options.offsets is None,
            )
            return membership, offsets or _ZooKeeperOffsets(membership)
        folder, is_given = cluster.state_folder, offsets is not None
        lock = None if is_given else folder / f"{options.group}.lock"
        lone = LoneMembership(cluster.directory, options.group, self.consumer_id, options.topics, lock)
        if offsets is not None and not options.shares:
            return lone, offsets
        check_session(options.session_s)
        member = BrokerMember(options.group, self.consumer_id, tuple(options.topics), options.session_s, new_token())
        shared = BrokerMembership(cluster.directory, cluster.pool, member, cluster.pool.clock, has_offsets=not is_given)
        self._directory, self._why_away = shared.directory, shared.why_away
        file = folder / "offsets.sqlite"
        listed = ListedMembership(cluster.directory, cluster.pool, shared, lone, None if is_given else file)
        return listed, offsets or bounded(ListedOffsets(listed, shared, file))

    def _starts(self, options: ConsumerOptions) -> Starts:
        starts = StartResolver(self._directory, self.cluster.pool, options.start)
        kept = self._membership.kept if isinstance(self._membership, ZooKeeperMembership) else None
        return starts if kept is None else CheckedStarts(kept.check_unread, starts)

    def parked_due(self) -> bool:
        wanted = self.options.parked_retry_s is not None and self.options.on_reject == "park"
        return wanted and self.clock.monotonic() >= self._look_s

    def take_parked(self) -> list[tuple[int, Delivery]]:
        pause_s = self.options.parked_retry_s or 0.0
        parked = None
        try:
            parked = self.parked.take_due(self.options.topics, round(pause_s * 1000))
        except StoreFailed as error:
            _LOG.warning("group %s: parked messages are not tried again: %s", self.group, error)
        if parked is not None:
            return [(parked.number, parked_delivery(parked.message, self.options.max_attempts + 1))]
        self._look_s = self.clock.monotonic() + min(pause_s, _PARKED_LOOK_S)
        return []

    def discard_parked(self, number: int) -> None:
        try:
            self.parked.discard(number)
        except StoreFailed as error:
            text = "group %s: parked message %d was handled, and cannot be removed; it will be handled again: %s"
            _LOG.warning(text, self.group, number, error)

    def _send_away(self, delivery: Delivery) -> None:
        producer = Producer(self.cluster.directory, self.cluster.pool)
        assert self.options.reject_topic is not None
        producer.send_many(self.options.reject_topic, [Message(delivery.data, delivery.attribute)])

    def _ends(self) -> Mapping[TopicPartition, tuple[int, int]]:
        ends = self.cluster.directory.ends(self.options.topics)
        return {where: (offsets.start, offsets.end) for where, offsets in ends.items()}


class _BroadcastOptions(ConsumerOptions):
    shares = False


def broadcast(options: ConsumerOptions, cluster: MetaqCluster) -> ConsumerOptions:
    """Return the options of a consumer that reads all partitions: its group is private to this machine, and it shares
    it with no consumer that its brokers know.
    """
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    given["offsets"] = options.offsets or FileOffsets(cluster.state_folder / "broadcast-offsets.json")
    return _BroadcastOptions(**given | {"group": broadcast_group(options.group)})


def broadcast_group(group: str) -> str:
    """Return the group name of a broadcast consumer on this machine."""
    return f"{group}-{re.sub(r'[.:]', '-', own_ip())}"
