"""Servers that lie, records that are damaged, accounts that are refused: one sentence, and the rest goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from metaq_harness import offsets
from rocketmq_harness import RocketMQHarness

from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused, RouteUnusable, TopicListMissing
from metaq.errors import MetaqError, TopicNotFound
from metaq.formats.rocketmq.records import encode_record, read_records
from metaq.formats.rocketmq.sys_flags import INNER_BATCH, NEED_UNWRAP
from metaq.model import Partition, TopicPartition
from metaq.protocols.remoting.acl import Credentials
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq_spark.backends.rocketmq.cluster import Cluster
from metaq_spark.backends.rocketmq.lag_lookup import LagLookup
from metaq_spark.backends.rocketmq.options import parse_server_options
from metaq_spark.columns import engine
from metaq_spark.columns.rocketmq.checks import UnusableRecord
from metaq_spark.errors import DataLoss, OptionError, ReadFailed
from metaq_spark.offsets import Progress

Change = Callable[[bytes], bytes]


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    with RocketMQHarness() as harness:
        yield harness


def tampered(harness: RocketMQHarness, change: Change, of: bytes = b"bad") -> None:
    """Change the record with a body in every answer that has it."""

    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code != PullMessage.CODE or of not in response.body:
            return response
        records, at = [], 0
        while at < len(response.body):
            size = int.from_bytes(response.body[at : at + 4])
            record = response.body[at : at + size]
            records.append(change(record) if of in record else record)
            at += size
        return replace(response, body=b"".join(records))

    for name in ("broker-a", "broker-b"):
        harness.cluster.broker(name).tamper = tamper


DAMAGE = {
    "checksum": lambda record: record.replace(b"bad", b"BAD"),
    "another topic": lambda record: record.replace(b"orders", b"orderz"),
    "another queue": lambda record: record[:12] + (9).to_bytes(4) + record[16:],
    "magic": lambda record: record[:4] + b"\0\0\0\1" + record[8:],
    "cut": lambda record: record[:-5],
    "lengths contradict": lambda record: (7).to_bytes(4) + record[4:],
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_record_fails_the_query_with_its_place(harness: RocketMQHarness, reason: str) -> None:
    harness.put("a0", b"one", b"bad", b"three")
    tampered(harness, DAMAGE[reason])
    with pytest.raises(UnusableRecord, match=f"corrupt record in orders/broker-a:0 at queue offset 1: .*{reason}"):
        harness.batch()


def test_a_record_that_is_damaged_at_a_replaced_master_only_is_read(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put("a0", b"one", b"bad", b"three")
    tampered(harness, DAMAGE["checksum"])

    def route_is_forgotten() -> None:
        harness.cluster.broker("broker-a").tamper = None

    monkeypatch.setattr(harness.directory, "invalidate", route_is_forgotten)
    assert [row["value"] for row in harness.batch(onCorrupt="skip")] == [b"one", b"bad", b"three"]


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_record_is_passed_over_or_set_aside(
    harness: RocketMQHarness, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.put("a0", b"one", b"bad", b"three")
    harness.put("b1", b"other")
    tampered(harness, DAMAGE[reason])
    skipped = harness.batch(onCorrupt="skip")
    assert [row["value"] for row in skipped] == [b"one", b"three", b"other"]
    assert "corrupt record in orders/broker-a:0 at queue offset 1" in caplog.text
    kept = harness.batch(onCorrupt="deadletter", deadLetterTopic="out")
    assert [row["value"] for row in kept] == [b"one", b"three", b"other"]
    for name in ("broker-a", "broker-b"):
        harness.cluster.broker(name).tamper = None
    ((letter,),) = harness.stored("out").values()
    properties = dict(letter["properties"])
    assert (properties["origin_topic"], properties["origin_queue"], properties["origin_offset"]) == (
        "orders", "broker-a:0", "1"
    )  # fmt: skip
    assert reason in properties["reason"]
    assert letter["value"]


def test_a_letter_without_an_acknowledgement_is_not_called_refused(harness: RocketMQHarness) -> None:
    harness.put("a0", b"one", b"bad", b"three")
    tampered(harness, DAMAGE["checksum"])
    options = {"onCorrupt": "deadletter", "deadLetterTopic": "out", "retries": "0"}
    brokers = [harness.cluster.broker(name) for name in ("broker-a", "broker-b")]
    for broker in brokers:
        broker.disconnect(SendMessage.CODE, times=1000)
    with pytest.raises(ReadFailed, match=r"1 messages for out/.* were not sent: .*the server closed the connection"):
        harness.batch(**options)
    for broker in brokers:
        broker.obey()
        broker.refuse(SendMessage.CODE, ResponseCode.MESSAGE_ILLEGAL, "too long", times=1000)
    with pytest.raises(OptionError, match=r"deadLetterTopic.*that could not be stored: .*too long"):
        harness.batch(**options)


@pytest.mark.parametrize("options", [{"tags": "t"}, {"compactedTopics": "true"}])
@pytest.mark.parametrize("reason", sorted(DAMAGE.keys() - {"cut"}))  # its properties would reach into the next one
def test_a_damaged_record_among_messages_with_gaps_hides_none_behind_it(
    harness: RocketMQHarness, reason: str, options: dict[str, str]
) -> None:
    harness.put("a0", b"one", b"bad", b"three", b"four", tag="t")
    tampered(harness, DAMAGE[reason])
    with pytest.raises(UnusableRecord, match=f"corrupt record in orders/broker-a:0 at queue offset 1: .*{reason}"):
        harness.batch(**options)
    assert [row["value"] for row in harness.batch(**options, onCorrupt="skip")] == [b"one", b"three", b"four"]


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which loops decode."""
    left = 0 if request.param == "compiled" else 1 << 40
    monkeypatch.setattr(engine.shared_engine(), "_plain_bytes_left", left)
    return str(request.param)


