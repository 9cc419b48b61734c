"""A name server's answers, checked: routes, topics, brokers. Invalid data is reported by name.

A broker is a name with addresses by broker id: 0 is the master, others are its slaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.backends.rocketmq.errors import NotNameServer, RequestRefused, RouteUnusable, TopicListMissing
from metaq.backends.rocketmq.session import Session
from metaq.errors import FieldError, MetaqError
from metaq.formats.topic_names import TEMPLATE_TOPIC
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
"""Limit on the number of a topic's queues at one broker; a larger number in a route is an error."""

Addresses = Mapping[int, Address]
"""Addresses of a broker, by broker id."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Number of a topic's queues at a broker for readers and for writers; 0 without the permission."""

    readable: int
    writable: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers with queues of a topic, and their addresses; ``bundled``: the brokers of this project."""

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
    """The clusters that a name server knows, with the names of their brokers, and the brokers' addresses."""

    clusters: Mapping[str, Collection[str]]
    brokers: Mapping[str, Addresses]


def ask_route(session: Session, topic: str) -> TopicRoute | None:
    """Ask a name server for the route of ``topic`` (full name); ``None`` if it does not know the topic.

    Raises:
        RouteUnusable: The answer is not valid.
        NotNameServer: It is a broker.
        RequestRefused, ConnectionFailed, DeadlineExceeded, ProtocolError: The name server could not be asked, or
            refused.
    """
    what = f"the route of topic {topic}"
    command = to_request(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True))
    response = session.call(command, what)
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotNameServer(session.address)
    body = session.accepted(response, command, what).body
    try:
        return check_route(TopicRouteData.from_json(body))
    except (ValueError, FieldError) as error:
        raise RouteUnusable(session.address, topic, str(error)) from None


def ask_topics(session: Session) -> list[str]:
    """Ask a name server for the names of all topics.

    Raises:
        TopicListMissing: It has no such list (a proxy).
        NotNameServer: It is a broker.
        RouteUnusable: The answer is not valid.
        RequestRefused, ConnectionFailed, DeadlineExceeded, ProtocolError: The name server could not be asked, or
            refused.
    """
    command = to_request(GetAllTopicListFromNameserver())
    response = session.call(command, "the list of topics")
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        ask_route(session, TEMPLATE_TOPIC)  # a proxy knows routes, a broker does not
        raise TopicListMissing(session.address, response.remark or "request not supported")
    body = session.accepted(response, command, "the list of topics").body
    try:
        return list(TopicList.from_json(body).topic_list)
    except FieldError as error:
        raise RouteUnusable(session.address, "*", f"not a list of topics: {error}") from None


def ask_brokers(session: Session) -> KnownBrokers | None:
    """Ask a name server for the brokers of all clusters; ``None`` if it does not report them (a proxy).

    Raises:
        RouteUnusable: The answer is not valid.
        NotNameServer: It is a broker.
        RequestRefused, ConnectionFailed, DeadlineExceeded, ProtocolError: The name server could not be asked.
    """
    response = session.call(to_request(GetBrokerClusterInfo()), "the list of clusters")
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        ask_route(session, TEMPLATE_TOPIC)  # a proxy knows routes, a broker does not
    if response.code != ResponseCode.SUCCESS:
        return None
    try:
        table = ClusterInfo.from_json(response.body)
        return KnownBrokers(table.cluster_addr_table, check_brokers(table.broker_addr_table.values()))
    except (ValueError, FieldError) as error:
        raise RouteUnusable(session.address, "*", f"not a list of clusters: {error}") from None


def not_ready(error: MetaqError) -> bool:
    """Whether a name server has just started, and waits for brokers to register."""
    return isinstance(error, RequestRefused) and error.code == ResponseCode.SYSTEM_ERROR and "not ready" in error.text


def check_route(data: TopicRouteData) -> TopicRoute:
    """Return a name server's answer as a route.

    Raises:
        ValueError: It is not valid, or of a static topic; the error says what.
    """
    if data.topic_queue_mapping_by_broker:
        raise ValueError("it is a static topic, whose queues move between brokers; those are not supported")
    brokers = check_brokers(data.broker_datas)
    found = {address: announced(texts) for address, texts in data.filter_server_table.items()}
    addresses = {address for each in brokers.values() for address in each.values()}
    bundled = {each: this for each in addresses if (this := found.get(str(each))) is not None}
    return TopicRoute({row.broker_name: _counts(row) for row in data.queue_datas}, brokers, bundled)


def check_brokers(rows: Iterable[BrokerData]) -> dict[str, Addresses]:
    """Return broker name -> addresses. Raises as ``check_route``."""
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
