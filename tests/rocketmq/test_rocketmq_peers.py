"""The harness itself: real servers start, are found, stop and come back; the Java programs write and read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from peers.rocketmq.ask import Account
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import GET_CLUSTER, Cluster

pytestmark = pytest.mark.slow

GET_MAX_OFFSET = 30
Topic = Callable[..., str]
Dumped = Callable[..., list[Mapping[str, Any]]]

ACCOUNTS = """\
- accessKey: reader-key
  secretKey: reader-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: stranger-key
  secretKey: stranger-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""


def body(number: int, size: int) -> bytes:
    """What the programs write as message ``number``."""
    return b"%08d" % number + bytes(ord("a") + (number + at) % 26 for at in range(8, size))


@pytest.mark.parametrize("batch", [1, 50], ids=["singles", "batches"])
def test_what_the_java_client_writes_it_reads(
    rocketmq_programs: Programs, rocketmq_topic: Topic, dumped: Dumped, batch: int
) -> None:
    topic = rocketmq_topic(queues=4)
    rocketmq_programs.write(topic, 1000, size=50, batch=batch, tags=3, keys=2, properties=2, flag=5)
    rows = dumped(topic)
    assert len(rows) == 1000
    assert {(row["queue_id"], row["queue_offset"]) for row in rows} == {(n % 4, n // 4) for n in range(1000)}
    by_number = {int(base64.b64decode(row["value"])[:8]): row for row in rows}
    assert sorted(by_number) == list(range(1000))
    row = by_number[7]
    assert base64.b64decode(row["value"]) == body(7, 50)
    assert (row["tags"], row["keys"], row["flag"]) == ("tag1", "key7-0 key7-1", 5)
    assert row["properties"]["property1"] == "7 ä消息 1"


def test_large_bodies_are_compressed_on_the_way(
    rocketmq_programs: Programs, rocketmq_topic: Topic, dumped: Dumped
) -> None:
    topic = rocketmq_topic(queues=1)
    rocketmq_programs.write(topic, 10, size=5000, compressAbove=1000, underWay=1)
    rows = dumped(topic)
    assert [base64.b64decode(row["value"]) for row in rows] == [body(n, 5000) for n in range(10)]
    assert max(row["store_size"] for row in rows) < 1000


def test_rates_are_those_of_all_messages(rocketmq_programs: Programs, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=2)
    rates = rocketmq_programs.send_rates(topic, 2000, runs=2, batch=500)
    assert [rate.messages for rate in rates] == [2000, 2000]
    assert [rate.messages for rate in rocketmq_programs.pull_rates(topic, runs=2)] == [4000, 4000]
    assert [rate.messages for rate in rocketmq_programs.pull_rates(topic, queue=0, runs=1)] == [2000]


def test_a_push_consumer_gets_what_its_tags_match(rocketmq_programs: Programs, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=2)
    rocketmq_programs.write(topic, 100, tags=4)
    got = rocketmq_programs.push(topic, f"group-of-{topic}", 25, tags="tag2")
    assert sorted(int(line[4][:8]) for line in got) == list(range(2, 100, 4))


def test_a_killed_broker_comes_back_with_its_messages(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    broker = rocketmq_cluster.start_broker(flushDiskType="SYNC_FLUSH")
    rocketmq_cluster.create_topic("orders", queues=1)
    Programs(rocketmq_cluster.release, rocketmq_cluster.name_servers).write("orders", 100)
    broker.kill()
    with pytest.raises(ConnectionError):
        rocketmq_cluster.ask(broker, GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})
    broker.start()
    answer = rocketmq_cluster.ask(broker, GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})
    assert answer.checked().fields["offset"] == "100"


def test_a_slave_and_a_second_name_server_are_registered(rocketmq_cluster: Cluster) -> None:
    for _ in range(2):
        rocketmq_cluster.start_name_server()
    master = rocketmq_cluster.start_broker(brokerRole="SYNC_MASTER")
    slave = rocketmq_cluster.start_broker(broker_id=1)
    for server in rocketmq_cluster.names:
        listed = rocketmq_cluster.ask(server, GET_CLUSTER).checked().body.decode()
        assert master.address in listed
        assert slave.address in listed


@pytest.mark.rocketmq_only("4.9.7")
def test_accounts_decide_who_reads(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker(accounts=ACCOUNTS)
    rocketmq_cluster.create_topic("orders", queues=1)
    programs = Programs(rocketmq_cluster.release, rocketmq_cluster.name_servers, rocketmq_cluster.administrator)
    programs.write("orders", 10)
    names, release = rocketmq_cluster.name_servers, rocketmq_cluster.release
    reader = Programs(release, names, Account("reader-key", "reader-secret"))
    assert [rate.messages for rate in reader.pull_rates("orders", runs=1)] == [10]
    for account in (Account("stranger-key", "stranger-secret"), Account("reader-key", "wrong"), None):
        with pytest.raises(RuntimeError, match="AclException"):
            Programs(release, names, account).pull_rates("orders", runs=1)


@pytest.mark.rocketmq_only("5.5.0")
def test_the_proxy_is_name_server_and_broker_in_one_port(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("orders", queues=2)
    proxy = rocketmq_cluster.start_proxy()
    programs = Programs(rocketmq_cluster.release, proxy.address)
    programs.write("orders", 100)
    assert [rate.messages for rate in programs.pull_rates("orders", runs=1)] == [100]
