"""Brokers know the producers of a program, and forget them when it closes its client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, wait_until
from forked import in_child
from rocketmq_clients import A0, B0, Setting
from waiting import in_loop, until

from metaq import AsyncRocketMQ
from metaq.backends.rocketmq.errors import NoReply
from metaq.backends.rocketmq.groups import heartbeats
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import SendFailed
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.bodies.groups import HeartbeatData, ProducerConnection
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import GetProducerConnectionList, HeartBeat

LONG_S = 60.0
UNANSWERED = (NoReply, SendFailed)
"""A busy machine may not open the connection within the time that the reply has."""


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker("dev", tmp_path / "data", "--port", "0")


@pytest.fixture
def admin() -> Iterator[RemotingClient]:
    with RemotingClient() as client:
        yield client


def known(admin: RemotingClient, address: Address, group: str) -> set[str]:
    """Ids of the producers of a group, as ``mqadmin producerConnection`` asks for them."""
    answer = admin.call(address, to_request(GetProducerConnectionList(producer_group=group)))
    if answer.code:
        return set()
    return {each.client_id for each in ProducerConnection.from_json(answer.body).connection_set}


@pytest.mark.process
def test_producers_are_known_until_the_client_closes(broker: RunningBroker, admin: RemotingClient) -> None:
    address = broker.rocketmq_address
    with RocketMQ(str(address), namespace="n") as mq:
        mq.producer(group="shop").send("orders", "one tea")
        wait_until(lambda: known(admin, address, "n%shop"), "the producer is known")
        mq.producer(group="bakery").send("orders", "two scones")
        wait_until(lambda: known(admin, address, "n%bakery"), "the second one, too")
        assert known(admin, address, "n%bakery") == known(admin, address, "n%shop")  # one client has both
    wait_until(lambda: not known(admin, address, "n%shop"), "it is forgotten")
    assert not [each for each in threading.enumerate() if each.name == "metaq-heartbeats"]


@pytest.mark.process
@in_loop
async def test_asyncio(tmp_path: Path, start_broker: StartBroker) -> None:
    address = start_broker("dev", tmp_path / "data", "--port", "0").rocketmq_address
    with RemotingClient() as admin:
        async with AsyncRocketMQ(str(address)) as mq, mq.producer(group="shop") as producer:
            await producer.send("orders", "one tea")
            await until(lambda: known(admin, address, "shop"), "the producer is known")
        await until(lambda: not known(admin, address, "shop"), "it is forgotten")


@pytest.mark.process
def test_a_child_process_is_a_producer_of_its_own(broker: RunningBroker, admin: RemotingClient) -> None:
    address = broker.rocketmq_address
    with RocketMQ(str(address)) as mq:
        producer = mq.producer(group="shop")
        producer.send("orders", "one tea")
        wait_until(lambda: known(admin, address, "shop"), "the parent is known")

        def child() -> bool:
            with RemotingClient() as asking:
                producer.send("bills", "two scones")
                wait_until(lambda: len(known(asking, address, "shop")) == 2, "the child is known, too")
            return True

        assert in_child(child)


def test_only_brokers_that_are_sent_to_hear_of_a_producer(setting: Setting) -> None:
    setting.cluster.create_topic("bills", queues=1, broker="broker-b")
    setting.mq.producer(fixed(0), group="shop").send("bills", "x")
    a, b = setting.brokers
    wait_until(lambda: [one for one in b.requests if one.code == HeartBeat.CODE], "broker-b hears of it")
    assert not [one for one in a.requests if one.code == HeartBeat.CODE]
    (said, *_) = [HeartbeatData.from_json(one.body) for one in b.requests if one.code == HeartBeat.CODE]
    assert ([each.group_name for each in said.producer_data_set], said.consumer_data_set) == (["shop"], ())
    assert "@" in said.client_id


def test_brokers_that_refuse_or_are_away_cost_no_message(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.cluster.broker("broker-a").refuse(HeartBeat.CODE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")
    producer = setting.mq.producer(group="shop")
    producer.send("orders", "x", partition=A0)
    setting.cluster.stop_broker("broker-a", is_in_route=True)
    producer.send("orders", "y", partition=B0)
    assert "heartbeats" not in caplog.text


def test_a_request_waits_for_its_broker_if_that_one_did_not_answer_at_the_first(setting: Setting) -> None:
    """A broker that does not know the client refuses the reply, and a quick reply is before the next heartbeat."""
    producer, there = setting.mq.producer(group="shop"), setting.cluster.broker("broker-b")
    there.refuse(HeartBeat.CODE, ResponseCode.SYSTEM_BUSY, times=100)
    with pytest.raises(UNANSWERED):
        producer.request("orders", "x", timeout=0.01, partition=A0)
    there.obey()
    there.requests.clear()
    with pytest.raises(UNANSWERED):
        producer.request("orders", "y", timeout=0.01, partition=B0)
    assert there.requests[0].code == HeartBeat.CODE


def test_requests_of_many_threads_share_rounds_of_heartbeats(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round takes ``ANSWER_S`` while the broker does not answer: one that has begun, and one for all of them that
    wait by then, which on a busy machine are not all ten.
    """
    monkeypatch.setattr(heartbeats, "ANSWER_S", 0.5)
    producer, there = setting.mq.producer(group="shop"), setting.cluster.broker("broker-b")
    there.latency_s = lambda command: LONG_S if command.code == HeartBeat.CODE else 0.0
    with pytest.raises(UNANSWERED):
        producer.request("orders", "x", timeout=0.01, partition=A0)
    there.requests.clear()
    together = threading.Barrier(10)

    def request(number: int) -> None:
        together.wait(LONG_S)
        with pytest.raises(UNANSWERED):
            producer.request("orders", str(number), timeout=0.01, partition=B0)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(request, range(10)))
    rounds = there.counts()[HeartBeat.CODE]
    assert 1 <= rounds <= 6, "not one for each of the ten"


@pytest.mark.process
def test_a_child_leaves_the_membership_to_its_parent(broker: RunningBroker, admin: RemotingClient) -> None:
    address = broker.rocketmq_address

    def places() -> set[str]:
        answer = admin.call(address, to_request(GetProducerConnectionList(producer_group="shop")))
        return {each.client_addr for each in ProducerConnection.from_json(answer.body).connection_set}

    with RocketMQ(str(address)) as mq, mq.transactional_producer("shop", lambda message: "unknown") as producer:
        wait_until(lambda: known(admin, address, "shop"), "the parent is known")
        before = places()

        def child() -> bool:
            producer.send("orders", "one tea")
            with pytest.raises(ValueError, match="membership of the producer group belongs to the process"):
                producer.transaction()
            mq.close()
            return True

        assert in_child(child)
        with producer.transaction() as transaction:
            transaction.send("orders", "two scones")
        assert places() == before, "its connection has not ended"
