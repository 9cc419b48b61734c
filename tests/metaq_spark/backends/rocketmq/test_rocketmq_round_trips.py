"""What a micro-batch costs in round trips and connections: as much for twenty queues of a broker as for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded import Recorded
from rocketmq_harness import RocketMQHarness

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.net.transport import TCP, Timeouts
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq_spark.source.tasks import RangeGroup

BROKERS = "ab"


@pytest.fixture(params=[1, 20], ids=lambda count: f"{count} queues")
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def wire() -> Recorded:
    return Recorded(TCP)


@pytest.fixture
def harness(count: int, wire: Recorded) -> Iterator[RocketMQHarness]:
    """Two brokers with ``count`` queues of topic ``wide``, ten messages in each."""
    with RocketMQHarness() as harness:
        harness.cluster.create_topic("wide", queues=count)
        put_everywhere(harness, count, messages=10)
        harness.pool.close()
        harness.pool = SessionPool(Timeouts(2.0, 5.0), wire)
        harness.directory = NameServerDirectory(harness.cluster.name_servers, harness.pool)
        yield harness


def put_everywhere(harness: RocketMQHarness, count: int, messages: int) -> None:
    for broker in BROKERS:
        for index in range(count):
            harness.put(f"{broker}{index}", *(b"%d" % n for n in range(messages)), topic="wide")


def pulls(harness: RocketMQHarness) -> int:
    scripts = [harness.cluster.broker(f"broker-{broker}") for broker in BROKERS]
    return sum(script.counts()[PullMessage.CODE] for script in scripts)


def test_a_micro_batch_asks_each_broker_once(harness: RocketMQHarness, wire: Recorded, count: int) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", maxOffsetsPerTrigger=str(18 * count))
    start = reader.initialOffset()
    harness.clock.advance(1)
    wire.forget()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert wire.round_trips == 3 * len(BROKERS)
    assert pulls(harness) == 2 * count * len(BROKERS)  # of a few messages for their size, and of the last one
    wire.forget()
    assert reader.partitions(start, end)
    assert wire.round_trips == 0


def test_a_group_of_queues_is_read_in_one_round_trip_to_each_broker(
    harness: RocketMQHarness, wire: Recorded, count: int
) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest")
    start = reader.initialOffset()
    harness.clock.advance(1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    assert [type(task) for task in tasks] == [RangeGroup]
    wire.forget()
    rows = harness.rows(reader, tasks)
    assert wire.round_trips == len(BROKERS)
    wanted = [(f"broker-{broker}", index, n) for broker in BROKERS for index in range(count) for n in range(10)]
    assert [(row["broker_name"], row["queue_id"], row["queue_offset"]) for row in rows] == wanted
    assert [row["value"] for row in rows] == [b"%d" % n for _, _, n in wanted]


def test_a_thousand_messages_of_a_queue_are_one_round_trip(
    harness: RocketMQHarness, wire: Recorded, count: int
) -> None:
    harness.put("a0", *(b"%d" % n for n in range(1000)))
    reader = harness.stream(assign='{"orders": ["broker-a:0"]}', startingOffsets="earliest")
    start = reader.initialOffset()
    harness.clock.advance(1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    [task] = reader.partitions(start, end)
    before = pulls(harness)
    wire.forget()
    assert [row["value"] for row in harness.rows(reader, [task])] == [b"%d" % n for n in range(1000)]
    assert pulls(harness) - before == 32  # a broker gives 32 messages a pull
    assert wire.round_trips == 1


def test_connections_live_through_micro_batches(harness: RocketMQHarness, wire: Recorded, count: int) -> None:
    reader = harness.stream(subscribe="wide", startingOffsets="earliest", maxOffsetsPerTrigger="100")
    harness.five_micro_batches(reader, lambda: put_everywhere(harness, count, messages=1))
    assert wire.connections == 1 + len(BROKERS)  # the name server's, too
