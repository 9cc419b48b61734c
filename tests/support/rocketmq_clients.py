"""Clients of scripted RocketMQ clusters: sessions to a broker and its slave, producers, members of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fix_broker import wait_until

from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_reader import PullSettings
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Partition, TopicPartition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage
from metaq.testing.manual_clock import ManualClock
from metaq.testing.rocketmq_server import ScriptedBroker, ScriptedCluster


class ScriptedBench:
    """``broker-a`` with a slave, and what a client needs to talk to it."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster, self.clock = cluster, ManualClock()
        self.pool = SessionPool(Timeouts(2.0, 2.0), clock=self.clock)
        self.directory = NameServerDirectory(cluster.name_servers, self.pool)

    @property
    def broker(self) -> ScriptedBroker:
        """The master."""
        return self.cluster.broker()


class PullBench(ScriptedBench):
    """With ``messages`` in the only queue of ``orders``, of master and slave."""

    def __init__(self, cluster: ScriptedCluster, messages: Sequence[bytes]) -> None:
        super().__init__(cluster)
        self.settings = PullSettings(policy=RetryPolicy(3, 0.1))
        cluster.create_topic("orders", 1, broker="broker-a")
        cluster.append("orders", Partition("broker-a", 0), messages)


B = TypeVar("B", bound=ScriptedBench)


@contextmanager
def on_scripted_cluster(kind: Callable[[ScriptedCluster], B]) -> Iterator[B]:
    with ScriptedCluster({"broker-a": (1,)}) as cluster:
        bench = kind(cluster)
        yield bench
        bench.pool.close()


A0, A1, B0 = Partition("broker-a", 0), Partition("broker-a", 1), Partition("broker-b", 0)
SENDS = (SendMessage.CODE, SEND_BATCH_MESSAGE)


class Setting:
    """Two brokers with the topic "orders", and a client of them."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        cluster.create_topic("orders", queues=2, broker="broker-a")
        cluster.create_topic("orders", queues=1, broker="broker-b")
        self.mq = self._client(60.0)

    def _client(self, request_s: float) -> RocketMQ:
        return RocketMQ(";".join(map(str, self.cluster.name_servers)), timeouts=Timeouts(60.0, request_s))

    def wait_for_answers(self, seconds: float) -> None:
        """Have the client wait no longer than this, where a broker does not answer in time."""
        self.mq.close()
        self.mq = self._client(seconds)

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


class Member:
    """A consumer of either kind, with the names of the sync one."""

    def __init__(self, consumer: Any, ask: Callable[[Any], Any] = lambda found: found) -> None:
        self.consumer, self._ask = consumer, ask

    def fetch(self, timeout: float = 0.2) -> list[RocketDelivery]:
        found: list[RocketDelivery] = self._ask(self.consumer.fetch(timeout=timeout))
        return found

    def commit(self) -> None:
        self._ask(self.consumer.commit())

    def read(self, count: int) -> list[str]:
        found: list[str] = []
        wait_until(
            lambda: bool(found.extend(one.data.decode() for one in self.fetch())) or len(found) >= count,
            f"{count} messages are read",
        )
        return sorted(found)

    def queues(self, topic: str = "orders") -> list[TopicPartition]:
        return [where for where in self.consumer.assignment if where.topic == topic]


Open = Callable[..., Member]
Make = Callable[..., Open]
