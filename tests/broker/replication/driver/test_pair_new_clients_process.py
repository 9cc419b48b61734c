"""Clients that begin with ZooKeeper's address alone, while nobody of a pair is registered or its master is frozen.

Requests may take an hour, so a client that waits for an answer that never comes does not pass.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import PairProcesses, running_pair, stored

from metaq import AsyncMetaQ, MetaQ
from metaq.errors import MasterMissing, TopicNotFound
from metaq.net.transport import Timeouts
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import parse_sink_options, parse_source_options
from metaq_spark.options.table import Use

pytestmark = [pytest.mark.process, pytest.mark.slow]

PATIENT = Timeouts(5.0, 3600.0)


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return running_pair(tmp_path, zookeeper, start_broker, messages=10)


def produce(tree: str) -> None:
    with MetaQ(tree, timeouts=PATIENT) as mq:
        mq.producer().send("t", b"100")


def submit(tree: str) -> None:
    with MetaQ(tree, timeouts=PATIENT) as mq:
        mq.producer().submit("t", b"101").result()


def produce_in_loop(tree: str) -> None:
    async def send() -> None:
        async with AsyncMetaQ(tree, timeouts=PATIENT) as mq, mq.producer() as producer:
            await producer.send("t", b"102")

    asyncio.run(send())


def browse(tree: str) -> None:
    with MetaQ(tree, timeouts=PATIENT) as mq:
        assert {b"%d" % number for number in range(10)} <= {message.data for message in mq.browse("t")}


def browse_in_loop(tree: str) -> None:
    async def read() -> set[bytes]:
        async with AsyncMetaQ(tree, timeouts=PATIENT) as mq:
            return {message.data async for message in mq.browse("t")}

    assert {b"%d" % number for number in range(10)} <= asyncio.run(read())


def consume(tree: str) -> None:
    with MetaQ(tree, timeouts=PATIENT) as mq, mq.consumer("g", ["t"], start="earliest") as consumer:
        read: set[bytes] = set()
        while not {b"%d" % number for number in range(10)} <= read:
            read |= {message.data for message in consumer.fetch(1)}


def by_command(tree: str) -> None:
    command = [sys.executable, "-m", "metaq.cli.main", "produce", "-c", tree, "--timeout", "3600", "t"]
    assert subprocess.run(command, input=b"103\n", capture_output=True, check=False).returncode == 0


OPTIONS = {"requestTimeoutMs": "3600000", "retries": "0"}


def connector_source(tree: str) -> None:
    given = OPTIONS | {"subscribe": "t", "zookeeper": tree.removeprefix("zk://")}
    options = parse_source_options(given, Use.STREAM_READ)
    cluster = Cluster(options)
    cluster.require(options.selection, stored=False)
    assert len(cluster.available(options.selection)) == 2


def connector_sink(tree: str) -> None:
    options = parse_sink_options(OPTIONS | {"topic": "t", "zookeeper": tree.removeprefix("zk://")}, Use.STREAM_WRITE)
    assert len(Cluster(options).writable("t")) == 2


CLIENTS: list[Callable[[str], None]] = [
    *(produce, submit, produce_in_loop, by_command, browse, browse_in_loop, consume, connector_source, connector_sink)
]


def nobody_is_registered(pair: PairProcesses) -> bool:
    root = pair.zookeeper
    return root.client.exists(f"{root.root}/brokers/ids/3/master") is None


def test_clients_that_begin_while_nobody_is_registered_wait(pair: PairProcesses) -> None:
    tree = f"zk://{pair.zookeeper.option}"
    for member in pair.members:
        member.kill()
    wait_until(lambda: nobody_is_registered(pair), "the session of the master has ended")
    with MetaQ(tree, timeouts=Timeouts(5.0, 0.5)) as mq:
        with pytest.raises(MasterMissing, match=r"topic 't': no master of broker 3 \(127\.0\.0\.1:\d+ or 127"):
            mq.producer().send("t", b"x")
        with pytest.raises(TopicNotFound):
            mq.producer().send("nosuch", b"x")
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        waiting = {each.__name__: threads.submit(each, tree) for each in CLIENTS}
        for member in pair.members:
            member.start()
        for name, client in waiting.items():
            assert client.result() is None, name
    assert set(range(100, 104)) <= set(stored(pair))


@pytest.mark.long
def test_clients_that_begin_while_the_master_is_frozen_find_the_next_one(pair: PairProcesses) -> None:
    tree = f"zk://{pair.zookeeper.option}"
    frozen = pair.wait_in_sync()
    frozen.freeze()
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        waiting = {each.__name__: threads.submit(each, tree) for each in CLIENTS}
        for name, client in waiting.items():
            assert client.result() is None, name
    pair.wait_master(pair.other(frozen))
    assert set(range(100, 104)) <= set(stored(pair))
    frozen.thaw()
