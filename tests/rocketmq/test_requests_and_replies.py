"""A request waits for the reply of its consumer: both kinds of client, two brokers, and nobody who replies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from local_servers import NAMES, BrokerPair, running_name_server
from replies import LONG_S, replying

from metaq import AsyncRocketMQ, RocketMQ
from metaq.backends.rocketmq.errors import NoReply, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.replies import reply_properties, send_reply
from metaq.client.rocketmq.producer import RocketProducer
from metaq.client.rocketmq.records import RocketMessage, RocketReceived
from metaq.client.rocketmq.requests import RocketReply, WaitingRequests
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import SendFailed
from metaq.model import Partition
from peers.rocketmq.clients import client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.process

GONE = r"no producer with the client id \S+ is connected to broker"


@pytest.fixture
def pair(tmp_path: Path, start_broker: StartBroker) -> Iterator[BrokerPair]:
    with running_name_server(tmp_path) as names:
        yield BrokerPair(start_broker, tmp_path, names.address)


def check(reply: RocketReply, body: bytes) -> None:
    assert (reply.data, reply.tag, reply.properties["own"]) == (b"reply to " + body, "red", "x")


def test_requests_to_queues_of_both_brokers_are_replied_to(pair: BrokerPair) -> None:
    with replying(pair.name_server) as replied, RocketMQ(pair.name_server) as mq:
        producer = mq.producer()
        for name in NAMES:
            body = f"to {name}".encode()
            check(producer.request("orders", body, timeout=LONG_S, partition=Partition(name, 1)), body)
        assert {message.partition.broker_name for message in replied} == set(NAMES)
        assert mq.producer(group="other").request("orders", b"again", timeout=LONG_S).data == b"reply to again"


@pytest.mark.slow
def test_requests_and_replies_of_java_clients_at_rocketmq_itself(
    rocketmq: Cluster, rocketmq_topic: Callable[..., str], tmp_path: Path
) -> None:
    java, names = client(f"java-{rocketmq.release.version}"), rocketmq.name_servers
    theirs, own = rocketmq_topic(queues=2), rocketmq_topic(queues=2)
    consumer = Conversation(java, names, tmp_path, role="push", group="java-replies", topic=theirs, replies="yes")
    with consumer, RocketMQ(names) as mq:
        consumer.ready()
        producer = mq.producer()
        wait_until(lambda: _is_replied_to(producer, theirs), "a first reply")
        for number in range(10):
            reply = producer.request(theirs, b"request %d" % number, timeout=LONG_S)
            said = reply.data, reply.tag, reply.properties["property"]
            assert said == (b"reply to request %d" % number, "reply", "of the reply")
    asking = Conversation(java, names, tmp_path, role="producer", group="java-asks")
    with asking, replying(names, to=own):  # in this order: the broker waits until the producer has taken a reply
        asking.ready()
        for number in range(10):
            answer = asking.request(own, f"request {number}", int(LONG_S * 1000))
            assert (answer["body"], answer["tag"]) == (f"reply to request {number}", "red")


def _is_replied_to(producer: RocketProducer, topic: str) -> bool:
    """Whether a request is replied to: a consumer has to get its queues first."""
    with suppress(NoReply):
        return producer.request(topic, b"first", timeout=3).data == b"reply to first"
    return False


def test_many_requests_of_one_loop_wait_at_the_same_time(pair: BrokerPair) -> None:
    async def run() -> None:
        async with AsyncRocketMQ(pair.name_server) as mq:
            producer, bodies = mq.producer(), [f"request {number}".encode() for number in range(30)]
            replies = await asyncio.gather(*(producer.request("orders", each, timeout=LONG_S) for each in bodies))
            for reply, body in zip(replies, bodies, strict=True):
                check(reply, body)
            with pytest.raises(NoReply):
                await producer.request("orders", b"silent", timeout=0.2)

    with replying(pair.name_server):
        asyncio.run(run())


def test_requests_are_replied_to_in_a_loop(pair: BrokerPair) -> None:
    async def requested(mq: AsyncRocketMQ, body: bytes) -> RocketReceived:
        while True:
            async for message in mq.browse("orders"):
                if message.data == body:
                    return message

    async def run() -> None:
        async with asyncio.timeout(LONG_S), AsyncRocketMQ(pair.name_server) as mq, mq.producer() as producer:
            for name in NAMES:
                body, where = f"to {name}".encode(), Partition(name, 1)
                asked = asyncio.create_task(producer.request("orders", body, timeout=LONG_S, partition=where))
                request = await requested(mq, body)
                await producer.reply(request, b"reply to " + body, tag="red", properties={"own": "x"})
                check(await asked, body)

    asyncio.run(run())


def test_a_request_that_nobody_replies_to_ends_in_time(pair: BrokerPair) -> None:
    with RocketMQ(pair.name_server) as mq:
        producer, began = mq.producer(), time.monotonic()
        with pytest.raises(
            NoReply, match=r"no reply to request \w+ within 3 s: no consumer of topic 'orders' replied"
        ):
            producer.request("orders", b"silent", timeout=3)
        assert time.monotonic() - began < LONG_S
        with pytest.raises(ValueError, match="timeout 0: expected seconds above 0"):
            producer.request("orders", b"silent", timeout=0)


def test_a_broker_pushes_replies_to_requests_that_another_one_stored(pair: BrokerPair) -> None:
    """The consumer may send the reply to any broker of the cluster."""
    with RocketMQ(pair.name_server) as mq, closing(SessionPool()) as pool:
        routes = NameServerDirectory(parse_name_servers(pair.name_server), pool)
        producer, message = mq.producer(), RocketMessage(data=b"which way")
        sent = producer.begin_request("orders", message, LONG_S, Partition("broker-a", 0), None)
        (request,) = (each for each in mq.browse("orders") if each.message_id == sent.message_id)
        topic, properties = reply_properties(request.properties)
        send_reply(pool, routes, ["broker-b"], "g", topic, b"this way", properties)
        assert sent.future.result(LONG_S).data == b"this way"
        producer.end_request(sent)
        send_reply(pool, routes, ["broker-b"], "g", topic, b"too late", properties)  # dropped, and no error
        stored = {each.data for each in mq.browse(topic)}
        assert stored >= {b"this way", b"too late"}


def test_replies_for_which_nobody_waits(pair: BrokerPair) -> None:
    with RocketMQ(pair.name_server) as mq:
        producer = mq.producer()
        plain = producer.send("orders", b"no request")
        (message,) = (each for each in mq.browse("orders") if each.message_id == plain.message_id)
        with pytest.raises(ValueError, match="the message is no request, it has no property CORRELATION_ID"):
            producer.reply(message, b"x")
        with RocketMQ(pair.name_server) as other, pytest.raises(NoReply):
            other.producer().request("orders", b"silent", timeout=3)
        request = next(each for each in mq.browse("orders") if each.data == b"silent" and "TTL" in each.properties)
        with pytest.raises(SendFailed, match=GONE):
            _until_gone(lambda: producer.reply(request, b"x"))


def test_a_reply_is_sent_to_no_broker_of_another_cluster(tmp_path: Path, start_broker: StartBroker) -> None:
    """It does not have the topic of the reply, and its refusal would hide that the producer is gone."""
    other = {"broker-b": "clusterName=other"}
    with running_name_server(tmp_path) as names, closing(SessionPool()) as pool:
        pair = BrokerPair(start_broker, tmp_path, names.address, other)
        with RocketMQ(pair.name_server) as mq, pytest.raises(NoReply):
            mq.producer().request("orders", b"silent", timeout=3, partition=Partition("broker-a", 0))
        with RocketMQ(pair.name_server) as mq:
            (request,) = mq.browse("orders")
            with pytest.raises(SendFailed, match=rf"{GONE} broker-a"):
                _until_gone(lambda: mq.producer().reply(request, b"x"))
        routes, (topic, properties) = NameServerDirectory([names.address], pool), reply_properties(request.properties)
        with pytest.raises(RequestRefused, match=GONE):
            send_reply(pool, routes, NAMES, "g", topic, b"x", properties)


def _until_gone(reply: Callable[[], None]) -> None:
    """Reply until it fails: a broker notices the end of a client's connection a moment later."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        reply()
        time.sleep(0.05)


def test_a_request_to_a_broker_that_hangs_fails_in_its_time(pair: BrokerPair) -> None:
    """Also the first one, of which the broker is told before."""
    there = Partition("broker-b", 0)
    with RocketMQ(pair.name_server) as mq:
        producer = mq.producer()
        producer.send("orders", b"one tea", partition=there)
        os.kill(pair.process_id("broker-b"), signal.SIGSTOP)
        try:
            for _ in range(2):
                since_s = time.monotonic()
                with pytest.raises(SendFailed, match="no answer to a send"):
                    producer.request("orders", b"silent", timeout=0.5, partition=there)
                assert time.monotonic() - since_s < 20  # a send waits for 30 seconds
        finally:
            os.kill(pair.process_id("broker-b"), signal.SIGCONT)


def test_a_request_whose_task_is_cancelled_while_it_is_sent_is_forgotten() -> None:
    waiting = WaitingRequests()
    future = waiting.add("c1")
    assert len(waiting) == 1
    del future  # as the result of a thread whose task does not wait any more
    gc.collect()
    assert len(waiting) == 0
