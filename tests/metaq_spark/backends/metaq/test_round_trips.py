"""What a micro-batch costs in round trips and connections: as much for sixty partitions of a broker as for one."""

from __future__ import annotations

import pytest
from metaq_harness import ADDRESSES, Harness
from recorded import Recorded

from metaq.backends.metaq.pool import SessionPool
from metaq.protocols.text.commands import Get, GetOffset
from metaq.testing.memory import MemoryTransport
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.source.tasks import RangeGroup

PARTITIONS = 60
BROKERS = len(ADDRESSES)


@pytest.fixture(params=[1, PARTITIONS], ids=lambda count: f"{count} partitions")
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def harness(count: int) -> Harness:
    """Two brokers with ``count`` partitions of topic ``wide``, ten messages in each; one connection to each is open."""
    harness = Harness()
    for broker in range(BROKERS):
        harness.brokers[broker].topics["wide"] = count
    put_everywhere(harness, count, messages=10)
    transport = MemoryTransport(dict(zip(ADDRESSES, harness.brokers, strict=True)), harness.clock)
    harness.pool = SessionPool(transport=Recorded(transport), clock=harness.clock)
    for address in ADDRESSES:
        with harness.pool.lease(address) as session:
            assert session.extensions
    return harness


@pytest.fixture
def wire(harness: Harness) -> Recorded:
    transport = harness.pool._transport
    assert isinstance(transport, Recorded)
    transport.forget()
    return transport


def put_everywhere(harness: Harness, count: int, messages: int) -> None:
    for broker in range(BROKERS):
        for index in range(count):
            harness.put("wide", broker, index, *(b"%d-%02d %d" % (broker, index, n) for n in range(messages)))


def test_the_end_of_a_batch_is_three_round_trips_to_each_broker(harness: Harness, wire: Recorded) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest")
    start = reader.initialOffset()
    harness.clock.advance(1)
    wire.forget()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    assert wire.round_trips == 3 * BROKERS  # for the ends; where the last messages begin, and which ones they are


def test_the_end_of_a_batch_is_one_round_trip_to_each_broker(harness: Harness, wire: Recorded) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", proveOffsets="false")
    start = reader.initialOffset()
    harness.clock.advance(1)
    wire.forget()
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["v"] == 2
    assert wire.round_trips == BROKERS


def limited(harness: Harness, count: int, messages: int, **options: str) -> StreamReader:
    """A stream with a limit of so many messages of each partition."""
    limit = str(messages * count * BROKERS)
    return harness.stream(subscribe="wide", startingOffsets="earliest", maxOffsetsPerTrigger=limit, **options)


def test_a_limit_in_messages_is_none_more_but_for_the_first_batch(
    harness: Harness, wire: Recorded, count: int
) -> None:
    reader = limited(harness, count, 3)
    position = reader.initialOffset()
    found = []
    for _ in range(3):
        wire.forget()
        before = harness.count(GetOffset) + harness.count(Get)
        harness.clock.advance(1)
        end = reader.latestOffset(position, reader.getDefaultReadLimit())
        assert len(harness.replay(reader, position, end)) == 3 * count * BROKERS
        asked = harness.count(GetOffset) + harness.count(Get) - before
        found.append((wire.round_trips // BROKERS - 1, asked / (count * BROKERS) - 2))  # without those of the tasks
        position = end
    # For the ends; with the limits: where the next message and the last one begin; which one that is.
    assert found[1:] == [(3, 2 + 1)] * 2
    assert found[0] <= (5, 3 + 2 + 1)


def test_a_limit_that_is_not_reached_is_none_more_either(harness: Harness, wire: Recorded, count: int) -> None:
    reader = limited(harness, count, 11)
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    put_everywhere(harness, count, messages=10)
    wire.forget()
    before = harness.count(GetOffset)
    harness.clock.advance(1)
    end = reader.latestOffset(position, reader.getDefaultReadLimit())
    assert wire.round_trips == 3 * BROKERS
    assert harness.count(GetOffset) - before == 2 * count * BROKERS  # how many messages, and where the last one begins
    assert len(harness.replay(reader, position, end)) == 10 * count * BROKERS


def test_a_limit_above_all_messages_that_can_be_there_costs_nothing(
    harness: Harness, wire: Recorded, count: int
) -> None:
    reader = limited(harness, count, 1000, proveOffsets="false")
    start = reader.initialOffset()
    harness.clock.advance(1)
    wire.forget()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) != start
    assert (wire.round_trips, harness.count(GetOffset)) == (BROKERS, 0)


def test_a_broker_that_was_restarted_is_asked_again_for_what_is_known(harness: Harness, count: int) -> None:
    """It has lost its indexes and older segments, and numbers its messages by others."""
    reader = limited(harness, count, 3)
    position, values = harness.micro_batch(reader, reader.initialOffset())
    broker = harness.brokers[1]
    for store in broker.partitions.values():
        store.messages_dropped += 1000
    broker.kill()
    broker.start()
    position, again = harness.micro_batch(reader, position)
    assert len(values) == len(again) == 3 * count * BROKERS


def test_a_limit_in_bytes_is_one_more(harness: Harness, wire: Recorded) -> None:
    limit = str(BROKERS * PARTITIONS * 2)
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", maxBytesPerTrigger=limit)
    start = reader.initialOffset()
    harness.clock.advance(1)
    wire.forget()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    assert wire.round_trips <= 5 * BROKERS  # one for boundaries, one for the frames of those with less than one


def test_tasks_are_planned_without_requests_a_group_read_in_one(harness: Harness, wire: Recorded) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest")
    start = reader.initialOffset()
    harness.clock.advance(1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    wire.forget()
    tasks = reader.partitions(start, end)
    assert wire.round_trips == 0
    assert all(isinstance(task, RangeGroup) for task in tasks)
    rows = harness.values(reader, tasks)
    assert len(rows) == 10 * BROKERS * len(harness.brokers[0].partitions)
    assert wire.round_trips == BROKERS


def test_a_range_that_a_task_reads_alone_is_one_round_trip(harness: Harness, wire: Recorded, count: int) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", minBytesPerPartition="1")
    start = reader.initialOffset()
    harness.clock.advance(1)
    tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert len(tasks) == count * BROKERS
    wire.forget()
    assert len(harness.values(reader, tasks)) == 10 * len(tasks)
    assert wire.round_trips == len(tasks)


def test_cuts_for_tasks_of_a_certain_size_are_one_round_trip(harness: Harness, wire: Recorded, count: int) -> None:
    options = harness.options(Use.BATCH_READ, subscribe="wide", minPartitions=str(4 * count))

    def planned() -> int:
        return len(BatchReader(MetaQSource(options, harness.pool, harness.clock)).partitions())

    planned()
    looked_up = wire.round_trips
    wire.forget()
    assert planned() >= 4 * count
    assert wire.round_trips == looked_up <= 4 * BROKERS


def test_connections_live_through_micro_batches(harness: Harness, wire: Recorded, count: int) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", maxOffsetsPerTrigger="100")
    harness.five_micro_batches(reader, lambda: put_everywhere(harness, count, messages=1))
    assert wire.connections == 0


def test_an_idle_query_asks_once_in_a_while_however_often_it_is_polled(harness: Harness, wire: Recorded) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="latest", offsetPollMs="100")
    start = reader.initialOffset()
    wire.forget()
    for _ in range(100):  # a second of Spark's polling
        harness.clock.advance(0.01)
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        reader.reportLatestOffset()
    assert 8 * BROKERS <= wire.round_trips <= 10 * BROKERS
