"""The sink of RocketMQ against a scripted cluster: where rows go, what is tried again, what fails the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from outages import when_waited_for
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from rocketmq_harness import RocketMQHarness, stream_task

from metaq.backends.rocketmq.errors import BatchNotStored
from metaq.errors import TopicNotFound
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import GetBrokerConfig
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage
from metaq_spark.backends.rocketmq.sink import RocketMQSink, SentMessages
from metaq_spark.errors import ColumnError, ExactlyOnceError, RowError
from metaq_spark.sink.backend import WriteTask
from metaq_spark.sink.task import write_batches
from metaq_spark.spark_version import arrow_type

TYPES = {
    "value": BinaryType(),
    "topic": StringType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "properties": MapType(StringType(), StringType()),
    "key": LongType(),
    "queue": IntegerType(),
    "delay_level": IntegerType(),
}


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    with RocketMQHarness() as harness:
        yield harness


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def batch_of(rows: list[dict[str, Any]], *names: str) -> pa.RecordBatch:
    types = pa.schema([(name, arrow_type(TYPES[name])) for name in names])
    return pa.RecordBatch.from_pylist(rows, schema=types)


def write(
    harness: RocketMQHarness,
    rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch | None = None,
    task: WriteTask | None = None,
    **options: str,
) -> SentMessages:
    names = [name for name in TYPES if any(name in row for row in rows)]
    sink = harness.sink(schema_of(*names), streaming=task is not None, **options)
    if task is not None:
        assert monkeypatch is not None
        monkeypatch.setattr(WriteTask, "current", lambda: task)
    written = write_batches([batch_of(rows, *names)], sink)
    assert isinstance(written, SentMessages)
    return written


def test_all_columns_arrive(harness: RocketMQHarness) -> None:
    row = {
        "value": b"payload",
        "tags": "red",
        "keys": ["k1", "k2"],
        "properties": {"color": "ä消息", "TAGS": "left out", "DELAY": "3"},
        "queue": 3,
    }
    assert write(harness, [row, {"value": b"bare", "queue": 0}]).message_count == 2
    stored = harness.stored()
    (message,) = stored["broker-b:1"]  # the fourth of the topic's queues
    assert (message["value"], message["tags"], message["keys"]) == (b"payload", "red", "k1 k2")
    properties = dict(message["properties"])
    assert properties.pop("UNIQ_KEY") == message["message_id"]
    assert properties.pop("CLUSTER", None) is not None
    assert properties == {"color": "ä消息", "TAGS": "red", "KEYS": "k1 k2"}
    (bare,) = stored["broker-a:0"]
    assert (bare["value"], bare["tags"], bare["keys"]) == (b"bare", None, None)


def test_a_key_always_goes_to_the_same_queue(harness: RocketMQHarness) -> None:
    for _ in range(2):
        write(harness, [{"value": b"%d" % n, "key": n} for n in range(40)])
    stored = harness.stored()
    assert len(stored) == 4
    for messages in stored.values():
        values = [message["value"] for message in messages]
        assert values[: len(values) // 2] == values[len(values) // 2 :]  # in order, and the same both times


def test_rows_name_their_topics(harness: RocketMQHarness) -> None:
    sink = harness.sink(schema_of("value", "topic"), topic="orders")
    assert sink.columns.topic is not None
    write(harness, [{"value": b"1", "topic": "orders"}, {"value": b"2", "topic": "out"}], topic="out")
    assert [row["value"] for rows in harness.stored().values() for row in rows] == [b"1", b"2"]  # the option counts


def test_a_message_with_a_delay_is_sent_alone(harness: RocketMQHarness) -> None:
    write(harness, [{"value": b"%d" % n, "queue": 0, "delay_level": n % 2} for n in range(4)])
    sends = harness.cluster.broker("broker-a").counts()
    assert (sends[SendMessage.CODE], sends[SEND_BATCH_MESSAGE]) == (2, 1)
    delayed = [row for row in harness.stored()["broker-a:0"] if "DELAY" in dict(row["properties"])]
    assert sorted(row["value"] for row in delayed) == [b"1", b"3"]


def test_a_large_message_is_sent_alone_and_small_ones_in_batches(harness: RocketMQHarness) -> None:
    write(harness, [{"value": bytes(3 << 20), "queue": 0}, {"value": b"small", "queue": 0}], blockBytes="1m")
    assert [len(row["value"]) for row in harness.stored()["broker-a:0"]] == [3 << 20, 5]
    write(harness, [{"value": b"x", "queue": 1}] * 25, blockMessages="10")
    counts = harness.cluster.broker("broker-a").counts()
    assert (counts[SendMessage.CODE], counts[SEND_BATCH_MESSAGE]) == (1, 1 + 3)


@pytest.mark.parametrize("code", [2, 14, 16, 17, 215])
def test_flow_control_is_tried_again(harness: RocketMQHarness, code: int) -> None:
    harness.cluster.broker("broker-a").refuse(SEND_BATCH_MESSAGE, code, times=2)
    write(harness, [{"value": b"1", "queue": 0}])
    assert [row["value"] for row in harness.stored()["broker-a:0"]] == [b"1"]


@pytest.mark.parametrize("code", [2, 14, 16, 17, 215])
def test_flow_control_that_does_not_end_fails_the_task(harness: RocketMQHarness, code: int) -> None:
    harness.cluster.broker("broker-a").refuse(SEND_BATCH_MESSAGE, code, "[OVERLOAD] too much", times=9)
    with pytest.raises(BatchNotStored, match=r"1 messages for out/broker-a:0 were not sent: .*OVERLOAD"):
        write(harness, [{"value": b"1", "queue": 0}], retries="3")
    assert harness.stored() == {}


def test_a_broker_that_always_hangs_up_fails_the_task(harness: RocketMQHarness) -> None:
    for _ in range(4):
        harness.cluster.broker("broker-a").disconnect(SEND_BATCH_MESSAGE)
    with pytest.raises(BatchNotStored, match=r"1 messages for out/broker-a:0 were not sent: .*closed the connection"):
        write(harness, [{"value": b"1", "queue": 0}], retries="3")
    assert harness.stored() == {}


def test_a_broker_that_restarts_while_a_task_writes_is_waited_for(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = harness.cluster.broker("broker-a")
    broker.disconnect(SEND_BATCH_MESSAGE, times=1 << 30, carried_out=True)
    rows = [{"value": b"%d" % n, "queue": 0} for n in range(50)]
    with when_waited_for(broker.obey) as said:
        write(harness, rows, monkeypatch, stream_task(batch=0), blockMessages="10", retries="1")
    assert {row["value"] for row in harness.stored()["broker-a:0"]} == {b"%d" % n for n in range(50)}
    assert said[0].startswith("broker 127.0.0.1:")


@pytest.mark.parametrize("topic", ["option", "column"])
def test_a_broker_that_has_left_the_route_when_a_batch_begins(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    row: dict[str, Any] = {"value": b"x", "queue": 0} | ({} if topic == "option" else {"topic": "solo"})
    options = {"topic": "solo"} if topic == "option" else {"topic": ""}
    harness.cluster.create_topic("solo", queues=1, broker="broker-a")
    for broker in ("broker-a", "broker-b"):  # the other one might offer to make the topic
        harness.cluster.stop_broker(broker)
    harness.restart()  # another process, which has never heard of the broker
    with pytest.raises(TopicNotFound, match="'solo'"):  # a wrong option looks the same
        write(harness, [row], monkeypatch, stream_task(batch=0), retries="1", **options)
    with when_waited_for(lambda: harness.cluster.start_broker("broker-a")) as said:
        write(harness, [row], monkeypatch, stream_task(batch=1), retries="1", **options)
    assert [row["value"] for row in harness.stored("solo")["broker-a:0"]] == [b"x"]
    assert "topic 'solo'" in said[0]


def test_the_end_of_a_task_waits_for_every_send(harness: RocketMQHarness) -> None:
    for name in ("broker-a", "broker-b"):
        harness.cluster.broker(name).latency_s = lambda command: 0.2
    assert write(harness, [{"value": b"%d" % n, "queue": n % 4} for n in range(100)]).message_count == 100
    assert sum(map(len, harness.stored().values())) == 100


def test_a_refused_message_among_others_fails_the_task(harness: RocketMQHarness) -> None:
    harness.cluster.broker("broker-b").refuse(SEND_BATCH_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, "too big")
    with pytest.raises(BatchNotStored, match=r"MESSAGE_ILLEGAL .*too big"):
        write(harness, [{"value": b"%d" % n, "queue": n} for n in range(4)])


@pytest.mark.parametrize(
    ("code", "name"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
def test_a_stored_message_with_less_durability_is_warned_of_once(
    harness: RocketMQHarness, caplog: pytest.LogCaptureFixture, code: int, name: str
) -> None:
    from dataclasses import replace

    harness.cluster.broker("broker-a").tamper = lambda command, response: (
        replace(response, code=code) if command.code == SEND_BATCH_MESSAGE else response
    )
    write(harness, [{"value": b"%d" % n, "queue": 0} for n in range(30)], blockMessages="10")
    assert len(harness.stored()["broker-a:0"]) == 30
    (reported,) = [record.message for record in caplog.records if "less durability" in record.message]
    assert name in reported


SECOND_COPY = '{"out": {"broker-a:0": 5, "broker-a:1": 0, "broker-b:0": 0, "broker-b:1": 0}}'


def test_lost_connections_write_twice_and_the_source_can_drop_that(harness: RocketMQHarness) -> None:
    broker = harness.cluster.broker("broker-a")
    broker.disconnect(SEND_BATCH_MESSAGE, carried_out=True)
    write(harness, [{"value": b"%d" % n, "queue": 0} for n in range(5)])
    values = [row["value"] for row in harness.stored()["broker-a:0"]]
    assert values == [b"0", b"1", b"2", b"3", b"4"] * 2
    kept = harness.batch(subscribe="out", dropRepeatedWithin="100", columns="value")
    assert list(kept) == [{"value": value} for value in values[:5]]
    assert len(harness.batch(subscribe="out", dropRepeatedWithin="4")) == 10  # the first ones are further away
    assert harness.batch(subscribe="out", dropRepeatedWithin="100", startingOffsets=SECOND_COPY) == []
    assert len(harness.batch(subscribe="out", startingOffsets=SECOND_COPY)) == 5


def damaged(response: RemotingCommand) -> RemotingCommand:
    return replace(response, body=response.body[:4] + b"\0\0\0\1" + response.body[8:])


def shorter(response: RemotingCommand) -> RemotingCommand:
    moved = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    return replace(response, code=ResponseCode.PULL_OFFSET_MOVED, ext=response.ext | moved, body=b"")


@pytest.mark.parametrize(
    ("old_master", "is_replaced", "repeated"),
    [(damaged, True, []), (shorter, True, []), (damaged, False, [0]), (shorter, False, [0, 1, 2, 3, 4])],
)
def test_repeats_of_messages_that_a_replaced_master_lacks(
    harness: RocketMQHarness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    old_master: Callable[[RemotingCommand], RemotingCommand],
    is_replaced: bool,
    repeated: list[int],
) -> None:
    broker = harness.cluster.broker("broker-a")
    broker.disconnect(SEND_BATCH_MESSAGE, carried_out=True)
    write(harness, [{"value": b"%d" % n, "queue": 0} for n in range(5)])

    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        is_first_copy = command.code == PullMessage.CODE and command.ext["queueOffset"] == "0" and response.body
        return old_master(response) if is_first_copy else response

    broker.tamper = tamper
    if is_replaced:
        monkeypatch.setattr(harness.directory, "invalidate", lambda: setattr(broker, "tamper", None))
    monkeypatch.setattr(harness.pool.clock, "sleep", lambda seconds: None)
    rows = harness.batch(subscribe="out", dropRepeatedWithin="100", startingOffsets=SECOND_COPY)
    assert [row["value"] for row in rows] == [b"%d" % number for number in repeated]
    assert ("what repeats messages before offset 5 is not dropped" in caplog.text) == (len(repeated) == 5)


def test_keys_are_those_of_the_row(harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"value": b"%d" % n, "key": n} for n in range(20)]
    for attempt in range(2):
        write(harness, rows, monkeypatch, stream_task(3, batch=7, attempt=attempt))
    once = {row["message_id"] for rows in harness.stored().values() for row in rows}
    assert len(once) == 20
    for other in (stream_task(2, batch=7), stream_task(3, batch=8), stream_task(3, query="q2", batch=7)):
        write(harness, rows, monkeypatch, other)
    assert len({row["message_id"] for rows in harness.stored().values() for row in rows}) == 80
    write(harness, rows)
    write(harness, rows)  # two batch writes are two writes
    assert len({row["message_id"] for rows in harness.stored().values() for row in rows}) == 120


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"value": None}, "row 1 of the input of task 0: column value is null"),
        ({"value": b"", "queue": 4}, "partition 4|queue 4"),
        ({"value": b"", "tags": "a\x01"}, "row 1 of the input of task 0: a tag, a key or a property has one of"),
        ({"value": b"", "delay_level": 20}, "row 1 of the input of task 0: delay_level is 20"),
        ({"value": b"", "properties": {"": "x"}}, "row 1 of the input of task 0: a property has an empty name"),
    ],
)
def test_rows_that_cannot_be_sent(harness: RocketMQHarness, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RowError, match=sentence):
        write(harness, [row])
    assert harness.stored() == {}


def test_what_is_refused_before_the_write(harness: RocketMQHarness) -> None:
    for name in ("broker-a", "broker-b"):  # no template: a topic is not made by a send
        del harness.cluster.broker(name).store.topics["TBW102"]
    with pytest.raises(TopicNotFound, match="nothing-there"):
        harness.sink(schema_of("value"), topic="nothing-there")
    with pytest.raises(ColumnError, match=r"a write has no such column; it takes value \(binary or string\), topic"):
        harness.sink(StructType([StructField("value", BinaryType()), StructField("attribute", StringType())]))
    with pytest.raises(ColumnError, match=r"column keys: type array<int> is not allowed; it must be array<string>"):
        harness.sink(StructType([StructField("value", BinaryType()), StructField("keys", ArrayType(IntegerType()))]))
    refused = r"broker 'broker-a' at 127.0.0.1:\d+ is not a metaq-broker.*no transactions over several messages"
    with pytest.raises(ExactlyOnceError, match=refused):
        harness.sink(schema_of("value"), delivery="exactly_once")
    with pytest.raises(ColumnError, match="column delay_level: delivery = exactly_once cannot delay messages"):
        harness.sink(schema_of("value", "delay_level"), delivery="exactly_once")


def test_a_listed_topic_that_was_deleted_since_does_not_matter(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = harness.directory.topics()
    monkeypatch.setattr(harness.directory, "topics", lambda: [f"before-{listed[0]}", *listed])
    with pytest.raises(ExactlyOnceError, match="is not a metaq-broker"):  # so all that are there were asked
        harness.sink(schema_of("value", "topic"), delivery="exactly_once", topic="")


def test_a_sink_travels_without_what_belongs_to_its_process(harness: RocketMQHarness) -> None:
    import pickle

    sink = harness.sink(schema_of("value"), accessKey="name", secretKey="very secret", securityToken="token of it")
    there = pickle.loads(pickle.dumps(sink))
    assert isinstance(there, RocketMQSink)
    assert there.options == sink.options
    assert "secret" not in repr(there.options).lower().replace("secret_key", "")
    assert "token of it" not in repr(there.options)


def test_a_brokers_larger_limit_is_used(harness: RocketMQHarness) -> None:
    sent: list[int] = []

    def answer(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code == GetBrokerConfig.CODE:
            return command.reply(body=b"maxMessageSize=5242880\n")
        if command.code == SendMessage.CODE:
            sent.append(len(command.body))
            return command.reply(0, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})
        return response

    for name in ("broker-a", "broker-b"):
        harness.cluster.broker(name).tamper = answer
    write(harness, [{"value": bytes(5 << 20)}, {"value": b"one tea"}])
    assert sent == [5 << 20]
    with pytest.raises(RowError, match=r"row 2 of .*: its value is 5242881 bytes; a message has at most 5242880"):
        write(harness, [{"value": b"one tea"}, {"value": bytes((5 << 20) + 1)}])
