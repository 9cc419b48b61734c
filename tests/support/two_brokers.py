"""A scripted cluster of two brokers, for tests of producers."""

from __future__ import annotations

from metaq.client.rocketmq.client import RocketMQ
from metaq.model import Partition
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.codes import RequestCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.testing.rocketmq_server import ScriptedBroker, ScriptedCluster

A0, A1, B0 = Partition("broker-a", 0), Partition("broker-a", 1), Partition("broker-b", 0)
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class Setting:
    """Two brokers with the topic "orders"; answers to sends wait while ``gate`` is closed."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        cluster.create_topic("orders", queues=2, broker="broker-a")
        cluster.create_topic("orders", queues=1, broker="broker-b")
        self.mq = RocketMQ(";".join(map(str, cluster.name_servers)), timeouts=Timeouts(2.0, 1.0))

    @property
    def brokers(self) -> list[ScriptedBroker]:
        return [self.cluster.broker(name) for name in ("broker-a", "broker-b")]

    def sends(self, broker: str = "broker-a") -> list[RemotingCommand]:
        return [one for one in self.cluster.broker(broker).requests if one.code in SENDS]

    def slow(self, seconds: float) -> None:
        """Have answers to sends take so long."""
        for broker in self.brokers:
            broker.latency_s = lambda command: seconds if command.code in SENDS else 0.0

    def stored(self) -> dict[Partition, list[bytes]]:
        found: dict[Partition, list[bytes]] = {}
        for message in self.mq.browse("orders"):
            found.setdefault(message.partition, []).append(message.data)
        return found
