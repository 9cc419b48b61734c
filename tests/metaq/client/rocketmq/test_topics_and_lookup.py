"""Topics and lookups of a cluster with a namespace, and what brokers say instead of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.topics import TopicSettings
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import CorruptRecord, ProtocolError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import QueryMessage, ViewMessageById
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq.testing.rocketmq_store import Topic

QUEUE = Partition("broker-a", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


@pytest.fixture
def mq(cluster: ScriptedCluster) -> Iterator[RocketMQ]:
    with RocketMQ(str(cluster.name_servers[0]), namespace="shop") as mq:
        yield mq


def test_topics_are_in_the_namespace(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    mq.topics.create("orders", 4)
    assert cluster.broker().store.topics["shop%orders"] == Topic(4, 4)
    settings = TopicSettings(broker="broker-a", read_queues=4, write_queues=4, permissions="rw")
    assert mq.topics.settings("orders") == [settings]
    assert mq.topics.alter("orders", read_queues=2, permissions="none") == [
        TopicSettings(broker="broker-a", read_queues=2, write_queues=4, permissions="none")
    ]
    mq.topics.delete("orders")
    assert "shop%orders" not in cluster.broker().store.topics


def test_a_topic_that_is_deleted_while_topics_are_listed(
    cluster: ScriptedCluster, mq: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.topics.create("orders", 1)
    monkeypatch.setattr(NameServerDirectory, "topics", lambda directory: ["deleted", "orders"])
    assert mq.cluster.topics() == {"orders": [QUEUE]}
    assert mq.cluster.topic_messages() == {"orders": 0}
    assert mq.cluster.lag("g", []) == []


def test_a_template_stays_one(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    mq.topics.alter("TBW102", write_queues=2)
    assert cluster.broker().store.topics["TBW102"] == Topic(8, 2, 7)


def test_messages_are_found_in_the_namespace(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.create_topic("shop%orders")
    cluster.create_topic("orders")
    for topic in ("shop%orders", "orders"):
        cluster.append(topic, QUEUE, [topic.encode()], properties={"KEYS": "k", "UNIQ_KEY": "u"})
    (by_key,), (by_id,) = mq.lookup.by_key("orders", "k"), mq.lookup.by_id("orders", "u")
    assert by_key == by_id
    assert (by_key.topic, by_key.data, by_key.partition) == ("orders", b"shop%orders", QUEUE)
    assert mq.lookup.by_id("orders", by_key.offset_message_id) == [by_key]


def test_what_a_broker_says_instead(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.create_topic("shop%orders")
    cluster.append("shop%orders", QUEUE, [b"x"], properties={"KEYS": "k", "UNIQ_KEY": "u"})
    (stored,) = mq.browse("orders")
    inside = str(OffsetMessageId(OffsetMessageId.parse(stored.offset_message_id).host, 3))
    broker = cluster.broker()
    broker.refuse(ViewMessageById.CODE, ResponseCode.SYSTEM_ERROR, "java.lang.IllegalArgumentException: newLimit < 0")
    assert mq.lookup.by_id("orders", inside) == []
    for code, text, error in [
        (ResponseCode.SYSTEM_ERROR, "out of order", RequestRefused),
        (ResponseCode.SYSTEM_ERROR, "AclException: No accessKey is configured", AccessDenied),
    ]:
        broker.refuse(ViewMessageById.CODE, code, text)
        with pytest.raises(error):
            mq.lookup.by_id("orders", inside)
        broker.refuse(QueryMessage.CODE, code, text)
        with pytest.raises(error):
            mq.lookup.by_key("orders", "k")
    broker.tamper = lambda asked, answer: _with_body(answer, answer.body[:-1])
    with pytest.raises(CorruptRecord):
        mq.lookup.by_key("orders", "k")
    broker.tamper = lambda asked, answer: _with_body(answer, b"[")
    with pytest.raises(ProtocolError, match="an answer in which"):
        mq.topics.settings("orders")


def _with_body(answer: RemotingCommand, body: bytes) -> RemotingCommand:
    return replace(answer, body=body)
