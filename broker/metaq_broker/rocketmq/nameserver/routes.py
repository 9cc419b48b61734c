"""The route table: registrations of live brokers. No socket, no clock.

::

    clusters   cluster -> names of brokers
    brokers    broker name -> cluster, id -> address          id 0 is the master, others its slaves
    topics     topic -> broker name -> queues and permission
    live       (cluster, address) -> when it registered last, its data version, its connection

A broker is alive until it unregisters, its connection ends, or it was silent for its timeout; then its address is
removed, and with the last address of its name its queues. Everything is in memory only: brokers register again within
30 s. ``owner`` is the caller's identifier of a connection.

Source: RocketMQ's name server document; recordings of RocketMQ 4.9.7 in tests/golden/rocketmq/ns_routes.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies.registration import DataVersion, TopicConfigBody
from metaq.protocols.remoting.bodies.routes import (
    MASTER_ID,
    READABLE,
    WRITABLE,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)

BROKER_TIMEOUT_MS: Final = 120_000
"""Default time after which a silent broker is removed."""

NAME_CHARACTERS_MAX: Final = 255
"""Of the names of topics, brokers and clusters, and of addresses."""

FILTER_SERVERS_MAX: Final = 16
"""Of one broker."""

UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2
"""Bits of ``topic_sys_flag``."""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """``brokers_max``: addresses. ``queues_max``: rows, one for each topic of each broker name."""

    brokers_max: int = 10_000
    queues_max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registering broker. ``broker_id`` 0 is a master; ``timeout_ms``: how long it may be silent.

    ``filter_servers`` are texts that are sent with routes.
    """

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str = ""
    timeout_ms: int = BROKER_TIMEOUT_MS
    filter_servers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = {"clusterName": self.cluster, "brokerName": self.name, "brokerAddr": self.address}
        for field_name, value in {**named, "haServerAddr": self.ha_address}.items():
            if len(value) > NAME_CHARACTERS_MAX or (not value and field_name in named):
                raise FieldError("REGISTER_BROKER", field_name, value, f"1 to {NAME_CHARACTERS_MAX} characters")
        if self.broker_id < 0:
            raise FieldError("REGISTER_BROKER", "brokerId", self.broker_id, "0 (master) or more")
        if self.timeout_ms < 1:
            raise FieldError("REGISTER_BROKER", "heartbeatTimeoutMillis", self.timeout_ms, "1 or more")
        servers = self.filter_servers
        if len(servers) > FILTER_SERVERS_MAX or any(len(each) > NAME_CHARACTERS_MAX for each in servers):
            allowed = f"at most {FILTER_SERVERS_MAX}, of at most {NAME_CHARACTERS_MAX} characters each"
            raise FieldError("REGISTER_BROKER", "filterServerList", f"{len(servers)} texts", allowed)


@dataclass(slots=True)
class Live:
    """A broker that is alive."""

    registration: BrokerRegistration
    data_version: DataVersion
    owner: object
    seen_ms: int


