"""Responses of a name server: routes, clusters, lists of topics, key-value pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.wire_types import I32, I64

READABLE: Final = 4
"""Bit of a ``perm``: the queues can be read."""
WRITABLE: Final = 2
"""Bit of a ``perm``: messages can be put."""
INHERITED: Final = 1
"""Bit of a ``perm``: the topic is a template, from which others are made."""

MASTER_ID: Final = 0
"""Key of the master in ``broker_addrs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData(JsonBody):
    """Numbers of a topic's queues at a broker: ids below ``read_queue_nums`` can be read; likewise for writing."""

    broker_name: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_sys_flag: I32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData(JsonBody):
    """The addresses (``host:port``) of the brokers of one name: the master's under 0, slaves' under other numbers."""

    broker_name: str
    cluster: str = ""
    broker_addrs: dict[I64, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData(JsonBody):
    """The brokers of a topic. A static topic (5.x) has a mapping of its queues."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo(JsonBody):
    """All brokers by name, and the names of the brokers of each cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(JsonBody):
    """Names of topics; the list of system topics includes the address of a broker."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable(JsonBody):
    """A map of texts: a namespace of the name server, figures of a running broker."""

    table: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConfig(JsonBody):
    """All namespaces: the file in which a name server keeps them."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)
