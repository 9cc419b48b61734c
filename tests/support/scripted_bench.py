"""Sessions of a client to a scripted RocketMQ cluster of one broker and its slave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.net.transport import Timeouts
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


B = TypeVar("B", bound=ScriptedBench)


@contextmanager
def on_scripted_cluster(kind: Callable[[ScriptedCluster], B]) -> Iterator[B]:
    """A bench of this kind, as long as the block lasts."""
    with ScriptedCluster({"broker-a": (1,)}) as cluster:
        bench = kind(cluster)
        yield bench
        bench.pool.close()
