"""The port two below, by which Java clients before 4.5 send: on by default, and a second connection of each client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, write_ini
from remoting_headers import send_header
from request_replay import Asker

from metaq.model import Address
from metaq.protocols.remoting.bodies.groups import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
)
from metaq.protocols.remoting.headers.clients import HeartBeat, LockBatchMq, UnlockBatchMq
from metaq.testing.ports import free_port

pytestmark = pytest.mark.process

QUEUE = MessageQueue(topic="orders", broker_name="metaq", queue_id=0)


def vip(broker: RunningBroker) -> Address:
    return Address(broker.rocketmq_address.host, broker.rocketmq_address.port - 2)


@pytest.fixture
def dev(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker("dev", tmp_path / "data", "--port", "0")


@pytest.fixture
def plain(dev: RunningBroker) -> Iterator[Asker]:
    with closing(Asker(dev.rocketmq_address)) as asker:
        yield asker


@pytest.fixture
def by_vip(dev: RunningBroker) -> Iterator[Asker]:
    with closing(Asker(vip(dev))) as asker:
        yield asker


def joined(plain: Asker, client: str) -> None:
    data = SubscriptionData(topic="orders")
    group = ConsumerData(group_name="billing", subscription_data_set=(data,))
    plain.ask(HeartBeat(), HeartbeatData(client_id=client, consumer_data_set=(group,)))


def lock(asker: Asker, client: str) -> int:
    """How many queues the client has now."""
    body = LockBatchRequestBody(consumer_group="billing", client_id=client, mq_set=(QUEUE,))
    return len(LockBatchResponseBody.from_json(asker.ask(LockBatchMq(), body).body).locked)


def test_it_takes_what_the_other_port_takes(plain: Asker, by_vip: Asker) -> None:
    by_vip.ask(send_header(topic="orders", batch=False), b"one tea")
    answer = plain.ask(send_header(topic="orders", batch=False), b"two scones")
    assert answer.ext["queueOffset"] == "1"


def test_a_member_locks_and_unlocks_by_whatever_connection(plain: Asker, by_vip: Asker) -> None:
    joined(plain, "one")
    assert lock(by_vip, "one") == 1
    assert lock(by_vip, "stranger") == 0
    body = LockBatchRequestBody(consumer_group="billing", client_id="one", mq_set=(QUEUE,))
    by_vip.ask(UnlockBatchMq(), body)
    joined(plain, "two")
    assert lock(by_vip, "two") == 1


def test_where_a_port_is_taken_the_broker_serves_by_the_other(start_broker: StartBroker, tmp_path: Path) -> None:
    port = free_port((-2, 0))
    front = f"[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport={port}\n"
    with socket.create_server(("127.0.0.1", port - 2)):
        broker = start_broker("start", "-f", write_ini(tmp_path, front, hostName="127.0.0.1"))
        with closing(Asker(broker.rocketmq_address)) as asker:
            asker.ask(send_header(topic="orders", batch=False), b"one tea")
    assert f"port={port - 2}" in broker.log_text()
    assert "clients before 4.5" in broker.log_text()


def test_it_can_be_switched_off(start_broker: StartBroker, tmp_path: Path) -> None:
    port = free_port((-2, 0))
    front = f"[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nvipPort=false\nport={port}\n"
    start_broker("start", "-f", write_ini(tmp_path, front, hostName="127.0.0.1"))
    socket.create_server(("127.0.0.1", port - 2)).close()
