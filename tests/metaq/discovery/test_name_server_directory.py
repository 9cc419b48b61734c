"""The directory against scripted name servers: topics, queues, addresses, and name servers that are away or lie."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from fix_broker import wait_until
from forked import in_child

from metaq.backends.rocketmq.errors import (
    BrokerAway,
    NameServersAway,
    NotNameServer,
    RouteUnusable,
    TopicListMissing,
)
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.session import Session
from metaq.backends.rocketmq.topic_route import TopicRoute
from metaq.discovery.name_server import AVOID_S, NameServerDirectory, parse_name_servers
from metaq.discovery.refreshed import AWAY_PAUSE_S, CACHE_AGE_S_MAX, SOON_S
from metaq.errors import MetaqError, TlsRefused, TopicNotFound, WrongServer
from metaq.model import Address, Partition
from metaq.net.identification import HTTP, ROCKETMQ
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.routes import (
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
)
from metaq.testing.manual_clock import ManualClock
from metaq.testing.ports import free_port
from metaq.testing.rocketmq_server import ScriptedCluster

TIMEOUTS = Timeouts(connect_s=2.0, request_s=2.0)
HERE = Address("127.0.0.1", 9876)
A0, A1 = Partition("broker-a", 0), Partition("broker-a", 1)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({"broker-a": (1,), "broker-b": ()}, name_server_count=2) as cluster:
        cluster.create_topic("orders", 2, broker="broker-a")
        yield cluster


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[SessionPool]:
    pool = SessionPool(TIMEOUTS, clock=clock)
    yield pool
    pool.close()


@pytest.fixture
def directory(cluster: ScriptedCluster, pool: SessionPool) -> NameServerDirectory:
    return NameServerDirectory(cluster.name_servers, pool)


@pytest.mark.parametrize(
    "text", ["ns1:9876;ns2:9876", "ns1:9876,ns2:9876", " ns1:9876 ; ns2:9876; ", "ns1:9876;ns2:9876;ns1:9876"]
)
def test_a_list_of_name_servers(text: str) -> None:
    assert parse_name_servers(text) == (Address("ns1", 9876), Address("ns2", 9876))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected host:port"),
        (" ; ", "expected host:port"),
        ("ns1", "name server 'ns1': expected host:port"),
        ("ns1:9876;ns2", "name server 'ns2': expected host:port"),
        ("ns1:99999", "port 1..65535"),
    ],
)
def test_a_wrong_list_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_name_servers(text)


def test_queues_and_addresses(cluster: ScriptedCluster, directory: NameServerDirectory) -> None:
    assert directory.queues("orders") == directory.writable("orders") == [A0, A1]
    broker = cluster.broker("broker-a")
    assert directory.read_address("broker-a") == directory.write_address("broker-a") == broker.address()
    assert directory.read_address("broker-a", 1) == broker.address(1)
    assert directory.read_address("broker-a", 7) == broker.address()  # no such slave: the master
    assert directory.read_address("broker-b") == cluster.broker("broker-b").address()  # from the list of clusters


def test_topics_of_users_only(cluster: ScriptedCluster, directory: NameServerDirectory) -> None:
    for name in ("%RETRY%g", "%DLQ%g", "broker-a", "ScriptedCluster", "ScriptedCluster_REPLY_TOPIC", "returns"):
        cluster.create_topic(name)
    assert directory.topics() == ["orders", "returns"]


def test_a_namespace_has_its_own_topics(cluster: ScriptedCluster, pool: SessionPool) -> None:
    cluster.create_topic("ns%orders", 3)
    cluster.create_topic("other%orders", 4)
    directory = NameServerDirectory(cluster.name_servers, pool, namespace="ns")
    assert directory.topics() == ["orders"]
    assert len(directory.queues("orders")) == 2 * 3


def test_an_unknown_topic_is_asked_of_all_name_servers(
    cluster: ScriptedCluster, directory: NameServerDirectory
) -> None:
    with pytest.raises(TopicNotFound, match="topic 'nope' does not exist") as caught:
        directory.queues("nope")
    assert sorted(caught.value.brokers) == sorted(map(str, cluster.name_servers))
    cluster.create_topic("nope", 1)
    assert len(directory.queues("nope")) == 2  # nothing remembered that it was unknown


def test_a_broker_that_registers_between_two_questions_is_found(
    cluster: ScriptedCluster, directory: NameServerDirectory
) -> None:
    cluster.name_server.refuse(GetRouteInfoByTopic.CODE, ResponseCode.TOPIC_NOT_EXIST, times=len(cluster.name_servers))
    assert directory.queues("orders") == [A0, A1]


def test_a_new_queue_is_seen_when_the_answer_is_old(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    assert len(directory.queues("orders")) == 2
    cluster.create_topic("orders", 3, broker="broker-a")
    assert len(directory.queues("orders")) == 2
    clock.advance(CACHE_AGE_S_MAX)
    assert len(directory.queues("orders")) == 3


def test_the_next_name_server_answers_when_one_is_away(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    cluster.stop_name_server(0)
    assert directory.queues("orders") == [A0, A1]
    cluster.start_name_server(0)
    cluster.stop_name_server(1)
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]


def test_a_silent_name_server_does_not_take_the_time_of_a_request(cluster: ScriptedCluster) -> None:
    """As that of a frozen member of a pair, for a client that begins."""
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(SessionPool(Timeouts(20.0, 20.0))) as pool:
        servers = [Address("127.0.0.1", silent.getsockname()[1]), *cluster.name_servers]
        began_s = time.monotonic()
        assert NameServerDirectory(servers, pool).queues("orders") == [A0, A1]
        assert time.monotonic() - began_s < 10


def test_an_unknown_topic_does_not_wait_for_a_silent_name_server(cluster: ScriptedCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(SessionPool(Timeouts(20.0, 20.0))) as pool:
        answers = cluster.name_servers[0]
        directory = NameServerDirectory([answers, Address("127.0.0.1", silent.getsockname()[1])], pool)
        began_s = time.monotonic()
        with pytest.raises(TopicNotFound) as unknown:
            directory.queues("nowhere")
        assert time.monotonic() - began_s < 10
        assert str(unknown.value).count(str(answers)) == 1


def test_a_silent_broker_is_noted_while_a_name_server_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(SessionPool(Timeouts(20.0, 20.0))) as pool:
        directory = NameServerDirectory([Address("127.0.0.1", silent.getsockname()[1])], pool)

        def ask() -> None:
            with suppress(NameServersAway):
                directory.queues("orders")

        asking = threading.Thread(target=ask)
        asking.start()
        connection, _ = silent.accept()
        directory.avoid(Address("127.0.0.1", 10911))
        assert asking.is_alive()
        connection.close()
        asking.join()


def test_what_was_known_stands_while_all_are_away(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.queues("orders") == [A0, A1]
    for index in (0, 1):
        cluster.stop_name_server(index)
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]
    with pytest.raises(NameServersAway, match="no name server answers, of "):
        directory.queues("never asked")
    assert "Continuing with the brokers as last known" in caplog.text
    for index in (0, 1):
        cluster.start_name_server(index)
    cluster.create_topic("orders", 3, broker="broker-a")
    clock.advance(AWAY_PAUSE_S)
    wait_until(lambda: len(directory.queues("orders")) == 3, "the new queue")  # asked in a thread meanwhile
    assert "is back" in caplog.text


@pytest.mark.parametrize("error", [WrongServer(HERE, ROCKETMQ, HTTP), TlsRefused(HERE, "not trusted")])
def test_what_was_known_stands_while_another_server_has_the_address(
    error: MetaqError, directory: NameServerDirectory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert directory.queues("orders") == [A0, A1]

    def ask_route(session: Session, topic: str) -> TopicRoute | None:
        raise error

    monkeypatch.setattr("metaq.discovery.name_server.ask_route", ask_route)
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]
    with pytest.raises(type(error)):
        directory.queues("never asked")


def test_an_answer_that_turned_out_wrong_is_asked_for_again_soon(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    """The members of a pair may be the name servers: while they elect a master, none of them answers."""
    assert directory.queues("orders") == [A0, A1]
    for index in (0, 1):
        cluster.stop_name_server(index)
    for _ in range(3):
        directory.invalidate()
        assert directory.queues("orders") == [A0, A1]
        clock.advance(SOON_S * 8)
    for index in (0, 1):
        cluster.start_name_server(index)
    cluster.create_topic("orders", 3, broker="broker-a")
    directory.invalidate()
    wait_until(lambda: len(directory.queues("orders")) == 3, "the new queue")


def test_name_servers_that_stay_away_are_not_asked_at_every_failure(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    assert directory.queues("orders") == [A0, A1]
    cluster.name_server.refuse(GetRouteInfoByTopic.CODE, ResponseCode.TOPIC_NOT_EXIST, times=10_000)
    asked = cluster.name_server.counts()[GetRouteInfoByTopic.CODE]
    for _ in range(200):  # 10 s of failures at a broker
        directory.invalidate()
        directory.queues("orders")
        clock.advance(0.05)
    looks = (cluster.name_server.counts()[GetRouteInfoByTopic.CODE] - asked) / len(directory.servers) / 2
    assert 5 <= looks <= 12


def test_a_known_topic_is_registered_with_a_name_server_started_empty(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    assert directory.queues("orders") == [A0, A1]
    cluster.name_server.refuse(GetRouteInfoByTopic.CODE, ResponseCode.TOPIC_NOT_EXIST, times=4)
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]
    assert cluster.name_server.counts()[GetRouteInfoByTopic.CODE] == 5


def test_a_broker_that_left_the_route_keeps_its_address(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    address = directory.read_address("broker-a") if directory.queues("orders") else None
    cluster.stop_broker("broker-a", 0)
    cluster.stop_broker("broker-a", 1)
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]
    assert directory.read_address("broker-a") == address


def test_a_slave_is_read_when_the_master_left_or_does_not_answer(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    directory.queues("orders")
    broker = cluster.broker("broker-a")
    directory.avoid(broker.address())
    assert directory.read_address("broker-a") == broker.address(1)
    assert directory.write_address("broker-a") == broker.address()
    clock.advance(AVOID_S)
    assert directory.read_address("broker-a") == broker.address()
    cluster.stop_broker("broker-a", 0)
    directory.invalidate()
    assert directory.queues("orders") == [A0, A1]
    assert directory.writable("orders") == []
    assert directory.read_address("broker-a") == broker.address(1)
    with pytest.raises(BrokerAway, match="the master of broker 'broker-a' is not registered"):
        directory.write_address("broker-a")


def test_a_broker_that_nobody_knows(directory: NameServerDirectory) -> None:
    with pytest.raises(BrokerAway, match="the address of broker 'broker-x' is not registered at the name servers"):
        directory.read_address("broker-x")


LIES = [
    (b"", "body"),
    (b"no json", "JSON"),
    (b"[]", "object"),
    (b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":-4,"writeQueueNums":1}],"brokerDatas":[]}', "is -4"),
    (b'{"queueDatas":[],"brokerDatas":[{"brokerName":"b","brokerAddrs":{0:"no address"}}]}', "'no address'"),
    (b'{"queueDatas":[{"brokerName":7}]}', "queueDatas"),
]


@pytest.mark.parametrize(("body", "reason"), LIES)
def test_a_name_server_that_lies_gives_one_sentence(
    cluster: ScriptedCluster, directory: NameServerDirectory, body: bytes, reason: str
) -> None:
    cluster.name_server.tamper = lambda request, response: request.reply(body=body)
    with pytest.raises(RouteUnusable, match="gave an unusable route for topic 'orders'") as caught:
        directory.queues("orders")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_lie_does_not_replace_what_was_known(
    cluster: ScriptedCluster, directory: NameServerDirectory, clock: ManualClock
) -> None:
    assert directory.queues("orders") == [A0, A1]
    cluster.name_server.tamper = lambda request, response: request.reply(body=b"{")
    clock.advance(CACHE_AGE_S_MAX)
    assert directory.queues("orders") == [A0, A1]


def test_a_proxy_lists_no_topics(pool: SessionPool) -> None:
    with ScriptedCluster(is_v5=True) as cluster:
        for code in (GetAllTopicListFromNameserver.CODE, GetBrokerClusterInfo.CODE):
            cluster.name_server.refuse(code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request code not supported", 9)
        cluster.create_topic("orders")
        directory = NameServerDirectory(cluster.name_servers, pool)
        with pytest.raises(TopicListMissing, match=r"does not list topics .* name them with subscribe or assign"):
            directory.topics()
        assert directory.queues("orders") == [A0]
        assert directory.read_address("broker-a") == cluster.broker("broker-a").address()
        with pytest.raises(BrokerAway):
            directory.read_address("broker-x")
        of_a_task = NameServerDirectory(cluster.name_servers, pool)  # which knows nothing but its range
        assert of_a_task.read_address("broker-a", topic="orders") == cluster.broker("broker-a").address()
        assert of_a_task.write_address("broker-a", topic="orders") == cluster.broker("broker-a").address()


@pytest.mark.parametrize("ask", ["topics", "queues", "masters"])
def test_a_broker_at_the_address_of_a_name_server_is_named(
    cluster: ScriptedCluster, pool: SessionPool, ask: str
) -> None:
    where = cluster.broker("broker-a").address()
    directory = NameServerDirectory([where], pool)
    asked = {"topics": directory.topics, "queues": lambda: directory.queues("orders"), "masters": directory.masters}
    with pytest.raises(NotNameServer, match=f"{where} is a RocketMQ broker, not a name server; give .* port is 9876"):
        asked[ask]()


def test_name_servers_that_are_not_there_are_called_name_servers(pool: SessionPool) -> None:
    nobody = Address("127.0.0.1", free_port())
    with pytest.raises(NameServersAway) as caught:
        NameServerDirectory([nobody], pool).topics()
    assert str(caught.value) == (
        f"no name server answers, of {nobody}: connect failed: Connection refused; "
        "check the addresses, and that name servers run there"
    )


def test_an_address_is_as_new_as_the_route_of_the_topic(
    cluster: ScriptedCluster, directory: NameServerDirectory
) -> None:
    before = directory.read_address("broker-a", topic="orders")
    cluster.move_broker("broker-a")
    assert directory.read_address("broker-a", topic="orders") == before
    directory.invalidate()
    assert directory.read_address("broker-a", topic="orders") == cluster.broker("broker-a").address() != before
    assert directory.write_address("broker-a", topic="orders") == cluster.broker("broker-a").address()


def test_a_topic_whose_brokers_are_all_away_is_not_unknown_to_a_task(
    cluster: ScriptedCluster, directory: NameServerDirectory
) -> None:
    for broker_id in (0, 1):
        cluster.stop_broker("broker-a", broker_id)
    with pytest.raises(BrokerAway) as caught:
        directory.read_address("broker-a", topic="orders")
    assert caught.value.retryable


def test_a_child_does_not_wait_for_a_question_of_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(SessionPool(Timeouts(0.5, 0.5))) as pool:
        directory = NameServerDirectory([Address("127.0.0.1", server.getsockname()[1])], pool)

        def asks() -> bool:
            with pytest.raises(NameServersAway):
                directory.queues("orders")
            return True

        def asks_within() -> bool:
            signal.alarm(20)
            return asks()

        thread = threading.Thread(target=asks)
        thread.start()
        with server.accept()[0]:
            assert in_child(asks_within)
        thread.join()
