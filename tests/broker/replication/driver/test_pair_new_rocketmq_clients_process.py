"""RocketMQ clients that begin with a name server's address alone, while no broker is registered there or the master of
a pair is frozen.

Requests may take an hour, so a client that waits for an answer that never comes does not pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from fix_zookeeper import ZooKeeperRoot
from local_servers import running_name_server
from pair_processes import PairProcess, PairProcesses

from metaq.backends.rocketmq.pool import SessionPool
from metaq.client.rocketmq.async_client import AsyncRocketMQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import MasterMissing, TopicNotFound
from metaq.net.transport import Timeouts
from metaq.testing.ports import free_port
from metaq_spark.backends.rocketmq.cluster import Cluster
from metaq_spark.backends.rocketmq.options import parse_sink_options, parse_source_options
from metaq_spark.options.table import Use

pytestmark = [pytest.mark.process, pytest.mark.slow]

PATIENT = Timeouts(5.0, 3600.0)


class NamedPair(PairProcesses):
    """Both members register at ``name_server`` under one name; without it, they are name servers themselves."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperRoot, start: StartBroker, name_server: str = "") -> None:
        super().__init__(folder, zookeeper, start)
        self._ports = {"a": free_port(), "b": free_port()}
        self._registers = name_server
        self.name_server = name_server or ";".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def write(self, member: PairProcess) -> Path:
        keys = "brokerName=broker-a\nbrokerIP1=127.0.0.1\nvipPort=false\n"
        if self._registers:
            keys += f"namesrvAddr={self._registers}\n"
        topics = "[topic=t]\nnumPartitions=2\n[topic=u]\nnumPartitions=2\n"
        self.extra = f"{topics}[rocketmq]\nenabled=true\nport={self._ports[member.name]}\n{keys}"
        return super().write(member)

    def begin(self) -> None:
        self.start()
        with RocketMQ(self.name_server) as mq:
            producer = mq.producer()
            for number in range(10):
                producer.send("t", f"{number}")


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> Iterator[NamedPair]:
    with running_name_server(tmp_path) as names:
        found = NamedPair(tmp_path, zookeeper, start_broker, str(names.address))
        found.begin()
        yield found


@pytest.fixture
def served(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> NamedPair:
    """A pair whose members are the name servers."""
    found = NamedPair(tmp_path, zookeeper, start_broker)
    found.begin()
    return found


def produce(name_server: str) -> None:
    with RocketMQ(name_server, timeouts=PATIENT) as mq:
        mq.producer().send("t", "100")


def submit(name_server: str) -> None:
    with RocketMQ(name_server, timeouts=PATIENT) as mq:
        mq.producer().submit("t", "101").result()


def produce_in_loop(name_server: str) -> None:
    async def send() -> None:
        async with AsyncRocketMQ(name_server, timeouts=PATIENT) as mq:
            await mq.producer().send("t", "102")

    asyncio.run(send())


def browse(name_server: str) -> None:
    with RocketMQ(name_server, timeouts=PATIENT) as mq:
        assert {b"%d" % number for number in range(10)} <= {message.data for message in mq.browse("t")}


def consume(name_server: str) -> None:
    with RocketMQ(name_server, timeouts=PATIENT) as mq, mq.consumer("g", ["t"], start="earliest") as consumer:
        read: set[bytes] = set()
        while not {b"%d" % number for number in range(10)} <= read:
            read |= {message.data for message in consumer.fetch(1)}


OPTIONS = {"requestTimeoutMs": "3600000", "retries": "0"}


def connector_source(name_server: str) -> None:
    options = parse_source_options(OPTIONS | {"subscribe": "t", "nameServers": name_server}, Use.STREAM_READ)
    cluster = Cluster(options)
    cluster.require(options.selection)
    assert len(cluster.available(options.selection)) == 2


def connector_sink(name_server: str) -> None:
    options = parse_sink_options(OPTIONS | {"topic": "t", "nameServers": name_server}, Use.STREAM_WRITE)
    Cluster(options).require_writable("t")


CLIENTS: list[Callable[[str], None]] = [
    *(produce, submit, produce_in_loop, browse, consume, connector_source, connector_sink)
]


def is_registered(pair: NamedPair) -> bool:
    pool = SessionPool()
    found = NameServerDirectory(parse_name_servers(pair.name_server), pool).masters()
    pool.close()
    return bool(found)


def stored(pair: NamedPair) -> set[int]:
    with RocketMQ(pair.name_server) as mq:
        return {int(message.data) for message in mq.browse("t")}


def test_clients_that_begin_while_no_broker_is_registered_wait(pair: NamedPair) -> None:
    for member in pair.members:
        member.kill()
    wait_until(lambda: not is_registered(pair), "the name server has forgotten the master")
    with (
        RocketMQ(pair.name_server, timeouts=Timeouts(5.0, 0.5)) as mq,
        pytest.raises(MasterMissing, match=r"topic 't': no broker is registered at name server 127\.0\.0\.1:\d+ at"),
    ):
        mq.producer().send("t", "x")
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        waiting = {each.__name__: threads.submit(each, pair.name_server) for each in CLIENTS}
        for member in pair.members:
            member.start()
        for name, client in waiting.items():
            assert client.result() is None, name
    assert set(range(100, 103)) <= stored(pair)
    with RocketMQ(pair.name_server) as mq, pytest.raises(TopicNotFound, match="does not exist"):
        list(mq.browse("nosuch"))


@pytest.mark.long
def test_clients_that_begin_while_the_master_is_frozen_find_the_next_one(pair: NamedPair) -> None:
    frozen = pair.wait_in_sync()
    frozen.freeze()
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        waiting = {each.__name__: threads.submit(each, pair.name_server) for each in CLIENTS}
        for name, client in waiting.items():
            assert client.result() is None, name
    pair.wait_master(pair.other(frozen))
    assert set(range(100, 103)) <= stored(pair)
    frozen.thaw()


def test_a_frozen_master_that_is_a_name_server_is_no_obstacle(served: NamedPair) -> None:
    """Neither for clients that begin, nor for one that asks for another topic."""
    with RocketMQ(served.name_server, timeouts=PATIENT) as mq:
        producer = mq.producer()
        producer.send("t", "200")
        frozen = served.wait_in_sync()
        frozen.freeze()
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(produce, served.name_server), threads.submit(producer.send, "u", "1")]
            for client in waiting:
                client.result()
        served.wait_master(served.other(frozen))
        assert {100, 200} <= stored(served)
        assert [message.data for message in mq.browse("u")] == [b"1"]
        frozen.thaw()
