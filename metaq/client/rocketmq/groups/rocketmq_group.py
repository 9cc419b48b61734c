"""The parts of a consumer of RocketMQ brokers: cluster, membership, offsets."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from metaq.backends.rocketmq.groups.group_requests import BeginsAt, GroupRequests, Member
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.names import check_group
from metaq.backends.rocketmq.pool import Credentials, SessionPool
from metaq.backends.rocketmq.remoting import member_client
from metaq.client.groups.core import ConsumerCore, Parts
from metaq.client.groups.metaq_group import state_folder
from metaq.client.groups.ownership.bounded import bounded
from metaq.client.groups.ownership.coordinator import CoordinatorSettings, MemberCoordinator
from metaq.client.groups.parking import PARKED_FILE
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import FileOffsets
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.fetchers import PullThreads
from metaq.client.rocketmq.groups.membership import MemberSettings, RocketMembership
from metaq.client.rocketmq.groups.offsets import BrokerOffsets, RocketStarts
from metaq.client.rocketmq.groups.options import SEND_BACK, RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.queue import OwnedQueue, Pull, QueueAnswer
from metaq.client.rocketmq.groups.subscriptions import Subscriptions
from metaq.client.rocketmq.producer import RocketProducer
from metaq.discovery.name_server import NameServerDirectory
from metaq.discovery.zk_layout import GroupOffset
from metaq.formats.topic_names import GROUP_BYTES_MAX
from metaq.model import Address, TopicPartition
from metaq.net.remoting_client import ClientSettings, RemotingClient
from metaq.net.retry import RetryPolicy
from metaq.net.tls import TlsSettings
from metaq.net.transport import own_ip

_LOG: Final = logging.getLogger(__name__)

FRAME_BYTES_MAX: Final = 64 << 20
"""Longest answer that is accepted."""
REQUESTS_MAX: Final = 1 << 14
"""Limit on requests in flight: each queue has one that waits at its broker."""
ID_WAIT_S: Final = 30.0
"""Longest wait for another consumer with the same id to leave."""
OFFSETS_S: Final = 5.0
"""Longest wait for a broker's answer about offsets, during which other queues wait. The same as in Java's client."""
_NO_RETRIES: Final = RetryPolicy(retries=0)
"""The coordinator retries by itself."""


@dataclass(frozen=True, slots=True)
class RocketCluster:
    """The parts of a cluster that consumers use; ``name`` is the cluster argument of the program."""

    name: str
    directory: NameServerDirectory
    pool: SessionPool
    credentials: Credentials | None = None
    tls: TlsSettings | None = None

    @property
    def state_folder(self) -> Path:
        """Folder of this cluster's consumers on this machine."""
        return state_folder(self.name)

    def client(self, settings: ClientSettings) -> RemotingClient:
        """Return a client for many brokers, with this cluster's keys. It connects on first use.

        Raises:
            ValueError: A file for TLS cannot be used.
        """
        return member_client(
            self.pool.timeouts, self.tls, self.credentials, requests_max=REQUESTS_MAX, settings=settings
        )


