"""Requests and their replies under a namespace, over TLS, from a child process, and at brokers that stop and hang."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until, write_ini
from fix_tls import Certificates
from forked import in_child
from local_servers import BrokerPair, running_name_server
from replies import LONG_S, replying
from waiting import in_loop, until

from metaq import AsyncRocketMQ, RocketMQ
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.replies import reply_properties, send_reply
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import MetaqError
from metaq.model import Partition
from metaq.net.tls import TlsSettings

pytestmark = pytest.mark.process

A0, B0 = Partition("broker-a", 0), Partition("broker-b", 0)
REPLIES = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def pair(tmp_path: Path, start_broker: StartBroker) -> Iterator[BrokerPair]:
    with running_name_server(tmp_path) as names:
        yield BrokerPair(start_broker, tmp_path, names.address)


def test_under_a_namespace(start_broker: StartBroker, tmp_path: Path) -> None:
    at = str(start_broker("dev", tmp_path / "data", "--port", "0").rocketmq_address)
    with RocketMQ(at, namespace="shop") as mq:
        mq.producer().send("orders", b"first")
        with replying(at, namespace="shop") as replied:
            assert mq.producer(group="bakers").request("orders", b"tea", timeout=LONG_S).data == b"reply to tea"
        assert [message.topic for message in replied] == ["orders"]
    with RocketMQ(at) as mq:
        assert [each.data for each in mq.browse("shop%orders")] == [b"first", b"tea"]
        (reply,) = mq.browse(REPLIES)  # of the cluster, for all namespaces
        assert reply.data == b"reply to tea"


def test_over_tls(start_broker: StartBroker, tmp_path: Path, certificates: Certificates) -> None:
    keys = dict(line.split("=", 1) for line in certificates.server_keys.splitlines())
    rest = "[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n[rocketmq]\nenabled=true\nport=0\n"
    broker = start_broker("start", "-f", write_ini(tmp_path, rest, **keys), "--port", "0")
    at, tls = str(broker.rocketmq_address), TlsSettings(ca_file=certificates.ca_file)
    with replying(at, tls=tls), RocketMQ(at, tls=tls) as mq:
        assert mq.producer().request("orders", b"tea", timeout=LONG_S).data == b"reply to tea"


def test_from_a_child_process_with_the_producer_of_its_parent(pair: BrokerPair) -> None:
    with replying(pair.name_server), RocketMQ(pair.name_server) as mq:
        producer = mq.producer()
        assert producer.request("orders", b"tea", timeout=LONG_S).data == b"reply to tea"
        assert in_child(lambda: producer.request("orders", b"scone", timeout=LONG_S).data == b"reply to scone")
        assert producer.request("orders", b"jam", timeout=LONG_S).data == b"reply to jam"


@pytest.mark.parametrize("by", ["broker-a", "broker-b"])
def test_a_broker_restarts_between_request_and_reply(pair: BrokerPair, by: str) -> None:
    """The other one passes the reply on, and this one does as soon as the producer has announced itself again."""
    with RocketMQ(pair.name_server) as mq, ThreadPoolExecutor(1) as threads, closing(SessionPool()) as pool:
        waits = threads.submit(mq.producer().request, "orders", b"tea", timeout=LONG_S, partition=A0)
        wait_until(lambda: list(mq.browse("orders")), "the request is stored")
        (request,) = mq.browse("orders")
        pair.kill("broker-a")
        pair.start("broker-a")
        pair.wait_for("broker-a", "broker-b")
        routes = NameServerDirectory(parse_name_servers(pair.name_server), pool)
        topic, properties = reply_properties(request.properties)

        def is_passed_on() -> bool:
            try:
                send_reply(pool, routes, [by], "g", topic, b"hot", properties)
            except MetaqError:
                return False
            return True

        wait_until(is_passed_on, f"{by} passes the reply on")
        assert waits.result(LONG_S).data == b"hot"


@in_loop
async def test_a_cancelled_request_to_a_broker_that_hangs_is_forgotten(pair: BrokerPair) -> None:
    async with AsyncRocketMQ(pair.name_server) as mq:
        producer = mq.producer()
        await producer.send("orders", b"first", partition=B0)
        waiting = mq._blocking._presence.requests
        os.kill(pair.process_id("broker-b"), signal.SIGSTOP)
        try:
            task = asyncio.create_task(producer.request("orders", b"tea", timeout=LONG_S, partition=B0))
            await until(lambda: len(waiting), "the request is being sent")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            os.kill(pair.process_id("broker-b"), signal.SIGCONT)
        await until(lambda: gc.collect() is not None and not len(waiting), "nobody waits for the reply")
