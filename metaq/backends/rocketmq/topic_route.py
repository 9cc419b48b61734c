"""What a name server answers, checked: routes, topics, brokers. What it cannot mean is refused by name.

A broker is a name with addresses by broker id: 0 is the master, others are its slaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused, RouteUnusable, TopicListMissing
from metaq.backends.rocketmq.session import Session
from metaq.errors import FieldError, MetaqError
from metaq.model import Address, Partition
from metaq.protocols.remoting.announcement import MetaQBroker, announced
from metaq.protocols.remoting.bodies.routes import (
    MASTER_ID,
    READABLE,
    WRITABLE,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.routes import (
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
)

QUEUE_COUNT_MAX: Final = 65536
"""Above any number of queues that a broker has of a topic; more in a route cannot be meant."""

Addresses = Mapping[int, Address]
"""Where a broker is: address by broker id."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many queues of a topic a broker has for readers and for writers; 0 where it does not permit either."""

    readable: int
    writable: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Which brokers have queues of a topic, and where those brokers are; ``bundled``: which are this project's."""

    counts: Mapping[str, QueueCounts]
    brokers: Mapping[str, Addresses]
    bundled: Mapping[Address, MetaQBroker] = field(default_factory=dict)

    def readable(self) -> list[Partition]:
        """The queues that may be read, sorted."""
        return [Partition(name, id_) for name, count in sorted(self.counts.items()) for id_ in range(count.readable)]

    def writable(self) -> list[Partition]:
        """The queues that may be written to, where the broker has a master, sorted."""
        return [
            Partition(name, id_)
            for name, count in sorted(self.counts.items())
            if MASTER_ID in self.brokers.get(name, {})
            for id_ in range(count.writable)
        ]


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """The clusters that a name server knows, and where their brokers are; none where it does not report it."""

    clusters: Sequence[str]
    brokers: Mapping[str, Addresses]


def ask_route(session: Session, topic: str) -> TopicRoute | None:
    """Ask a name server for the route of ``topic``, its full name; ``None`` if it does not know the topic.

    Raises:
        RouteUnusable: What it says cannot be.
        RequestRefused, ConnectionFailed, DeadlineExceeded, ProtocolError: It does not say.
    """
    what = f"the route of topic {topic}"
    command = to_request(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True))
    response = session.call(command, what)
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    body = session.accepted(response, command, what).body
    try:
        return check_route(TopicRouteData.from_json(body))
    except (ValueError, FieldError) as error:
        raise RouteUnusable(session.address, topic, str(error)) from None


def ask_topics(session: Session) -> list[str]:
    """Ask a name server for the names of all topics.

    Raises:
        TopicListMissing: It has no such list, as a proxy has none.
        RouteUnusable: What it says cannot be.
        RequestRefused, ConnectionFailed, DeadlineExceeded, ProtocolError: It does not say.
    """
    command = to_request(GetAllTopicListFromNameserver())
    response = session.call(command, "the list of topics")
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise TopicListMissing(session.address, response.remark or "request not supported")
    body = session.accepted(response, command, "the list of topics").body
    try:
        return list(TopicList.from_json(body).topic_list)
    except FieldError as error:
        raise RouteUnusable(session.address, "*", f"no list of topics: {error}") from None


def ask_brokers(session: Session) -> KnownBrokers:
    """Ask a name server for the brokers of all clusters.

    Raises:
        RouteUnusable: What it says cannot be.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It does not say.
    """
    response = session.call(to_request(GetBrokerClusterInfo()), "the list of clusters")
    if response.code != ResponseCode.SUCCESS:
        return KnownBrokers((), {})
    try:
        table = ClusterInfo.from_json(response.body)
        return KnownBrokers(list(table.cluster_addr_table), check_brokers(table.broker_addr_table.values()))
    except (ValueError, FieldError) as error:
        raise RouteUnusable(session.address, "*", f"no list of clusters: {error}") from None


def not_ready(error: MetaqError) -> bool:
    """Whether a name server has just started, and waits for brokers to register."""
    return isinstance(error, RequestRefused) and error.code == ResponseCode.SYSTEM_ERROR and "not ready" in error.text


def check_route(data: TopicRouteData) -> TopicRoute:
    """Return a name server's answer as a route.

    Raises:
        ValueError: It cannot be right, or is of a static topic; the text says what.
    """
    if data.topic_queue_mapping_by_broker:
        raise ValueError("it is a static topic, whose queues move between brokers; those are not supported")
    brokers = check_brokers(data.broker_datas)
    found = {address: announced(texts) for address, texts in data.filter_server_table.items()}
    addresses = {address for each in brokers.values() for address in each.values()}
    bundled = {each: this for each in addresses if (this := found.get(str(each))) is not None}
    return TopicRoute({row.broker_name: _counts(row) for row in data.queue_datas}, brokers, bundled)


def check_brokers(rows: Iterable[BrokerData]) -> dict[str, Addresses]:
    """Return where brokers are, by name. Raises as ``check_route``."""
    return {
        row.broker_name: {id_: _address(row.broker_name, id_, text) for id_, text in row.broker_addrs.items()}
        for row in rows
    }


def _counts(row: QueueData) -> QueueCounts:
    for name, count in (("readQueueNums", row.read_queue_nums), ("writeQueueNums", row.write_queue_nums)):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise ValueError(f"{name} of broker {row.broker_name!r} is {count}, expected 0..{QUEUE_COUNT_MAX}")
    return QueueCounts(
        row.read_queue_nums if row.perm & READABLE else 0, row.write_queue_nums if row.perm & WRITABLE else 0
    )


def _address(broker_name: str, broker_id: int, text: str) -> Address:
    if broker_id < 0:
        raise ValueError(f"broker {broker_name!r} has an address for the id {broker_id}, expected 0 or more")
    try:
        return Address.parse(text)
    except ValueError:
        raise ValueError(f"broker {broker_name!r} has the address {text[:100]!r}, expected host:port") from None
