"""A broker that was killed blocks reads of the topics that it may have, and of no others."""

from __future__ import annotations

import json
import signal

import pytest
from fix_broker import RunningBroker, wait_until
from fix_zookeeper import Brokers, ZooKeeperRoot
from metaq_broker.operate.registration.forget import forget_broker

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_client import connected
from metaq.discovery.zk_layout import (
    ZooKeeperAddress,
    ZooKeeperLayout,
    member_topics_text,
    parse_member_topics,
)
from metaq.discovery.zk_map import RegisteredBroker
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import ConnectionFailed
from metaq.model import Address, Message, Partition
from metaq.net.transport import Timeouts
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.options.table import Use

DEAD = Address("127.0.0.1", 9)

pytestmark = pytest.mark.usefixtures("pools_closed")


def directory_of(zookeeper: ZooKeeperRoot) -> ZooKeeperDirectory:
    """A new process's view."""
    return ZooKeeperDirectory(
        TreeCache(ZooKeeperAddress.parse(zookeeper.option), 5.0), SessionPool(Timeouts(connect_s=2.0))
    )


def order(broker: RunningBroker, topic: str) -> None:
    session = Session.connect(broker.address)
    put(session, topic, 0, Message(b"order"))
    session.close()


def kill_and_be_forgotten(brokers: Brokers, broker: RunningBroker, broker_id: int) -> None:
    """Kill -9, and wait until ZooKeeper has given up the session."""
    broker.kill()
    wait_until(lambda: brokers.master(broker_id) is None, "the end of the dead broker's session", 60)


@pytest.mark.process
def test_only_topics_that_it_may_have_wait_for_it(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    alive = brokers.start("alive", "[topic=orders]\n", 3)
    dead = brokers.start("dead", "[topic=payments]\n[topic=log-*]\n", 4)
    order(alive, "orders")
    order(dead, "payments")
    kill_and_be_forgotten(brokers, dead, 4)
    directory = directory_of(zookeeper)
    assert list(directory.available(["orders"])) == list(directory.ends(["orders"]))
    assert list(directory.partitions("orders")) == [Partition(3, 0)]
    assert directory.available_now(["orders"])[1] == {}
    for blocked in (["payments"], ["orders", "payments"], ["log-of-today"], None):
        with pytest.raises(ConnectionFailed, match=str(dead.address)):
            directory.available(blocked)
    with pytest.raises(ConnectionFailed, match=str(dead.address)):
        directory.partitions("payments")
    assert list(directory.available_now(["payments"])[1]) == [dead.address]


@pytest.mark.process
def test_a_read_through_the_connector_begins(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    alive = brokers.start("alive", "[topic=orders]\n", 3)
    dead = brokers.start("dead", "[topic=payments]\n", 4)
    order(alive, "orders")
    kill_and_be_forgotten(brokers, dead, 4)
    given = {"zookeeper": zookeeper.option, "subscribe": "orders", "retries": "0"}
    options = parse_source_options(given, Use.BATCH_READ)
    cluster = Cluster(options)
    cluster.require(options.selection, stored=True)
    assert [str(where) for where in cluster.available(options.selection)] == ["orders/3-0"]


@pytest.mark.process
def test_a_topic_that_it_has_although_it_is_not_configured_any_more(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    dead = brokers.start("dead", "[topic=payments]\n", 4)
    order(dead, "payments")
    assert dead.stop() == 0
    dead = brokers.start("dead", "[topic=other]\n", 4)
    kill_and_be_forgotten(brokers, dead, 4)
    with pytest.raises(ConnectionFailed):
        directory_of(zookeeper).available(["payments"])


@pytest.mark.process
def test_a_topic_that_a_reload_adds_is_known_before_it_is_served(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    broker = brokers.start("one", "[topic=orders]\n", 4)
    assert zookeeper.text("/members/4/topics") == '["orders"]'
    brokers.write("one", "[topic=orders]\n[topic=payments]\n", 4)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in broker.log_text(), "the reload")
    assert json.loads(zookeeper.text("/members/4/topics") or "") == ["orders", "payments"]
    order(broker, "payments")


def test_a_broker_that_runs_is_asked_whatever_the_list_says() -> None:
    running = RegisteredBroker(DEAD, topics=("other",))
    slave_alone = RegisteredBroker(None, {0: DEAD}, topics=("other",))
    assert running.may_have(["orders"])
    assert slave_alone.may_have(["orders"])


@pytest.mark.parametrize(
    ("topics", "asked", "may"),
    [
        (None, ["orders"], True),  # a Java broker, or an older one
        (("orders",), None, True),  # any topic is asked for
        ((), ["orders"], False),
        (("orders",), ["orders", "carts"], True),
        (("carts",), ["orders"], False),
        (("*",), ["orders"], True),
        (("ord*",), ["orders"], True),
        (("ord*",), ["carts"], False),
    ],
)
def test_what_a_broker_that_is_away_may_have(
    topics: tuple[str, ...] | None, asked: list[str] | None, may: bool
) -> None:
    assert RegisteredBroker(last=DEAD, topics=topics).may_have(asked) is may


def test_the_text_of_the_list() -> None:
    assert parse_member_topics(member_topics_text({"b", "a*", "c"})) == ("a*", "b", "c")
    assert parse_member_topics(member_topics_text(f"topic-{number}" for number in range(100_000))) == ("*",)
    for text in ("", "no list", '{"v": 2}', "[1]"):
        assert parse_member_topics(text) is None


@pytest.mark.process
def test_forgetting_a_broker_takes_its_list_away(brokers: Brokers, zookeeper: ZooKeeperRoot) -> None:
    assert brokers.start("one", "[topic=orders]\n", 4).stop() == 0
    address = ZooKeeperAddress.parse(zookeeper.option)
    with connected(address.hosts, 10.0) as client:
        assert forget_broker(client, ZooKeeperLayout(address.root), 4) is None
    assert zookeeper.text("/members/4") is None
    assert directory_of(zookeeper).brokers() == {}
