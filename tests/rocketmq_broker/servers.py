"""The servers that the clients of these tests talk to: this project's broker, and RocketMQ as the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import fix_broker

from peers.rocketmq.ask import Answer, ask
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.servers import Cluster

CHECKS: Final = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 1000}
"""Many checks: a client may need half a minute until the broker knows it by its heartbeat."""

UPDATE_GROUP, QUERY_OFFSET = 200, 14


class RealServer:
    """RocketMQ's own name server and broker. It keeps its port and its messages over ``restart``."""

    def __init__(self, cluster: Cluster) -> None:
        self.create_topic: Final = cluster.create_topic
        cluster.start_name_server()
        self._broker = cluster.start_broker("broker-a", **CHECKS)
        self.name_servers: Final = cluster.name_servers
        self.broker_address: Final = self._broker.address

    def restart(self) -> None:
        self._broker.stop()
        self._broker.start()


class OurServer(BundledServer):
    """This project's broker: name server and broker on one port, MetaQ on another."""

    @property
    def name_servers(self) -> str:
        return self.address

    @property
    def broker_address(self) -> str:
        return self.address

    def restart(self) -> None:
        self.stop()
        self.start()


Server = RealServer | OurServer


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


wait_until = fix_broker.wait_until