class RocketCore(ConsumerCore[RocketDelivery]):
    """One consumer of RocketMQ brokers."""

    options: RocketOptions
    state: ConsumerState[RocketDelivery, Pull, QueueAnswer]

    def __init__(self, cluster: RocketCluster, options: RocketOptions) -> None:
        self.cluster, group, clock = cluster, options.group, cluster.pool.clock
        check_group(group, cluster.directory.namespace, GROUP_BYTES_MAX)
        self.subscriptions = Subscriptions(group, options.topics, options.subscription(), broadcast=options.broadcast)
        self.client = cluster.client(ClientSettings(frame_bytes_max=FRAME_BYTES_MAX, clock=clock))
        self.client.when_ended(self._link_ended)
        consumer_id = options.consumer_id or f"{own_ip()}@{os.getpid()}-{uuid.uuid4().hex[:12]}"
        within_s = min(OFFSETS_S, cluster.pool.timeouts.all_tries_s)
        self._offsets = Offsets(cluster.pool, cluster.directory, _NO_RETRIES, group, within_s)
        state: ConsumerState[RocketDelivery, Pull, QueueAnswer] = ConsumerState(
            retry_max_s=options.retry_max_s, max_attempts=options.max_attempts, dedupe=options.dedupe
        )
        member = Member(
            group=group,
            client_id=consumer_id,
            subscriptions=[(topic, self.subscriptions.of(topic)) for topic in self.subscriptions.all_topics],
            broadcast=options.broadcast,
            begins_at=_begins_at(options.start),
        )
        self._requests = GroupRequests(self.client, cluster.directory, member)
        self._membership = self._member(consumer_id, options)
        self.parked = RocketParkedMessages(options.parking or cluster.state_folder / PARKED_FILE, group)
        self._at_brokers = at_brokers = BrokerOffsets(self._offsets, clock, verify_zero=options.start != "earliest")
        coordinator = MemberCoordinator(
            state,
            self._membership,
            at_brokers if options.offsets is None else bounded(options.offsets),
            RocketStarts(self._offsets, group, options.start, at_brokers if options.offsets is None else None),
            self._make,
            _coordinator_settings(options),
            clock,
        )
        super().__init__(options, Parts(consumer_id, state, coordinator, self.parked, clock))
        self._membership.when_brokers_are_away(at_brokers.note_away)
        self._requests.when_offsets_are_set(self._set_offsets)

    def _member(self, consumer_id: str, options: RocketOptions) -> RocketMembership:
        cluster = self.cluster
        settings = MemberSettings(options.ordered, options.broadcast, options.consumer_id is not None)
        return RocketMembership(
            *(cluster.directory, cluster.pool, self.client, self._requests, consumer_id, self.subscriptions, settings),
            clock=cluster.pool.clock,
        )

    def fetching(self) -> PullThreads:
        directory = self.cluster.directory
        return PullThreads(self.state, directory, self.client, self.group, self.subscriptions, self.clock)

    def _link_ended(self, address: Address) -> None:
        self._membership.link_ended(address)

    def _set_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue at the offsets that an administrator has set, in queues of this consumer; forget the positions in
        others, which it may get later.
        """
        with self.state.lock:
            mine = offsets.keys() & self.state.partitions.keys()
            for where in mine:
                self.state.partitions[where].seek(offsets[where])
            self.state.notify()
        self._at_brokers.forget(offsets)
        self.coordinator.forget(offsets.keys() - mine)
        _LOG.info("group %s: an administrator has set the offsets of %d queues", self.group, len(mine))
        self.coordinator.save(mine)

    def _make(
        self, where: TopicPartition, start: GroupOffset, generation: int, saved: GroupOffset | None
    ) -> OwnedQueue:
        subscription = self.subscriptions.of(where.topic)
        settings = self.options.queue_settings(subscription, self.cluster.directory.namespace)
        return OwnedQueue(where, start, generation, settings, self.state, saved)

    def _send_away(self, delivery: RocketDelivery) -> None:
        if self.options.on_reject == SEND_BACK:
            self._send_back(delivery)
        else:
            assert self.options.reject_topic is not None
            producer = RocketProducer(self.cluster.directory, self.cluster.pool)
            producer.send_many(self.options.reject_topic, [delivery.copy()])

    def _send_back(self, delivery: RocketDelivery) -> None:
        self._requests.send_back(
            delivery.where,
            delivery.log_offset,
            message_id=delivery.message_id,
            topic=delivery.topic,
            delay_level=self.options.delay_level,
            reconsume_max=self.options.reconsume_max,
        )

    def _ends(self) -> Mapping[TopicPartition, tuple[int, int]]:
        ranges, _ = self._offsets.ranges_now(self.positions())
        return {where: (found.start, found.end) for where, found in ranges.items()}


def broadcast(options: RocketOptions, cluster: RocketCluster) -> RocketOptions:
    """Return the options of a consumer that reads all queues and stores its offsets on this machine.

    Brokers do not redeliver to it: rejected messages are parked, unless the options say otherwise.
    """
    offsets = options.offsets or FileOffsets(cluster.state_folder / "broadcast-offsets.json")
    on_reject = "park" if options.on_reject == SEND_BACK else options.on_reject
    return replace(options, offsets=offsets, on_reject=on_reject, broadcast=True)


def _begins_at(start: object) -> BeginsAt:
    """Return the start of the group in the form that heartbeats report."""
    match start:
        case "latest":
            return "latest"
        case "earliest":
            return "earliest"
    return "time"


def _coordinator_settings(options: RocketOptions) -> CoordinatorSettings:
    return CoordinatorSettings(
        strategy=options.strategy,
        save_s=options.save_s,
        drain_s=options.drain_s,
        id_wait_s=ID_WAIT_S,
        callbacks=options.on_revoked is not None,
        order=lambda queue: queue,
    )
