"""The servers that the clients of these tests talk to: this project's broker, and RocketMQ 4.9.7 as the reference."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from peers.rocketmq.ask import Answer, ask
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.servers import Cluster

CHECKS: Final = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 1000}
"""Many checks: a client may need half a minute until the broker knows it by its heartbeat."""

DEADLINE_S: Final = 30.0
UPDATE_GROUP, QUERY_OFFSET = 200, 14


class Server(Protocol):
    """A broker with its name server. It keeps its port and its messages over ``restart``."""

    @property
    def name(self) -> str:
        """``ours`` or the release."""

    @property
    def name_servers(self) -> str:
        """What clients are given."""

    @property
    def broker_address(self) -> str:
        """The broker's own, ``host:port``."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Make a topic and wait until it has a route."""

    def restart(self) -> None:
        """Stop it as an operator does, start it, and wait until it serves."""


class RealServer:
    """RocketMQ's own name server and broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.name = cluster.release.version
        cluster.start_name_server()
        self._broker = cluster.start_broker("broker-a", **CHECKS)

    @property
    def name_servers(self) -> str:
        """As ``Server``."""
        return self._cluster.name_servers

    @property
    def broker_address(self) -> str:
        """As ``Server``."""
        return self._broker.address

    def create_topic(self, topic: str, queues: int) -> None:
        """As ``Server``."""
        self._cluster.create_topic(topic, queues)

    def restart(self) -> None:
        """As ``Server``."""
        self._broker.stop()
        self._broker.start()


class OurServer:
    """This project's broker: name server and broker on one port, MetaQ on another."""

    name = "ours"

    def __init__(self, bundled: BundledServer) -> None:
        self.bundled = bundled

    @property
    def name_servers(self) -> str:
        """As ``Server``."""
        return self.bundled.address

    @property
    def broker_address(self) -> str:
        """As ``Server``."""
        return self.bundled.address

    def create_topic(self, topic: str, queues: int) -> None:
        """As ``Server``."""
        self.bundled.create_topic(topic, queues)

    def restart(self) -> None:
        """As ``Server``."""
        self.bundled.stop()
        self.bundled.start()


def limit_retries(server: Server, group: str, retries: int) -> Answer:
    """Make a consumer group whose messages are delivered ``retries`` times again before they are dead letters."""
    group_settings: Mapping[str, object] = {
        "groupName": group,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": retries,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    return ask(server.broker_address, UPDATE_GROUP, body=json.dumps(group_settings).encode()).checked()


def committed(server: Server, group: str, topic: str, queues: int) -> int:
    """How many messages are behind a group's positions, over all queues."""
    fields = {"consumerGroup": group, "topic": topic}
    answers = [ask(server.broker_address, QUERY_OFFSET, {**fields, "queueId": queue}) for queue in range(queues)]
    return sum(int(answer.fields["offset"]) for answer in answers if not answer.code)


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until it is true."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.05)
