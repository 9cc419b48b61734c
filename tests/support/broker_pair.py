"""Two bundled brokers in processes of their own, ``broker-a`` and ``broker-b``, registered at one name server."""

from __future__ import annotations

from pathlib import Path

from fix_broker import RunningBroker, StartBroker, free_port, wait_until, write_ini

from metaq import RocketMQ
from metaq.backends.rocketmq.group_requests import GroupRequests, Member
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient

NAMES = ("broker-a", "broker-b")


class BrokerPair:
    """They keep their addresses and messages when they are killed and started again.

    Each has two queues of ``orders`` from the start: a name server shows a broker by its topics.
    """

    def __init__(self, start: StartBroker, folder: Path, name_server: Address) -> None:
        self._start, self._folder = start, folder
        self.name_server = str(name_server)
        self._ports = {name: (free_port(), free_port()) for name in NAMES}
        self._running: dict[str, RunningBroker] = {}
        for name in NAMES:
            self.start(name)
        self.wait_for(*NAMES)

    def start(self, name: str) -> None:
        """Start one, again if it was killed."""
        port, for_rocketmq = self._ports[name]
        rest = (
            f"[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n[rocketmq]\nenabled=true\nport={for_rocketmq}\n"
            f"brokerName={name}\nbrokerIP1=127.0.0.1\nnamesrvAddr={self.name_server}\n"
        )
        keys = {"brokerId": NAMES.index(name), "numPartitions": 2, "hostName": "127.0.0.1", "serverPort": port}
        self._running[name] = self._start("start", "-f", write_ini(self._folder / name, rest, **keys))

    def kill(self, name: str) -> None:
        """End one with SIGKILL; it is registered no more when this returns."""
        self._running[name].kill()
        self.wait_for(*(each for each in NAMES if each != name))

    def process_id(self, name: str) -> int:
        return self._running[name].process.pid

    def address(self, name: str) -> Address:
        return Address("127.0.0.1", self._ports[name][1])

    def wait_for(self, *names: str) -> None:
        """Wait until these are registered, and no others."""

        def shown() -> set[str]:
            with RocketMQ(self.name_server) as mq:
                return {queue.broker_name for queue in mq.cluster.partitions("orders")}

        wait_until(lambda: shown() == set(names), f"{names} are registered")

    def members_at(self, name: str, group: str) -> set[str]:
        """The ids of the members that one broker knows."""
        with RocketMQ(self.name_server) as mq, RemotingClient() as client:
            directory: NameServerDirectory = mq.consumers.directory
            asked = GroupRequests(client, directory, Member(group=group, client_id="test", subscriptions=[]))
            return set(asked.members(self.address(name)))