@dataclass(slots=True)
class _Broker:
    """The brokers of one name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)


class RouteTable:
    """The route table. ``now_ms`` is a clock that never goes back."""

    def __init__(self, now_ms: Callable[[], int], limits: RouteLimits | None = None) -> None:
        self._now_ms = now_ms
        self._limits = RouteLimits() if limits is None else limits
        self._clusters: dict[str, set[str]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}  # broker name -> topics
        self._live: dict[tuple[str, str], Live] = {}
        self._owned: dict[object, set[tuple[str, str]]] = {}
        self._queue_rows = 0
        self._reserved: dict[str, object] = {}

    def reserve(self, name: str, owner: object) -> None:
        """Allow only ``owner`` to register, replace or unregister the master of this name."""
        self._reserved[name] = owner

    # ---- registrations

    def register(
        self, who: BrokerRegistration, topics: Mapping[str, TopicConfigBody], version: DataVersion, owner: object
    ) -> Live | None:
        """Register a broker; return its master if it is a slave whose master is alive.

        A master's topics are stored when it is new or its data version differs from the last; unknown topics are stored
        with any version, as in RocketMQ 5. Omitted topics are kept. A slave's topics are ignored.

        Raises:
            FieldError: The limit of brokers or topics would be exceeded; a broker of this name is in another cluster;
                or name or address are reserved. Nothing is changed then.
        """
        key, known = (who.cluster, who.address), self._live.get((who.cluster, who.address))
        self._check_reserved(who, known, owner)
        self._check(who, topics, known)
        if known is not None and known.registration.name != who.name:
            self._forget_address(known.registration)  # it could not be removed after this address has the new name
        broker = self._brokers.setdefault(who.name, _Broker(who.cluster))
        self._clusters.setdefault(who.cluster, set()).add(who.name)
        for other in [each for each, address in broker.addresses.items() if address == who.address]:
            if other != who.broker_id:  # a slave that became the master, or the other way round
                del broker.addresses[other]
        replaced = broker.addresses.get(who.broker_id)
        broker.addresses[who.broker_id] = who.address
        changed = known is None or known.data_version != version or replaced is None
        if who.broker_id == MASTER_ID:
            there = self._topics_of.get(who.name, set())
            for topic in [each for each in topics.values() if changed or each.topic_name not in there]:
                self._put_queues(who.name, topic)
        self._disown(key)
        self._live[key] = Live(who, version, owner, self._now_ms())
        self._owned.setdefault(owner, set()).add(key)
        if who.broker_id == MASTER_ID or (master := broker.addresses.get(MASTER_ID)) is None:
            return None
        return self._live.get((who.cluster, master))

    def unregister(self, who: BrokerRegistration, owner: object = None) -> None:
        """Remove a broker, unless it is reserved or not registered with this name, id and address."""
        live = self._live.get(key := (who.cluster, who.address))
        if live is not None and (live.registration.name, live.registration.broker_id) == (who.name, who.broker_id):
            if self._is_reserved(who, owner):
                return
            self._disown(key)
            del self._live[key]
            self._forget_address(who)

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return a broker's last data version, ``None`` if it is unknown."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def touch(self, cluster: str, address: str) -> None:
        """A broker is alive."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.seen_ms = self._now_ms()

    def connection_lost(self, owner: object) -> list[BrokerRegistration]:
        """Forget the brokers that registered last on a connection; return them."""
        lost = [self._live.pop(key).registration for key in self._owned.pop(owner, ())]
        for who in lost:
            self._forget_address(who)
        return lost

    def expire(self) -> list[Live]:
        """Forget the brokers that were silent for too long; return them."""
        now = self._now_ms()
        silent = [live for live in self._live.values() if live.seen_ms + live.registration.timeout_ms < now]
        for live in silent:
            self.unregister(live.registration, live.owner)
        return silent

    # ---- queries

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers of a topic and their queues, ``None`` if no broker has it."""
        queues = self._topics.get(topic)
        names = [name for name in queues or () if name in self._brokers]
        if not queues or not names:
            return None
        brokers = tuple(self._broker_data(name) for name in names)
        return TopicRouteData(
            queue_datas=tuple(queues[name] for name in names),
            broker_datas=brokers,
            filter_server_table=self._filter_servers(brokers),
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._brokers},
            cluster_addr_table={cluster: tuple(sorted(names)) for cluster, names in self._clusters.items()},
        )

    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        """Return the names of the topics that a broker of the cluster has."""
        names = sorted(self._clusters.get(cluster, ()))
        return tuple(dict.fromkeys(topic for name in names for topic in sorted(self._topics_of.get(name, ()))))

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> tuple[str, ...]:
        """Return the topics whose first broker set all bits of ``wanted`` and none of ``unwanted``."""
        return tuple(
            topic
            for topic, queues in self._topics.items()
            if (flags := next(iter(queues.values())).topic_sys_flag) & wanted == wanted and not flags & unwanted
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of clusters and brokers, which are topics, too."""
        return (*self._clusters, *self._brokers)

    def any_address(self) -> str | None:
        """Return the address of some broker, ``None`` without any."""
        return next((address for broker in self._brokers.values() for address in broker.addresses.values()), None)

    def remove_write_permission(self, name: str) -> int:
        """Remove the write permission of a broker's topics until it registers a change; return their number."""
        return self._set_permission(name, lambda perm: perm & ~WRITABLE)

    def add_write_permission(self, name: str) -> int:
        """Allow reading and writing of all topics of a broker; return their number."""
        return self._set_permission(name, lambda _: READABLE | WRITABLE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues at the brokers of a cluster."""
        for name in list(self._topics.get(topic, ())):
            if cluster is None or name in self._clusters.get(cluster, ()):
                self._remove_queues(name, topic)

    def topics_of_broker(self, name: str) -> set[str]:
        return set(self._topics_of.get(name, ()))

    def delete_topic_of(self, name: str, topic: str) -> None:
        """Remove a topic's queues at the brokers of one name, if there are any."""
        if topic in self._topics_of.get(name, ()):
            self._remove_queues(name, topic)

    def address_of(self, name: str, broker_id: int) -> str | None:
        """Return the address of a broker, ``None`` if it is not known."""
        broker = self._brokers.get(name)
        return None if broker is None else broker.addresses.get(broker_id)

    @property
    def broker_count(self) -> int:
        return len(self._live)

    # ---- the tables

    def _is_reserved(self, who: BrokerRegistration, owner: object) -> bool:
        return who.broker_id == MASTER_ID and self._reserved.get(who.name, owner) is not owner

    def _check_reserved(self, who: BrokerRegistration, known: Live | None, owner: object) -> None:
        if self._is_reserved(who, owner):
            raise FieldError("REGISTER_BROKER", "brokerName", who.name, "another: the broker of this port has it")
        if known is not None and self._is_reserved(known.registration, owner):
            raise FieldError("REGISTER_BROKER", "brokerAddr", who.address, "another: the broker of this port has it")

    def _check(self, who: BrokerRegistration, topics: Mapping[str, TopicConfigBody], known: Live | None) -> None:
        if known is None and len(self._live) >= self._limits.brokers_max:
            raise FieldError("REGISTER_BROKER", "brokerAddr", who.address, f"one of {self._limits.brokers_max} brokers")
        broker = self._brokers.get(who.name)
        if broker is not None and broker.cluster != who.cluster:
            allowed = f"{broker.cluster!r}, where the other brokers of this name are"
            raise FieldError("REGISTER_BROKER", "clusterName", who.cluster, allowed)
        known_topics = self._topics_of.get(who.name, set())
        added = sum(topic.topic_name not in known_topics for topic in topics.values())
        if self._queue_rows + added > self._limits.queues_max:
            allowed = f"at most {self._limits.queues_max} of all brokers together"
            raise FieldError("REGISTER_BROKER", "topics", f"{self._queue_rows + added}", allowed)
        for topic in topics.values():
            if not 1 <= len(topic.topic_name) <= NAME_CHARACTERS_MAX:
                allowed = f"1 to {NAME_CHARACTERS_MAX} characters"
                raise FieldError("REGISTER_BROKER", "topicName", topic.topic_name, allowed)

    def _put_queues(self, name: str, topic: TopicConfigBody) -> None:
        queues = self._topics.setdefault(topic.topic_name, {})
        self._queue_rows += name not in queues
        self._topics_of.setdefault(name, set()).add(topic.topic_name)
        queues[name] = QueueData(
            broker_name=name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )

    def _remove_queues(self, name: str, topic: str) -> None:
        queues = self._topics[topic]
        del queues[name]
        self._queue_rows -= 1
        if not queues:
            del self._topics[topic]
        self._topics_of[name].discard(topic)

    def _set_permission(self, name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(name, set())
        for topic in topics:
            queues = self._topics[topic]
            queues[name] = replace(queues[name], perm=change(queues[name].perm))
        return len(topics)

    def _forget_address(self, who: BrokerRegistration) -> None:
        broker = self._brokers.get(who.name)
        if broker is None or broker.addresses.get(who.broker_id) != who.address:
            return
        del broker.addresses[who.broker_id]
        if broker.addresses:
            return
        del self._brokers[who.name]
        names = self._clusters[broker.cluster]
        names.discard(who.name)
        if not names:
            del self._clusters[broker.cluster]
        for topic in list(self._topics_of.get(who.name, ())):
            self._remove_queues(who.name, topic)
        self._topics_of.pop(who.name, None)

    def _disown(self, key: tuple[str, str]) -> None:
        live = self._live.get(key)
        if live is None:
            return
        owned = self._owned.get(live.owner)
        if owned is not None:
            owned.discard(key)
            if not owned:
                del self._owned[live.owner]

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = dict(sorted(broker.addresses.items()))
        return BrokerData(
            broker_name=name,
            cluster=broker.cluster,
            broker_addrs=addresses,
            enable_acting_master=False,  # clients written in Rust require the field, which 5.x always sends
        )

    def _filter_servers(self, brokers: Iterable[BrokerData]) -> dict[str, tuple[str, ...]]:
        places = ((broker.cluster, address) for broker in brokers for address in broker.broker_addrs.values())
        registrations = (self._live.get(place) for place in places)
        found = (live.registration for live in registrations if live is not None)
        return {who.address: who.filter_servers for who in found if who.filter_servers}

    def __iter__(self) -> Iterator[Live]:
        """Iterate over the brokers that are alive."""
        return iter(self._live.values())
