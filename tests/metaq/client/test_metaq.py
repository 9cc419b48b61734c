"""``MetaQ``, its producer, browser and view of the cluster, against brokers in memory."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from fix_client import TIMEOUTS, MemoryCluster

import metaq
from metaq.client.browser import Browser, Start
from metaq.client.cluster import ClusterView
from metaq.client.metaq import MetaQ
from metaq.client.producer import Producer
from metaq.client.records import Received
from metaq.client.sending.blocks import BLOCK_BYTES_MAX
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import ConnectionFailed, ExtensionMissing, OffsetMoved, SendFailed, TopicNotFound
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Message, Partition
from metaq.protocols.text.commands import Command, Put, PutBatch
from metaq.testing.memory import MemoryBroker

P00, P01, P10 = Partition(0, 0), Partition(0, 1), Partition(1, 0)


class Two:
    """Two brokers: the first has two partitions of "orders", the second one."""

    def __init__(self) -> None:
        self.brokers = MemoryBroker({"orders": 2}), MemoryBroker({"orders": 1}, broker_id=1)
        self.cluster = MemoryCluster(*self.brokers)
        self.directory = FixedDirectory(self.cluster.addresses, self.cluster.pool)
        self.producer = Producer(self.directory, self.cluster.pool)

    def browse(
        self, topic: str = "orders", partitions: list[Partition] | None = None, start: Start = "earliest"
    ) -> list[Received]:
        return list(Browser(self.directory, self.cluster.pool, topic, partitions=partitions, start=start))

    @property
    def view(self) -> ClusterView:
        return ClusterView(self.directory, self.cluster.pool, None, TIMEOUTS)


@pytest.fixture
def two() -> Two:
    return Two()


def test_the_package_exports_it() -> None:
    assert metaq.MetaQ is MetaQ
    assert repr(MetaQ("127.0.0.1:8123")) == "MetaQ('127.0.0.1:8123')"
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        metaq.Kafka  # noqa: B018


@pytest.mark.parametrize("cluster", ["", "host", "host:0", "a:1,,b:2", "zk://", "zk://host:x/meta", "http://h:1"])
def test_a_wrong_cluster_is_named(cluster: str) -> None:
    with pytest.raises(ValueError, match="expected host:port") as refused:
        MetaQ(cluster)
    assert repr(cluster) in str(refused.value)


def test_a_cluster_may_be_a_list_of_brokers() -> None:
    assert repr(MetaQ(brokers=["a:1", "b:2"])) == repr(MetaQ("a:1,b:2")) == "MetaQ('a:1,b:2')"
    assert repr(metaq.AsyncMetaQ(brokers=["a:1"])) == "AsyncMetaQ('a:1')"
    for given in ({}, {"cluster": "a:1", "brokers": ["b:1"]}):
        with pytest.raises(ValueError, match="cluster and brokers: expected one of them"):
            MetaQ(**given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"brokers 'a:1': expected a list, such as"):
        MetaQ(brokers="a:1")
    with pytest.raises(TypeError, match=r"cluster \['a:1'\]: expected a text such as"):
        MetaQ(["a:1"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cluster '': expected host:port"):
        MetaQ(brokers=[])


def test_sent_messages_come_back_from_where_they_were_stored(two: Two) -> None:
    sent = [two.producer.send("orders", text, attribute="new") for text in ("a", "bb", "ccc", "dddd")]
    assert [one.partition for one in sent] == [P00, P01, P10, P00]
    received = {(one.partition, one.offset): one for one in two.browse()}
    assert len(received) == 4
    for text, one in zip((b"a", b"bb", b"ccc", b"dddd"), sent, strict=True):
        message = received[one.partition, one.offset]
        assert (message.data, message.attribute, message.message_id) == (text, "new", one.message_id)
        assert "data" not in repr(message)


def test_many_messages_are_blocks_and_each_place_is_reported(two: Two) -> None:
    texts = [b"%05d" % number for number in range(5000)]
    sent = two.producer.send_many("orders", texts)
    puts = [command for broker in two.brokers for command in broker.commands if isinstance(command, PutBatch)]
    assert len(puts) == 6
    received = {(one.partition, one.offset): one for one in two.browse()}
    assert [received[one.partition, one.offset].data for one in sent] == texts
    assert [received[one.partition, one.offset].message_id for one in sent] == [one.message_id for one in sent]


def test_long_messages_go_alone(two: Two) -> None:
    sizes = [10, BLOCK_BYTES_MAX, 20, 2 * BLOCK_BYTES_MAX]
    sent = two.producer.send_many("orders", [b"x" * size for size in sizes], partition=P10)
    assert [one.offset for one in sent] == list(itertools.accumulate([0, *(HEADER_BYTES + size for size in sizes[:3])]))


def test_a_broker_without_blocks_gets_message_by_message() -> None:
    broker = MemoryBroker({"orders": 1}, extensions=frozenset())
    cluster = MemoryCluster(broker)
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    sent = Producer(directory, cluster.pool).send_many("orders", ["one", Message(b"two", "typed")])
    assert sum(isinstance(command, Put) for command in broker.commands) == 2
    found = list(Browser(directory, cluster.pool, "orders"))
    assert [(one.offset, one.message_id) for one in found] == [(one.offset, one.message_id) for one in sent]
    assert [(one.data, one.attribute) for one in found] == [(b"one", None), (b"two", "typed")]


def test_keys_and_partitions_choose(two: Two) -> None:
    keyed = two.producer.send_many("orders", ["1", "2", "3"], keys=["a", None, b"a"])
    assert keyed[0].partition == keyed[2].partition == two.producer.send("orders", "4", key="a").partition
    assert two.producer.send("orders", "5", partition=P01).partition == P01
    with pytest.raises(ValueError, match="partition 7-7: orders has 0-0, 0-1, 1-0"):
        two.producer.send("orders", "6", partition=Partition(7, 7))
    with pytest.raises(ValueError, match="keys: expected one for each of 2 messages, got 1"):
        two.producer.send_many("orders", ["a", "b"], keys=["k"])


def test_wrong_values_are_named_and_nothing_is_sent(two: Two) -> None:
    with pytest.raises(TypeError, match="data: expected bytes or a text, got int"):
        two.producer.send("orders", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="message: expected bytes or a text, got None"):
        two.producer.send_many("orders", ["a", None])  # type: ignore[list-item]
    with pytest.raises(TopicNotFound, match="topic 'nothing' does not exist"):
        two.producer.send("nothing", "a")
    with pytest.raises(TypeError, match="key: expected bytes or a text, got int"):
        two.producer.send("orders", "a", key=5)  # type: ignore[arg-type]
    for call in (two.producer.send, two.producer.submit):
        with pytest.raises(ValueError, match="data: the text cannot be written as UTF-8, surrogates not allowed"):
            call("orders", "\ud800")
    with pytest.raises(ValueError, match="attribute: the text cannot be written as UTF-8"):
        two.producer.send("orders", "a", attribute="\ud800")
    for messages in ("abc", b"abc"):
        with pytest.raises(TypeError, match=r"messages: expected a list of messages, got .*; send takes one"):
            two.producer.send_many("orders", messages)  # type: ignore[arg-type]
    for topic in (None, 5, b"orders"):
        with pytest.raises(TypeError, match=r"topic .*: expected a text, got"):
            two.producer.send(topic, "a")  # type: ignore[arg-type]
    assert two.producer.send_many("orders", []) == []
    assert not any(isinstance(command, Put | PutBatch) for broker in two.brokers for command in broker.commands)


def test_a_failure_reports_what_was_acknowledged(two: Two) -> None:
    def refuse(command: Command) -> None:
        if isinstance(command, Put | PutBatch):
            two.brokers[1].kill()

    two.brokers[1].before_command = refuse
    with pytest.raises(SendFailed, match=r"topic 'orders': 2 of 3 messages were acknowledged: .*:8124") as failed:
        two.producer.send_many("orders", ["a", "b", "c"])
    assert failed.value.retryable
    assert [one and one.partition for one in failed.value.sent] == [P00, P01, None]  # type: ignore[attr-defined]
    two.brokers[1].before_command = lambda command: None
    two.brokers[1].start()
    assert [one.partition for one in two.producer.send_many("orders", ["a", "b", "c"])] == [P00, P01, P10]


def test_reading_goes_on_from_positions(two: Two) -> None:
    two.producer.send_many("orders", ["a", "b", "c"])
    browser = Browser(two.directory, two.cluster.pool, "orders")
    assert {one.data for one in browser} == {b"a", b"b", b"c"}
    two.producer.send("orders", "d", partition=P01)
    assert [one.data for one in two.browse(start=browser.positions)] == [b"d"]
    assert two.browse(start="latest") == []
    assert [one.data for one in two.browse(partitions=[P10])] == [b"c"]


def test_following_reads_what_comes_later_and_new_partitions(two: Two) -> None:
    two.producer.send("orders", "a", partition=P00)
    following = iter(Browser(two.directory, two.cluster.pool, "orders", follow=True, clock=two.cluster.transport.clock))
    assert next(following).data == b"a"
    two.producer.send("orders", "b", partition=P10)
    assert next(following).data == b"b"


@pytest.mark.parametrize(
    ("start", "error", "says"),
    [
        ({P00: 5}, ValueError, "orders/0-0: no message begins at offset 5; one begins at 0"),
        ({P00: 999}, OffsetMoved, "nothing at offset 999"),
        ({Partition(3, 3): 0}, ValueError, "topic 'orders' has no partition 3-3; it has 0-0, 0-1, 1-0"),
        ("newest", ValueError, "start 'newest': expected 'earliest', 'latest', ms since 1970, a datetime with a time"),
        (datetime(2024, 1, 1), ValueError, "a datetime with a time zone"),
        ({"0-0": 0}, ValueError, "start {'0-0': 0}: expected"),
        (None, ValueError, "start None: expected"),
    ],
)
def test_wrong_starts(two: Two, start: Start, error: type[Exception], says: str) -> None:
    two.producer.send("orders", "abc", partition=P00)
    with pytest.raises(error, match=says):
        two.browse(start=start)


def test_wrong_ends_and_partitions_are_named_before_anything_is_asked(two: Two) -> None:
    for end in ("latest", -1, datetime(2024, 1, 1), {"0-0": 0}):
        with pytest.raises(ValueError, match=r"end .*: expected ms since 1970, a datetime with a time zone"):
            Browser(two.directory, two.cluster.pool, "orders", end=end)  # type: ignore[arg-type]
    for partition in ("0-0", (0, 0)):
        with pytest.raises(TypeError, match=r"partition .*: expected a Partition, such as"):
            two.browse(partitions=[partition])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"partition .*: expected a Partition, such as"):
            two.producer.send("orders", "x", partition=partition)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="topic None: expected a text, got NoneType"):
        two.browse(None)  # type: ignore[arg-type]


def test_a_start_and_an_end_may_be_moments(two: Two) -> None:
    two.producer.send("orders", "a")
    for moment, count in ((datetime(2000, 1, 1, tzinfo=UTC), 1), (datetime(2200, 1, 1, tzinfo=UTC), 0)):
        assert len(two.browse(start=moment)) == count
        assert len(list(Browser(two.directory, two.cluster.pool, "orders", end=moment))) == 1 - count


def test_a_topic_that_no_broker_has(two: Two) -> None:
    with pytest.raises(TopicNotFound, match="'nothing'"):
        two.browse("nothing")
    with pytest.raises(TopicNotFound, match="'nothing'"):
        two.view.describe("nothing")
    assert two.browse() == []  # accepted, and without messages


def test_the_view_describes_partitions(two: Two) -> None:
    two.producer.send_many("orders", ["a", "b"], partition=P00)
    described = [(one.partition, one.start, one.end, one.messages) for one in two.view.describe("orders")]
    assert described == [(P00, 0, 2 * HEADER_BYTES + 2, 2), (P01, 0, 0, 0), (P10, 0, 0, 0)]
    assert two.view.topics() == {"orders": [P00]}
    assert two.view.offsets_at("orders", 0) == {P00: 0}
    assert two.view.brokers() == dict(enumerate(two.cluster.addresses))
    with pytest.raises(ValueError, match=r"keeps no consumer groups.*zk://host:port/root"):
        two.view.groups()


def test_a_broker_without_extensions_keeps_no_counts_and_no_times() -> None:
    cluster = MemoryCluster(MemoryBroker({"orders": 1}, extensions=frozenset()))
    directory = FixedDirectory(cluster.addresses, cluster.pool)
    Producer(directory, cluster.pool).send("orders", "a")
    view = ClusterView(directory, cluster.pool, None, TIMEOUTS)
    assert [one.messages for one in view.describe("orders")] == [None]
    with pytest.raises(ExtensionMissing, match="starting at a time"):
        view.offsets_at("orders", 0)


def test_a_broker_that_is_away_is_an_error_that_names_it(two: Two) -> None:
    two.producer.send("orders", "a", partition=P00)
    two.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match=":8124"):
        two.view.topics()
