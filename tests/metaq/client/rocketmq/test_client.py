"""``RocketMQ`` against a scripted cluster: what is sent comes back, and what cannot be done is said."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from forked import in_child

import metaq
from metaq.backends.rocketmq.errors import OffsetOutOfRange
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.groups.options import RocketOptions
from metaq.client.rocketmq.records import RocketMessage
from metaq.errors import SendFailed, TopicNotFound
from metaq.model import Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE
from metaq.testing.rocketmq_server import ScriptedCluster

FIRST, SECOND = Partition("broker-a", 0), Partition("broker-a", 1)


@pytest.fixture
def mq(cluster: ScriptedCluster) -> Iterator[RocketMQ]:
    with RocketMQ(";".join(map(str, cluster.name_servers))) as mq:
        yield mq


def test_the_package_exports_the_client() -> None:
    assert metaq.RocketMQ is RocketMQ


@pytest.mark.parametrize("servers", ["", "nowhere", "host:0", "host:1;;host:x"])
def test_name_servers_that_are_no_addresses_are_refused(servers: str) -> None:
    with pytest.raises(ValueError, match="name server"):
        RocketMQ(servers)


def test_groups_that_no_broker_takes_are_refused() -> None:
    with RocketMQ("127.0.0.1:9876") as mq, RocketMQ("127.0.0.1:9876", namespace="n" * 10) as named:
        mq.consumer("g" * 193, ["t"])
        named.consumer("g" * 182, ["t"])
        mq.producer(group="g" * 255)
        with pytest.raises(ValueError, match=r"the name has 194 bytes in UTF-8, brokers accept 193"):
            mq.consumer("\u00e9" * 97, ["t"])
        with pytest.raises(ValueError, match="the name has 194 bytes in UTF-8 with its namespace, brokers accept 193"):
            named.consumer("g" * 183, ["t"])
        with pytest.raises(ValueError, match="the name has 256 bytes in UTF-8, brokers accept 255"):
            mq.producer(group="g" * 256)
        with pytest.raises(ValueError, match="not valid Unicode"):
            mq.consumer("\udc80", ["t"])


def test_a_message_comes_back_with_everything(mq: RocketMQ) -> None:
    sent = mq.producer().send(
        "orders", "one tea", tag="hot", keys=["k1", "k2"], properties={"price": "3"}, partition=SECOND
    )
    (message,) = mq.browse("orders")
    assert (sent.partition, sent.offset, sent.is_durable) == (SECOND, 0, True)
    assert (message.partition, message.offset, message.end) == (SECOND, 0, 1)
    assert (message.message_id, message.offset_message_id) == (sent.message_id, sent.offset_message_id)
    assert (message.data, message.tag, message.attribute) == (b"one tea", "hot", "hot")
    assert message.keys == ("k1", "k2")
    assert message.properties["price"] == "3"
    assert b"one tea" not in repr(message).encode()
    assert message.timestamp_ms > 0
    assert message.born_host.startswith("127.0.0.1:")


def test_many_messages_keep_their_order_in_each_queue(mq: RocketMQ) -> None:
    data = [f"{number}".encode() for number in range(5000)]
    sent = mq.producer().send_many("orders", data)
    assert len({one.message_id for one in sent}) == len(data)
    found = {(one.partition, one.offset): one for one in mq.browse("orders")}
    assert [found[one.partition, one.offset].data for one in sent] == data
    assert [found[one.partition, one.offset].message_id for one in sent] == [one.message_id for one in sent]
    assert {one.partition for one in sent} == {FIRST, SECOND}


def test_one_key_goes_to_one_queue(mq: RocketMQ) -> None:
    producer = mq.producer()
    sent = [producer.send("orders", "x", key=key) for key in ("a", "b", "a", "b", "a")]
    assert len({one.partition for one in sent[::2]}) == 1


def test_a_partitioner_of_the_caller_chooses(mq: RocketMQ) -> None:
    sent = mq.producer(fixed(1)).send_many("orders", ["x"] * 3)
    assert {one.partition for one in sent} == {SECOND}


def test_delayed_messages_are_sent_with_their_level(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    mq.producer(fixed(0)).send_many("orders", ["now", RocketMessage(data="then", delay_level=3), "at last"])
    sends = [one for one in cluster.broker().requests if one.code in (310, 320)]
    assert [one.code for one in sends] == [320, 310, 320]
    assert "DELAY\x013" in sends[1].ext["i"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tag": "a|b"}, r"tag 'a\|b'"),
        ({"tag": ""}, "tag ''"),
        ({"keys": "k"}, "keys 'k': expected a list"),
        ({"keys": ["a b"]}, "key 'a b'"),
        ({"properties": {"TAGS": "x"}}, "property 'TAGS'"),
        ({"properties": {"p": ""}}, "property p"),
        ({"delay_level": 19}, r"delay level 19: expected 0\.\.18"),
        ({"partition": Partition("broker-a", 9)}, "queue broker-a:9: orders has broker-a:0, broker-a:1"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    cluster: ScriptedCluster, mq: RocketMQ, given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        mq.producer().send("orders", "x", **given)  # type: ignore[arg-type]
    assert not any(one.code in (310, 320) for one in cluster.broker().requests)


def test_data_that_is_neither_bytes_nor_text_is_refused(mq: RocketMQ) -> None:
    with pytest.raises(TypeError, match="data: expected bytes or a text, got int"):
        mq.producer().send("orders", 3)  # type: ignore[arg-type]


def test_a_body_above_the_limit_is_refused(mq: RocketMQ) -> None:
    with pytest.raises(ValueError, match="message 1: the body has"):
        mq.producer().send_many("orders", [b"x", bytes(16 << 20)])


def test_a_refused_batch_says_what_was_acknowledged(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    producer = mq.producer()
    big = bytes(400 << 10)
    producer.send("orders", "first", partition=FIRST)
    cluster.broker().refuse(SEND_BATCH_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, "no", times=1)
    with pytest.raises(SendFailed, match="of 4 messages were acknowledged") as caught:
        producer.send_many("orders", [big] * 4, keys=None, partition=SECOND)
    assert all(one is None for one in caught.value.sent)
    assert producer.send("orders", "again", partition=SECOND).partition == SECOND


def test_a_new_topic_is_made_where_brokers_allow_it(mq: RocketMQ) -> None:
    sent = mq.producer().send("new", "x")
    assert sent.offset == 0
    assert [one.data for one in mq.browse("new")] == [b"x"]


def test_an_unknown_topic_is_named(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    del cluster.broker().store.topics["TBW102"]
    with pytest.raises(TopicNotFound, match="nothing"):
        mq.producer().send("nothing", "x")
    with pytest.raises(TopicNotFound, match="nothing"):
        list(mq.browse("nothing"))


def test_browsing_starts_where_it_is_asked_to(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.append("orders", FIRST, [b"a", b"b"], store_ms=1000)
    cluster.append("orders", FIRST, [b"c"], store_ms=5000)
    cluster.append("orders", SECOND, [b"d"], store_ms=1000)
    assert [one.data for one in mq.browse("orders", start={FIRST: 1})] == [b"b", b"c", b"d"]
    assert [one.data for one in mq.browse("orders", start=2000)] == [b"c"]
    assert [one.data for one in mq.browse("orders", start="latest")] == []
    assert [one.data for one in mq.browse("orders", partitions=[SECOND])] == [b"d"]


def test_browsing_ends_where_it_is_asked_to(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.append("orders", FIRST, [b"a", b"b"], store_ms=1000)
    cluster.append("orders", FIRST, [b"c"], store_ms=5000)
    cluster.append("orders", SECOND, [b"d"], store_ms=1000)
    assert [one.data for one in mq.browse("orders", end={FIRST: 1})] == [b"a", b"d"]
    assert [one.data for one in mq.browse("orders", start={FIRST: 1}, end=2000)] == [b"b", b"d"]
    assert [one.data for one in mq.browse("orders", end={FIRST: 0, SECOND: 99})] == [b"d"]
    with pytest.raises(ValueError, match="has no queue broker-a:7"):
        list(mq.browse("orders", end={Partition("broker-a", 7): 0}))
    with pytest.raises(ValueError, match="end and follow"):
        mq.browse("orders", end=5, follow=True)


def test_wrong_starts_ends_and_queues_are_named_before_anything_is_asked(mq: RocketMQ) -> None:
    for options in ({"start": "newest"}, {"start": datetime(2024, 1, 1)}, {"start": {"broker-a:0": 0}}):
        with pytest.raises(ValueError, match=r"start .*: expected 'earliest', 'latest', ms since 1970, a datetime"):
            mq.browse("orders", **options)
    with pytest.raises(ValueError, match="end 'latest': expected ms since 1970"):
        mq.browse("orders", end="latest")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="partition 'broker-a:0': expected a Partition, such as"):
        mq.browse("orders", partitions=["broker-a:0"])  # type: ignore[list-item]
    for call in (mq.producer().send, mq.producer().submit):
        with pytest.raises(TypeError, match=r"partition \('broker-a', 0\): expected a Partition, such as"):
            call("orders", "x", partition=("broker-a", 0))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="topic None: expected a text"):
            call(None, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="messages: expected a list of messages, got str; send takes one"):
        mq.producer().send_many("orders", "abc")


def test_a_forked_producer_gives_ids_of_its_own(mq: RocketMQ) -> None:
    """Two children would otherwise give the same id in the same millisecond."""
    producer = mq.producer()
    first = producer.send("orders", "parent").message_id

    def sends() -> bool:
        return producer.send("orders", "child").message_id[:20] != first[:20]

    with producer._sender._lock:  # a thread of the parent may have it
        assert in_child(sends)
    assert producer.send("orders", "parent").message_id[:20] == first[:20]

    def forks() -> bool:
        own = producer.send("orders", "child").message_id
        return in_child(lambda: producer.send("orders", "grandchild").message_id[:20] not in (first[:20], own[:20]))

    assert in_child(forks)


def test_browsing_follows(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.append("orders", FIRST, [b"a"])
    messages = iter(browser := mq.browse("orders", follow=True))
    assert next(messages).data == b"a"
    cluster.append("orders", SECOND, [b"b"])
    assert next(messages).data == b"b"
    assert browser.positions == {FIRST: 1, SECOND: 1}


def test_browsing_filters_by_tags(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    for tag in ("hot", "cold", "hot", "other"):
        cluster.append("orders", FIRST, [tag.encode()], tag=tag)
    browser = mq.browse("orders", tags="hot || cold")
    assert [one.data for one in browser] == [b"hot", b"cold", b"hot"]
    assert browser.positions[FIRST] == 4
    with pytest.raises(ValueError, match="tags and sql"):
        mq.browse("orders", tags="hot", sql="a > 1")


@pytest.mark.parametrize("tags", ["*", "", " * "])
def test_tags_of_all_messages_do_not_contradict_sql(tags: str, mq: RocketMQ) -> None:
    assert mq.browse("orders", tags=tags, sql="a > 1").positions == {}
    options = RocketOptions(group="g", topics=["orders"], tags=tags, sql="a > 1")
    assert options.subscription() == Subscription("a > 1", "SQL92")


def test_offsets_outside_the_queue_are_named(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.append("orders", FIRST, [b"a", b"b", b"c"])
    cluster.remove_below("orders", FIRST, 2)
    with pytest.raises(OffsetOutOfRange, match="older messages were removed"):
        list(mq.browse("orders", start={FIRST: 0}))
    with pytest.raises(OffsetOutOfRange, match="not 9"):
        list(mq.browse("orders", start={FIRST: 9}))
    with pytest.raises(ValueError, match="no queue broker-a:7; it has broker-a:0, broker-a:1"):
        list(mq.browse("orders", partitions=[Partition("broker-a", 7)]))


def test_the_cluster_is_described(cluster: ScriptedCluster, mq: RocketMQ) -> None:
    cluster.append("orders", FIRST, [b"a", b"b"], store_ms=1000)
    view = mq.cluster
    assert view.topics() == {"orders": [FIRST, SECOND]}
    assert view.brokers() == {"broker-a": cluster.broker().address()}
    assert [(one.partition, one.start, one.end, one.messages) for one in view.describe("orders")] == [
        (FIRST, 0, 2, 2),
        (SECOND, 0, 0, 0),
    ]
    assert view.offsets_at("orders", 500) == {FIRST: 0, SECOND: 0}
    (first, second) = view.lag("billing", ["orders"])
    assert (first.position, first.end, first.messages_behind) == (0, 2, 2)  # as a broker says of a new group
    assert second.messages_behind == 0
    with pytest.raises(ValueError, match="name its topics"):
        view.lag("billing")
    assert view.lag("billing", []) == []
