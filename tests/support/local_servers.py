"""Brokers and name servers, in threads of the test's process, each with an event loop, or in processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fix_broker import RunningBroker, StartBroker, system_section, wait_until, write_ini
from metaq_broker.app import Broker
from metaq_broker.clock import ManualClock
from metaq_broker.operate.config.configuration import parse
from metaq_broker.rocketmq.nameserver.app import NameServer
from metaq_broker.rocketmq.nameserver.config import load
from waiting import until

from metaq import RocketMQ
from metaq.backends.rocketmq.groups.group_requests import GroupRequests, Member
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.testing.ports import free_port

DEADLINE_S = 60.0

T = TypeVar("T")


class LoopThread:
    """Runs from the start until ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; return what it returned."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def broker_thread(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> Iterator[Address]:
    """Run a broker with its messages in ``folder`` as long as the block lasts; yield its address.

    ``keys`` are of its system section, ``rest`` stands behind that.
    """
    text = system_section(**{"dataPath": folder, "hostName": "127.0.0.1", "bindAddress": "127.0.0.1"} | keys)

    async def made() -> Broker:
        return Broker(parse(f"{text}{rest}".encode(), "test.ini"), None, lambda: None)

    with closing(LoopThread()) as loop:
        broker = loop.run(made())
        try:
            loop.run(broker.open())
            loop.run(broker.serve())
            yield Address("127.0.0.1", broker.port)
        finally:
            loop.run(broker.close())


class RunningNameServer(LoopThread):
    """``server`` runs in a thread, with a clock that tests move; ``do`` runs something there."""

    def __init__(self, folder: Path, text: str) -> None:
        self.clock = ManualClock()
        folder.mkdir(exist_ok=True)
        file = folder / "namesrv.properties"
        file.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n{text}")
        config, self.warnings = load(file.read_text(), str(file))
        super().__init__()
        self.server = self.do(lambda: NameServer(config, file, clock=self.clock))

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.server.port)

    def do(self, work: Callable[[], T]) -> T:
        """Call something on the server's loop; return what it returned."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        self.run(until(condition, deadline_s=timeout_s))


@contextmanager
def running_name_server(folder: Path, text: str = "") -> Iterator[RunningNameServer]:
    """A name server that keeps its files in ``folder``; ``text`` is added to its configuration."""
    with closing(RunningNameServer(folder, text)) as running:
        running.run(running.server.start())
        try:
            yield running
        finally:
            running.run(running.server.stop())


NAMES = ("broker-a", "broker-b")


class BrokerPair:
    """They keep their addresses and messages when they are killed and started again.

    Each has two queues of ``orders`` from the start: a name server shows a broker by its topics. ``more`` are keys of
    their section for RocketMQ, by broker name.
    """

    def __init__(
        self, start: StartBroker, folder: Path, name_server: Address, more: Mapping[str, str] | None = None
    ) -> None:
        self._start, self._folder = start, folder
        self.name_server, self._more = str(name_server), more or {}
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
            f"{self._more.get(name, '')}\n"
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
