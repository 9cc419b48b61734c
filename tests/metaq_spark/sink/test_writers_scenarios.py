"""Stories of the sink over brokers in memory: rows in, frames in the partitions."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from metaq_harness import SinkHarness
from outages import when_waited_for
from rocketmq_harness import stream_task

from metaq.errors import BrokerError, ConnectionFailed, TopicNotFound
from metaq.model import Message
from metaq.protocols.text.commands import Command, Put, PutBatch
from metaq_spark.backends.metaq.cluster import ROUTE_AGE_S_MAX
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.errors import PartitionAway, RowError
from metaq_spark.options.table import Use
from metaq_spark.sink import task
from metaq_spark.sink.backend import WriteTask


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> SinkHarness:
    return SinkHarness() if request.param == "ours" else SinkHarness(extensions=frozenset())


def batch(**columns: list[object]) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "value": pa.binary()}
    arrays = [pa.array(cells, types.get(name, pa.string())) for name, cells in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def test_rows_become_messages_with_their_attributes(harness: SinkHarness) -> None:
    written = harness.write(
        batch(value=[b"a\r\n", b"", b"\x00\xff"], attribute=["é", None, ""], partition=[0, 0, 0]), topic="orders"
    )
    assert harness.messages(0, "orders", 0) == [Message(b"a\r\n", "é"), Message(b"", None), Message(b"\x00\xff", "")]
    assert written == WrittenMessages(3, 3 * 20 + 3 + 2 + 4 + 2 + 4)


def test_partitions_are_counted_over_all_brokers(harness: SinkHarness) -> None:
    harness.write(batch(value=[b"2", b"0", b"1", b"22"], partition=[2, 0, 1, 2]), topic="orders")
    assert harness.payloads() == {"0-0": [b"0"], "0-1": [b"1"], "1-0": [b"2", b"22"]}


def test_order_within_a_partition_over_many_small_blocks(harness: SinkHarness) -> None:
    rows = [(b"%05d" % n, n % 3) for n in range(2000)]
    batches = [
        batch(value=[value for value, _ in rows[at : at + 300]], partition=[place for _, place in rows[at : at + 300]])
        for at in range(0, 2000, 300)
    ]
    harness.write(*batches, topic="orders", blockBytes="500")
    for place, values in enumerate(harness.payloads().values()):
        assert values == [value for value, where in rows if where == place]


def test_topics_from_a_column_and_the_option_before_it(harness: SinkHarness) -> None:
    rows = batch(value=[b"o", b"c"], topic=["orders", "carts"], partition=[0, 0])
    harness.write(rows)
    assert (harness.payloads("orders"), harness.payloads("carts")) == ({"0-0": [b"o"]}, {"0-0": [b"c"]})
    harness.write(rows, topic="carts")
    assert harness.payloads("carts") == {"0-0": [b"c", b"o", b"c"]}


def test_the_same_key_goes_to_the_same_partition_in_every_write(harness: SinkHarness) -> None:
    for _ in range(3):
        harness.write(batch(value=[b"x", b"y"], key=["customer 1", "customer 2"]), topic="orders")
    per_key = [partition for partition, values in harness.payloads().items() if b"x" in values]
    assert len(per_key) == 1
    assert harness.payloads()[per_key[0]].count(b"x") == 3


def test_a_message_larger_than_a_block_goes_alone(harness: SinkHarness) -> None:
    values = [b"s", b"L" * 5000, b"s"]
    harness.write(batch(value=values, partition=[0, 0, 0]), topic="orders", blockBytes="100")
    assert harness.payloads() == {"0-0": values}


def test_a_topic_that_no_broker_accepts(harness: SinkHarness) -> None:
    with pytest.raises(TopicNotFound, match="topic 'ordres' does not exist"):
        harness.write(batch(value=[b"x"]), topic="ordres")
    with pytest.raises(TopicNotFound, match="topic 'ordres' does not exist"):
        harness.write(batch(value=[b"x"], topic=["ordres"]))


def test_an_unknown_topic_among_many_leaves_the_blocks_before_it(
    harness: SinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "OPEN_S_MAX", float("inf"))  # the first row may wait until kernels are compiled
    carts = batch(value=[b"1", b"2"], topic=["carts", "carts"])
    with pytest.raises(TopicNotFound, match="topic 'ordres' does not exist"):
        harness.write(carts, batch(value=[b"3", b"4"], topic=["orders", "ordres"]), blockMessages="1")
    harness.pool.close()
    assert harness.payloads("carts") in ({"0-0": [b"1"]}, {"1-0": [b"1"]})


def test_a_thousand_topics_need_one_connection_to_a_broker(harness: SinkHarness) -> None:
    names = [f"topic-{n:04}" for n in range(1000)]
    for broker in harness.brokers:
        broker.topics = dict.fromkeys(names, 1)
    rows = [(name, b"%s %d" % (name.encode(), turn)) for turn in range(3) for name in names]
    for at in (0, 1500):
        task_range = rows[at : at + 1500]
        harness.write(
            batch(value=[value for _, value in task_range], topic=[name for name, _ in task_range], key=["k"] * 1500)
        )
    assert harness.transport.connections <= 2 * 2  # one writes, and one asks who accepts a topic
    for name in names:
        (stored,) = harness.payloads(name).values()
        assert stored == [b"%s %d" % (name.encode(), turn) for turn in range(3)]


def test_ordered_partitions_are_a_list_of_their_own(harness: SinkHarness) -> None:
    rows = batch(value=[b"0", b"1", b"2"], partition=[0, 1, 2])
    harness.write(rows, topic="orders", orderedPartitions="1:1;0:2")
    assert harness.payloads() == {"0-0": [b"1"], "0-1": [b"2"], "1-0": [b"0"]}
    with pytest.raises(RowError, match="partition 2: topic 'orders' has the partitions 0 to 1"):
        harness.write(rows, topic="orders", orderedPartitions="1:1;0:1")


def test_a_key_stays_on_its_partition_when_partitions_come_and_go(harness: SinkHarness) -> None:
    keyed = batch(value=[b"%d" % n for n in range(50)], key=[f"customer {n}" for n in range(50)])
    harness.write(keyed, topic="orders", orderedPartitions="0:2;1:1")
    before = harness.payloads()
    harness.brokers[1].topics["orders"] = 7
    harness.clock.advance(ROUTE_AGE_S_MAX)
    harness.write(keyed, topic="orders", orderedPartitions="0:2;1:1")
    assert harness.payloads() == {partition: values * 2 for partition, values in before.items()}
    assert all(before.values())
    assert len(before) == 3


def test_a_message_whose_broker_is_away_goes_nowhere_else(harness: SinkHarness) -> None:
    harness.brokers_named = "b0:1"
    harness.write(batch(value=[b"x"], partition=[0]), topic="orders", orderedPartitions="0:2;1:1")
    words = r"orders/1-0 is in the option orderedPartitions, but no broker takes .*partitions are 0-0, 0-1"
    key = next(key for key in map(str, range(99)) if zlib.crc32(key.encode()) % 3 == 2)
    for chosen in ({"partition": [2]}, {"key": [key]}):
        with pytest.raises(PartitionAway, match=words):
            harness.write(batch(value=[b"y"], **chosen), topic="orders", orderedPartitions="0:2;1:1")
    with pytest.raises(PartitionAway, match=words):  # in turn: the third batch's turn is the partition that is away
        harness.write(*[batch(value=[b"z"])] * 3, topic="orders", orderedPartitions="0:2;1:1")
    harness.brokers_named = "b0:1,b1:1"
    harness.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match="broker b1:1"):
        harness.write(batch(value=[b"y"], partition=[2]), topic="orders", orderedPartitions="0:2;1:1", retries="0")
    assert b"y" not in [value for values in harness.payloads().values() for value in values]


def test_blocks_are_bounded_by_messages_too(harness: SinkHarness) -> None:
    harness.write(
        batch(value=[b"%03d" % n for n in range(100)], partition=[0] * 100), topic="orders", blockMessages="30"
    )
    blocks = [command.count for command in harness.brokers[0].commands if isinstance(command, PutBatch)]
    assert blocks == ([30, 30, 30, 10] if harness.brokers[0].extensions else [])
    assert harness.payloads()["0-0"] == [b"%03d" % n for n in range(100)]


def test_a_row_that_is_no_message_stops_the_task(harness: SinkHarness) -> None:
    with pytest.raises(RowError, match="row 2 of the input of task 0: column value is null"):
        harness.write(batch(value=[b"x", None]), topic="orders")


def test_a_refusal_is_raised_and_nothing_is_reported(harness: SinkHarness) -> None:
    harness.write(batch(value=[b"x"], partition=[1]), topic="orders")
    harness.brokers[0].topics["orders"] = 1  # the route that is remembered is older than this
    with pytest.raises(
        BrokerError, match=r"broker b0:1 refused put to orders partition 1 with 500: .*wrong partition 1"
    ):
        harness.write(batch(value=[b"x"], partition=[1]), topic="orders")
    harness.clock.advance(ROUTE_AGE_S_MAX)
    with pytest.raises(RowError, match="partition 2: topic 'orders' has the partitions 0 to 1"):
        harness.write(batch(value=[b"x"], partition=[2]), topic="orders")


def test_a_lost_connection_loses_nothing_and_keeps_the_order(harness: SinkHarness) -> None:
    broker, cuts = harness.brokers[0], iter([False, True, False, False, True])

    def restart(command: Command) -> None:
        if isinstance(command, Put | PutBatch) and next(cuts, False):
            broker.kill()
            broker.start()

    broker.before_command = restart
    values = [b"%03d" % n for n in range(200)]
    harness.write(batch(value=values, partition=[0] * 200), topic="orders", blockBytes="400")
    stored = harness.payloads()["0-0"]
    assert list(dict.fromkeys(stored)) == values  # first copies in order; some are there twice
    assert len(stored) > len(values)


def test_a_broker_that_is_gone_fails_the_task(harness: SinkHarness) -> None:
    harness.write(batch(value=[b"x"], partition=[0]), topic="orders")
    harness.brokers[0].kill()
    with pytest.raises(ConnectionFailed, match="broker b0:1"):
        harness.write(batch(value=[b"x"], partition=[0]), topic="orders", retries="1")


def test_a_broker_that_restarts_while_a_task_writes_is_waited_for(harness: SinkHarness) -> None:
    broker, puts = harness.brokers[0], []

    def die(command: Command) -> None:
        if isinstance(command, Put | PutBatch):
            puts.append(command)
            if len(puts) == 3:
                broker.kill()

    broker.before_command = die
    values = [b"%03d" % n for n in range(200)]
    with when_waited_for(broker.start) as said:
        harness.write(batch(value=values, partition=[0] * 200), topic="orders", blockBytes="400", retries="1")
    assert list(dict.fromkeys(harness.payloads()["0-0"])) == values
    assert said[0].startswith("broker b0:1: ")


@pytest.mark.parametrize("topic", ["option", "column"])
def test_a_broker_that_is_away_when_a_batch_begins(
    harness: SinkHarness, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    columns: dict[str, list[object]] = {"value": [b"x"], "partition": [0]}
    options = {"topic": "orders"} if topic == "option" else {}
    rows = batch(**(columns if options else columns | {"topic": ["orders"]}))
    harness.brokers[0].kill()
    monkeypatch.setattr(WriteTask, "current", lambda: stream_task(batch=0))
    with pytest.raises(ConnectionFailed, match="broker b0:1"):  # a wrong option looks the same
        harness.write(rows, retries="1", **options)
    assert harness.clock.monotonic() < 1010
    monkeypatch.setattr(WriteTask, "current", lambda: stream_task(batch=1))
    with when_waited_for(harness.brokers[0].start) as said:
        harness.write(rows, retries="1", **options)
    assert harness.payloads()["0-0"] == [b"x"]
    assert said


def test_a_topic_without_a_broker_is_waited_for_after_a_write(
    harness: SinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [broker.topics.pop("orders") for broker in harness.brokers]

    def give() -> None:
        for broker, count in zip(harness.brokers, topics, strict=True):
            broker.topics["orders"] = count

    monkeypatch.setattr(WriteTask, "current", lambda: stream_task(batch=0))
    with pytest.raises(TopicNotFound):
        harness.write(batch(value=[b"x"], partition=[0]), topic="orders")
    monkeypatch.setattr(WriteTask, "current", lambda: stream_task(batch=1))
    with when_waited_for(give) as said:
        harness.write(batch(value=[b"x"], partition=[0]), topic="orders")
    assert harness.payloads()["0-0"] == [b"x"]
    assert "topic 'orders' does not exist" in said[0]


def test_routes_are_remembered_for_a_while() -> None:
    harness = SinkHarness()
    options = parse_sink_options({"brokers": "b0:1,b1:1", "topic": "orders"}, Use.STREAM_WRITE)
    first = harness.routes.find(options, "orders")
    harness.brokers[1].topics["orders"] = 4
    harness.clock.advance(ROUTE_AGE_S_MAX - 1)
    assert harness.routes.find(options, "orders") == first
    harness.clock.advance(1)
    assert len(harness.routes.find(options, "orders")) == 6
