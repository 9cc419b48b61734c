"""Where a read of RocketMQ begins, ends and waits, how it is cut into tasks, and what its values become: the options
that the formats share, on queue offsets and RocketMQ's records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from metaq_harness import offsets
from outages import when_waited_for
from rocketmq_harness import RocketMQHarness

from metaq.backends.rocketmq.errors import QueuesAway, TopicNotReadable
from metaq.errors import ConnectionFailed, TopicNotFound
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq_spark.errors import NotSelected, OptionError
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.spark_version import ReadMaxBytes

FIRST_MS = 1_700_000_000_000
QUEUES = ("broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1")


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    with RocketMQHarness() as harness:
        yield harness


def for_all(at: int | str, **others: int | str) -> str:
    """JSON with a position for each queue of ``orders``: ``at``, or that of ``a0``, ``b1`` in ``others``."""
    named = {f"broker-{name[0]}:{name[1]}": value for name, value in others.items()}
    rows = ", ".join(f'"{queue}": {named.get(queue, at)}' for queue in QUEUES)
    return f'{{"orders": {{{rows}}}}}'


def test_offsets_of_each_queue_at_both_ends(harness: RocketMQHarness) -> None:
    harness.put("a0", *(b"a%d" % number for number in range(6)))
    harness.put("b1", *(b"b%d" % number for number in range(6)))
    found = harness.batch(startingOffsets=for_all(-2, a0=2, b1=4), endingOffsets=for_all(-1, a0=4, b1=5))
    assert [row["value"] for row in found] == [b"a2", b"a3", b"b4"]
    assert harness.batch(startingOffsets=for_all(0, a0=6, b1=6), endingOffsets="latest") == []


def test_times_of_each_queue_at_both_ends(harness: RocketMQHarness) -> None:
    for number in range(6):
        for queue in ("a0", "b1"):
            harness.put(queue, b"%s %d" % (queue.encode(), number), store_ms=FIRST_MS + 1000 * number)
    found = harness.batch(
        startingOffsetsByTimestamp=for_all(FIRST_MS, a0=FIRST_MS + 3001, b1=FIRST_MS + 1000),
        startingOffsetsByTimestampStrategy="latest",
        endingOffsetsByTimestamp=for_all(FIRST_MS + 99_000, b1=FIRST_MS + 3000),
    )
    assert [row["value"] for row in found] == [b"a0 4", b"a0 5", b"b1 1", b"b1 2"]


def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(harness: RocketMQHarness) -> None:
    reader = harness.stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    harness.put("a0", b"first")
    position, read = harness.micro_batch(reader, reader.initialOffset())
    assert read == [b"first"]  # that of a run goes at once
    harness.put("a0", *[b"x"] * 4)
    assert [harness.micro_batch(reader, position) for _ in range(5)] == [(position, [])] * 5
    harness.put("b1", b"y")
    position, read = harness.micro_batch(reader, position)
    assert sorted(read) == [b"x"] * 4 + [b"y"]
    harness.put("a0", b"late")
    assert harness.micro_batch(reader, position)[1] == []
    harness.clock.advance(60)
    assert harness.micro_batch(reader, position)[1] == [b"late"]


def test_large_ranges_are_cut(harness: RocketMQHarness) -> None:
    values = [b"%04d" % number + bytes(996) for number in range(100)]
    harness.put("a0", *values)
    reader = BatchReader(harness.source(Use.BATCH_READ, maxBytesPerPartition="20k", minBytesPerPartition="1"))
    tasks = reader.partitions()
    assert 5 <= len(tasks) <= 10
    assert [row["value"] for row in harness.rows(reader, tasks)] == values
    sizes = [len(harness.rows(reader, [task])) for task in tasks]
    assert max(sizes) * 1000 <= 20 << 10


def test_values_that_are_json(harness: RocketMQHarness) -> None:
    harness.put("a0", b'{"id": 7, "name": "tea"}', b'{"id": "x"}', b"no JSON")
    found = harness.batch(valueFormat="json", valueSchema="id BIGINT, name STRING", columns="queue_offset,value")
    assert [row["queue_offset"] for row in found] == [0, 1, 2]
    assert found[0]["value"] == {"id": 7, "name": "tea"}
    assert [row["value"] and row["value"]["id"] for row in found[1:]] == [None, None]


def half(harness: RocketMQHarness) -> None:
    """Broker b is away, and a process that has never heard of it looks at the route."""
    harness.put("a0", b"1")
    harness.put("b0", b"2")
    harness.cluster.stop_broker("broker-b")
    harness.restart()


NAMED = [
    {"startingOffsets": for_all(0)},
    {"startingOffsets": for_all(-2)},
    {"startingOffsetsByTimestamp": for_all(FIRST_MS), "startingOffsetsByTimestampStrategy": "latest"},
    {"assign": '{"orders": ["broker-a:0", "broker-b:0"]}'},
    {"requireBrokers": "broker-a,broker-b"},
]


@pytest.mark.parametrize("named", [*NAMED, {"endingOffsets": for_all(-1)}])
def test_a_batch_that_names_a_queue_of_a_broker_that_is_away(harness: RocketMQHarness, named: dict[str, str]) -> None:
    half(harness)
    assert [row["value"] for row in harness.batch(columns="value")] == [b"1"]  # a route cannot tell
    server = harness.cluster.name_servers[0]
    with pytest.raises(QueuesAway, match=f"name servers {server} have no queue of the topic at broker 'broker-b'"):
        harness.batch(retries="1", columns="value", **named)
    with when_waited_for(lambda: harness.cluster.start_broker("broker-b")) as said:
        rows = harness.batch(retries="1", columns="value", brokerWaitMs="1m", **named)
    assert sorted(row["value"] for row in rows) == [b"1", b"2"]
    assert "'broker-b'" in said[0]


@pytest.mark.parametrize("named", NAMED)
def test_a_stream_that_names_a_queue_of_a_broker_that_is_away(harness: RocketMQHarness, named: dict[str, str]) -> None:
    half(harness)
    with pytest.raises(QueuesAway, match="have no queue of the topic at broker 'broker-b'"):
        harness.stream(retries="1", **named).initialOffset()
    with pytest.raises(QueuesAway, match="have no queue of the topic at broker 'broker-b'"):
        harness.stream(retries="1", requireBrokers="broker-b").prepareForTriggerAvailableNow()


def test_a_queue_that_a_broker_does_not_have_is_refused(harness: RocketMQHarness) -> None:
    named = for_all(0).replace('"broker-a:0"', '"broker-a:7": 0, "broker-a:0"')
    with pytest.raises(OptionError, match="startingOffsets: topic 'orders' has no queue broker-a:7; there is brok"):
        harness.batch(startingOffsets=named)


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_a_topic_without_read_permission_is_refused(harness: RocketMQHarness, mode: str) -> None:
    harness.cluster.create_topic("closed", queues=2, perm=2)
    with pytest.raises(TopicNotReadable, match=r"topic 'closed' cannot be read: .*perm 2 is write only"):
        harness.batch(subscribe="closed") if mode == "batch" else harness.stream(subscribe="closed").initialOffset()


def test_a_run_waits_for_a_checkpointed_topic_that_nobody_knows(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1")
    position, _ = harness.drained(harness.stream(startingOffsets="earliest"))
    for broker in ("broker-a", "broker-b"):
        harness.cluster.stop_broker(broker)
    harness.restart()
    with pytest.raises(TopicNotFound):
        harness.stream(retries="0").initialOffset()
    reader = harness.stream(retries="0", lossGraceMs="1s")
    for _ in range(5):
        assert harness.micro_batch(reader, position) == (position, [])
    for broker in ("broker-a", "broker-b"):
        harness.cluster.start_broker(broker)
    harness.put("a0", b"2")
    harness.directory.invalidate()
    assert harness.micro_batch(reader, position)[1] == [b"2"]


@pytest.mark.parametrize("in_route", [True, False])
def test_a_broker_that_restarts_before_a_task_reads_is_waited_for(harness: RocketMQHarness, in_route: bool) -> None:
    values = [b"%03d" % n for n in range(300)]
    harness.put("a0", *values)
    reader = harness.stream(startingOffsets="earliest", retries="1")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    harness.cluster.stop_broker("broker-a", is_in_route=in_route)
    harness.restart()  # the task's process has not met the broker
    tasks_reader = harness.stream(startingOffsets="earliest", retries="1")
    with when_waited_for(lambda: harness.cluster.start_broker("broker-a")) as said:
        assert harness.values(tasks_reader, tasks) == values
    assert ("broker 127.0.0.1:" if in_route else "'broker-a' is not registered at the name servers") in said[0]


def test_a_broker_that_restarts_between_two_pulls_is_waited_for(harness: RocketMQHarness) -> None:
    values = [b"%03d" % n for n in range(300)]
    harness.put("a0", *values)
    reader, broker = harness.stream(startingOffsets="earliest", retries="1"), harness.cluster.broker("broker-a")
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    rows = harness.read(reader, tasks)
    broker.disconnect(PullMessage.CODE, times=1 << 30)
    with when_waited_for(broker.obey) as said:
        assert [value for batch in rows for value in batch["value"].to_pylist()] == values
    assert said


def test_the_limits_of_a_batch_wait_for_a_broker_that_restarts(harness: RocketMQHarness) -> None:
    harness.put("a0", *[b"%03d" % n for n in range(300)])
    reader, broker = harness.stream(startingOffsets="earliest", retries="1"), harness.cluster.broker("broker-a")
    start = reader.initialOffset()
    broker.disconnect(PullMessage.CODE, times=1 << 30)
    with when_waited_for(broker.obey) as said:
        end = reader.latestOffset(start, ReadMaxBytes(100))
    assert 0 < offsets(end)["broker-a:0"] < 300
    assert said


@pytest.mark.parametrize(
    ("narrowed", "names"),
    [
        ({"subscribe": "orders"}, "carts/broker-a:0, carts/broker-a:1"),
        ({"subscribePattern": "ord.*"}, "carts/broker-a:0, carts/broker-a:1"),
        ({"assign": '{"orders": ["broker-a:0"]}'}, "carts/broker-a:0, carts/broker-a:1, carts/broker-b:0"),
    ],
)
def test_a_narrowed_selection_is_no_loss_and_nothing_waits(
    harness: RocketMQHarness, narrowed: dict[str, str], names: str
) -> None:
    harness.cluster.create_topic("carts", queues=2)
    harness.put("a0", b"1")
    harness.put("a1", b"1", topic="carts")
    before, _ = harness.drained(harness.stream(subscribe="orders,carts", startingOffsets="earliest"))
    harness.put("a0", b"2")
    harness.put("a1", b"2", topic="carts")
    before_s = harness.clock.monotonic()
    with pytest.raises(NotSelected, match=f"checkpoint has {names}.*does not select"):
        harness.drained(harness.stream(**narrowed), before)
    position, read = harness.drained(harness.stream(failOnDataLoss="false", **narrowed), before)
    assert read == [b"2"]
    assert harness.clock.monotonic() - before_s < 10
    assert harness.drained(harness.stream(subscribe="orders,carts"), position)[1] == [b"2"]


def test_the_checkpoint_of_another_topic_is_said_to_be_that(harness: RocketMQHarness) -> None:
    harness.cluster.create_topic("carts", queues=1)
    harness.put("a0", b"1", topic="carts")
    position, _ = harness.drained(harness.stream(subscribe="carts", startingOffsets="earliest"))
    with pytest.raises(NotSelected, match=r"carts/broker-a:0, .*which the option subscribe.*; for another query, give"):
        harness.drained(harness.stream(subscribe="orders"), position)


def test_a_broker_that_is_away_for_too_long_fails_the_query(harness: RocketMQHarness) -> None:
    harness.put("b0", b"1")
    reader = harness.stream(startingOffsets="earliest", brokerWaitMs="20s", lossGraceMs="1s", retries="0")
    position, _ = harness.drain(reader)
    address = harness.directory.read_address("broker-b", topic="orders")
    harness.cluster.stop_broker("broker-b")
    harness.directory.invalidate()
    harness.put("a0", b"2")
    position, read = harness.micro_batch(reader, position)
    assert (read, offsets(position)["broker-b:0"]) == ([b"2"], 1)
    for _ in range(15):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.clock.advance(10)
    with pytest.raises(ConnectionFailed, match=f"broker {address}: connect failed.*check that a broker listens there"):
        harness.micro_batch(reader, position)