def kept_as_one_record(harness: RocketMQHarness) -> None:
    """Let brokers keep the messages at the offsets 1 to 3 as RocketMQ 5 keeps a batch in a batch consume queue: as one
    record with the offset of the first, which is what any of the three offsets leads to."""
    batches: dict[str, bytes] = {}

    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code != PullMessage.CODE or not response.body:
            return response
        records = list(read_records(response.body))
        if (first := next((each for each in records if each.queue_offset == 1), None)) is not None:
            batches["it"] = encode_record(
                first._replace(sys_flag=INNER_BATCH | NEED_UNWRAP, properties=b"INNER_NUM\x013\x02INNER_BASE\x011\x02")
            )
        parts = [encode_record(each) for each in records if each.queue_offset not in (1, 2, 3)]
        if any(1 <= each.queue_offset <= 3 for each in records):
            parts.insert(sum(each.queue_offset < 1 for each in records), batches["it"])
        return replace(response, body=b"".join(parts))

    harness.cluster.broker("broker-a").tamper = tamper


@pytest.mark.parametrize("options", [{}, {"minPartitions": "6"}, {"pullMessages": "1"}, {"compactedTopics": "true"}])
def test_a_batch_that_is_kept_as_one_record_is_passed_over_as_a_whole(
    harness: RocketMQHarness, options: dict[str, str], loops: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.put("a0", b"one", b"", b"", b"", b"five", b"six")
    kept_as_one_record(harness)
    with pytest.raises(UnusableRecord, match="a batch of messages"):
        harness.batch(**options)
    assert [row["value"] for row in harness.batch(**options, onCorrupt="skip")] == [b"one", b"five", b"six"]
    assert "removed" not in caplog.text
    if not options:
        assert "orders/broker-a:0 at queue offsets 1 to 3: its body is a batch of messages" in caplog.text


@pytest.mark.parametrize("start", [2, 3])
def test_a_read_that_begins_within_a_batch_that_is_kept_as_one_record(
    harness: RocketMQHarness, start: int, loops: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.put("a0", b"one", b"", b"", b"", b"five", b"six")
    harness.batch()
    kept_as_one_record(harness)
    harness.batch(onCorrupt="skip")
    others = dict.fromkeys(("broker-a:1", "broker-b:0", "broker-b:1"), -2)
    from_there = {"startingOffsets": json.dumps({"orders": {"broker-a:0": start} | others})}
    with pytest.raises(UnusableRecord, match=f"at queue offset.* {start}.*a batch of messages"):
        harness.batch(**from_there)
    kept = harness.batch(**from_there, onCorrupt="deadletter", deadLetterTopic="out")
    assert [row["value"] for row in kept] == [b"five", b"six"]
    ((letter,),) = harness.stored("out").values()
    assert dict(letter["properties"])["origin_offset"] == str(start)


def test_a_broker_that_is_stuck_at_an_offset(harness: RocketMQHarness) -> None:
    harness.put("a0", *[b"x"] * 10)

    def stuck(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code != PullMessage.CODE:
            return response
        ext = {**response.ext, "nextBeginOffset": command.ext["queueOffset"]}
        return replace(response, code=ResponseCode.PULL_RETRY_IMMEDIATELY, ext=ext, body=b"")

    harness.cluster.broker("broker-a").tamper = stuck
    with pytest.raises(
        ReadFailed, match=r"orders/broker-a:0 could not be read from offset 0 on: .*offset 0 to go on at"
    ):
        harness.batch()


def test_messages_that_are_missing_between_others(harness: RocketMQHarness, caplog: pytest.LogCaptureFixture) -> None:
    harness.put("a0", b"one", b"bad", b"three")
    tampered(harness, lambda record: b"")
    with pytest.raises(DataLoss, match="orders"):
        harness.batch()
    kept = harness.batch(failOnDataLoss="false")
    assert [row["value"] for row in kept] == [b"one", b"three"]
    assert [row["value"] for row in harness.batch(compactedTopics="true")] == [b"one", b"three"]


@pytest.mark.parametrize("is_v5", [False, True])
def test_accounts(is_v5: bool) -> None:
    with RocketMQHarness(is_v5=is_v5) as harness:
        harness.put("a0", b"one")
        right = Credentials("reader", "the-secret")
        for script in (
            harness.cluster.name_server,
            harness.cluster.broker("broker-a"),
            harness.cluster.broker("broker-b"),
        ):
            script.credentials = right
        with pytest.raises(AccessDenied, match="check accessKey and secretKey"):
            harness.batch()
        harness.restart(Credentials("reader", "wrong-secret"))
        with pytest.raises(AccessDenied) as caught:
            harness.batch()
        assert "secret" not in str(caught.value).replace("secretKey", "")
        harness.restart(right)
        assert [row["value"] for row in harness.batch()] == [b"one"]
        harness.cluster.broker("broker-a").denied = frozenset({PullMessage.CODE})
        with pytest.raises((AccessDenied, ReadFailed), match="SUB"):
            harness.batch()


def test_what_is_not_there(harness: RocketMQHarness) -> None:
    with pytest.raises(TopicNotFound, match=r"topic 'nope' does not exist on [^;]*$"):
        harness.batch(subscribe="nope")
    with pytest.raises(TopicNotFound, match="topic 'nope'"):
        harness.stream(subscribe="nope").initialOffset()
    with pytest.raises(TopicNotFound, match="topic 'nowhere'"):
        harness.batch(onCorrupt="deadletter", deadLetterTopic="nowhere")
    missing = "topic 'orders' has no queue broker-a:9; there is broker-a:0, broker-a:1, broker-b:0, broker-b:1"
    with pytest.raises(OptionError, match=missing):
        harness.batch(assign='{"orders": ["broker-a:0", "broker-a:9"]}')
    missing = "no value for orders/broker-a:1, orders/broker-b:0, orders/broker-b:1; expected one for every"
    with pytest.raises(OptionError, match=missing):
        harness.batch(startingOffsets='{"orders": {"broker-a:0": 0}}')


def test_a_name_server_that_lists_no_topics(harness: RocketMQHarness) -> None:
    harness.cluster.name_server.refuse(None, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not here", times=1)
    with pytest.raises(TopicListMissing, match=r"does not list topics .*; name them with subscribe or assign"):
        harness.batch(subscribePattern="ord.*")


@pytest.mark.parametrize(
    ("found", "instead"),
    [(b'"readQueueNums":2', b'"readQueueNums":99999999'), (b"127.0.0.1:", b"nowhere at all:")],
)
def test_a_name_server_that_lies(harness: RocketMQHarness, found: bytes, instead: bytes) -> None:
    def lie(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        return replace(response, body=response.body.replace(found, instead))

    harness.cluster.name_server.tamper = lie
    with pytest.raises(MetaqError, match="unusable route for topic") as caught:
        harness.batch(retries="0")
    assert "orders" in str(caught.value)
    assert isinstance(caught.value, RouteUnusable) or "unusable route" in str(caught.value)


def test_more_queues_than_there_are(harness: RocketMQHarness) -> None:
    """A route that names queues which no broker has: they are empty."""
    harness.put("a0", b"one")

    def lie(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        return replace(response, body=response.body.replace(b'"readQueueNums":2', b'"readQueueNums":5'))

    harness.cluster.name_server.tamper = lie
    assert [row["value"] for row in harness.batch()] == [b"one"]


def test_sql_that_the_broker_does_not_read(harness: RocketMQHarness) -> None:
    harness.put("a0", b"one")
    with pytest.raises((ReadFailed, RequestRefused), match="SQL92"):
        harness.batch(sql="price >")


# ---- where a read begins and ends, and how it is cut


def test_times(harness: RocketMQHarness) -> None:
    for number in range(5):
        harness.put("a0", b"%d" % number, store_ms=1_700_000_000_000 + 1000 * number)
    queues = "broker-a:1, broker-b:0, broker-b:1"
    with pytest.raises(OptionError, match=re.escape(queues.replace("broker", "orders/broker"))):
        harness.batch(startingTimestamp="1700000002500")
    found = harness.batch(
        startingTimestamp="1700000001500", endingTimestamp="1700000004000",
        startingOffsetsByTimestampStrategy="latest",
    )  # fmt: skip
    assert [row["value"] for row in found] == [b"2", b"3"]


def test_splits_and_joined_ranges(harness: RocketMQHarness) -> None:
    from metaq_spark.options.table import Use
    from metaq_spark.source.batch_reader import BatchReader

    harness.put("a0", *(b"%03d" % n for n in range(300)))
    harness.put("b0", b"x")
    harness.put("b1", b"y")
    for given, count in (({}, 1), ({"minBytesPerPartition": "1"}, 3), ({"minPartitions": "8"}, 8)):
        reader = BatchReader(harness.source(Use.BATCH_READ, **given))
        tasks = reader.partitions()
        assert count <= len(tasks) <= count + 1, given
        values = [row["value"] for row in harness.rows(reader, tasks)]
        assert values == [*(b"%03d" % n for n in range(300)), b"x", b"y"]


def test_limits(harness: RocketMQHarness) -> None:
    harness.put("a0", *[b"x" * 100] * 100)
    harness.put("b1", *[b"y" * 100] * 50)
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    position, read = harness.micro_batch(reader, reader.initialOffset())
    assert len(read) == 30
    assert offsets(position) == {"broker-a:0": 20, "broker-a:1": 0, "broker-b:0": 0, "broker-b:1": 10}
    reader = harness.stream(startingOffsets="earliest", maxBytesPerTrigger="7500")
    position, read = harness.micro_batch(reader, reader.initialOffset())
    assert 20 <= len(read) <= 45


def test_names_in_a_namespace() -> None:
    with RocketMQHarness(namespace="shop") as harness:
        for topic in ("shop%orders", "other%orders"):
            harness.cluster.create_topic(topic, queues=1)
            harness.put("a0", topic.encode(), topic=topic)
        (row,) = harness.batch(subscribePattern="ord.*")
        assert (row["topic"], row["value"]) == ("orders", b"shop%orders")


def test_a_pattern_finds_topics_that_come_later(harness: RocketMQHarness) -> None:
    reader = harness.stream(subscribePattern="or.*|new", startingOffsets="latest")
    position, _ = harness.drained(reader)
    harness.cluster.create_topic("new", queues=1, broker="broker-b")
    harness.put("b0", b"first", topic="new")
    harness.directory.invalidate()
    assert harness.drained(reader, position)[1] == [b"first"]


@pytest.mark.since("4.1")
def test_filters_that_are_pushed_down(harness: RocketMQHarness) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    from metaq_spark.options.table import Use
    from metaq_spark.source.pushdown import PushdownReader

    harness.put("a0", *(b"%d" % n for n in range(9)), tag="red")
    harness.put("a1", b"blue", tag="blue")
    reader = PushdownReader(harness.source(Use.BATCH_READ, pushFilters="true"))
    left = reader.pushFilters(
        [EqualTo(("queue_id",), 0), EqualTo(("tags",), "red"), GreaterThanOrEqual(("queue_offset",), 6)]
    )
    assert len(list(left)) == 1  # offsets are checked again by Spark
    assert [row["value"] for row in harness.rows(reader, reader.partitions())] == [b"6", b"7", b"8"]
    assert Partition("broker-a", 0).broker_name == "broker-a"


@pytest.mark.parametrize(
    "change", [lambda r: bytes(4) + r[4:], lambda r: (-9).to_bytes(4, signed=True) + r[4:], lambda r: r[:50]]
)
def test_a_lag_is_known_although_the_first_unread_record_is_damaged(harness: RocketMQHarness, change: Change) -> None:
    harness.put("a0", b"bad", b"two")
    tampered(harness, change)
    options = parse_server_options(harness.raw({}))
    cluster = Cluster(options, harness.pool, harness.directory)
    queue = TopicPartition("orders", Partition("broker-a", 0))
    (lag,) = LagLookup(options, cluster).lags(Progress({queue: 0}))
    assert (lag.messages, lag.seconds) == (2, None)
