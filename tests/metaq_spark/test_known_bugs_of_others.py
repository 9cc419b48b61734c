"""Bugs that users of other queue connectors have met, told as stories of this one, over brokers in memory."""

from __future__ import annotations

import pytest
from metaq_harness import NO_EXTENSIONS, Harness
from metaq_harness import offsets as at

from metaq.protocols.text.commands import Command, Get
from metaq_spark.errors import DataLoss


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def test_off_by_one_on_resume(harness: Harness) -> None:
    """A connector committed the last offset read instead of the next: each restart repeated a message."""
    seen, position = [], None
    for n in range(10):
        harness.put("orders", 0, 0, b"%d" % n)
        position, batches = harness.drain(harness.stream(startingOffsets="earliest"), position)
        seen += batches
        assert at(position) == {"0-0": 21 * (n + 1)}
    assert seen == [[b"%d" % n] for n in range(10)]


def test_one_idle_partition_among_busy_ones(harness: Harness) -> None:
    """A queue without new messages on one of several brokers broke every batch."""
    harness.put("orders", 1, 1, b"long ago")
    harness.brokers[1].partition("orders", 0)  # never a message at all
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", minPartitions="3")
    position, _ = harness.drain(reader)
    for n in range(5):
        harness.put("orders", 0, 0, b"%d" % n, b"more")
        position, batches = harness.drain(reader, position)
        assert batches == [[b"%d" % n, b"more"]]
    assert at(position)["1-1"] == 28


def test_a_discovery_hiccup_repeats_nothing(harness: Harness) -> None:
    """One listing without partitions made all of them new, and everything was read again from the earliest offset."""
    harness.put("orders", 0, 0, b"1", b"2")
    harness.put("orders", 1, 0, b"3")
    reader = harness.stream(startingOffsets="earliest")
    position, batches = harness.drain(reader)
    assert batches == [[b"1", b"2", b"3"]]
    kept = [dict(broker.partitions) for broker in harness.brokers]
    for emptied in ((0,), (1,), (0, 1)):
        for n in emptied:
            harness.brokers[n].partitions.clear()
        assert harness.micro_batch(reader, position) == (position, [])
        for broker, partitions in zip(harness.brokers, kept, strict=True):
            broker.partitions.update(partitions)
        assert harness.micro_batch(reader, position) == (position, [])
    harness.put("orders", 1, 0, b"4")
    assert harness.micro_batch(reader, position)[1] == [b"4"]


def test_a_changed_start_option_does_not_move_a_checkpoint(harness: Harness) -> None:
    """After a restore the start mode was applied again, and the whole topic was read a second time."""
    harness.put("orders", 0, 0, b"1", b"2")
    position, _ = harness.drain(harness.stream(startingOffsets="earliest"))
    harness.put("orders", 0, 0, b"3")
    for start in ("earliest", "latest", '{"orders": {"0-0": 0}}'):
        assert harness.drain(harness.stream(startingOffsets=start), position)[1] == [[b"3"]]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_recreated_topic_is_noticed_whatever_its_size(count: int) -> None:
    """A topic that was made again and had grown past the old offset was read on in its middle, without a word."""
    harness = Harness()
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    position, _ = harness.drain(harness.stream(startingOffsets="earliest"))
    harness.brokers[0].recreate("orders", 0)
    new = [b"%d" % (n % 10) for n in range(count)]
    harness.put("orders", 0, 0, *new)
    with pytest.raises(DataLoss, match=r"orders/0-0.*another incarnation: the topic was deleted and made again"):
        harness.micro_batch(harness.stream(), position)
    assert harness.drain(harness.stream(failOnDataLoss="false"), position)[1] == [new]


def test_a_topic_recreated_between_planning_and_reading_is_noticed() -> None:
    """A batch that is replayed after a crash read the old offsets of a new topic."""
    harness = Harness()
    harness.put("orders", 0, 0, *[b"old %d" % n for n in range(5)])
    reader = harness.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    end, values = harness.micro_batch(reader, start)
    assert len(values) == 5
    harness.brokers[0].recreate("orders", 0)
    harness.put("orders", 0, 0, *[b"new %d" % n for n in range(9)])
    with pytest.raises(DataLoss, match=r"orders/0-0.*incarnation"):
        harness.replay(reader, start, end)


def test_a_recreated_topic_without_incarnation_is_noticed_if_smaller() -> None:
    """A topic reset left the query waiting in silence until the new topic had grown to the old offset."""
    harness = Harness(extensions=NO_EXTENSIONS)
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.drain(reader)
    harness.brokers[0].recreate("orders", 0)
    harness.put("orders", 0, 0, b"new")
    assert harness.micro_batch(reader, position) == (position, [])
    harness.clock.advance(30)
    with pytest.raises(DataLoss, match="made again, or the broker lost its end"):
        harness.micro_batch(reader, position)


def test_an_end_that_moves_back_for_a_moment_fails_nothing(harness: Harness) -> None:
    """During a failover the newest offset went back for some seconds, and the query was aborted."""
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.drain(reader)
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    tail = content[21:]
    del content[21:]
    for _ in range(5):
        assert harness.micro_batch(reader, position) == (position, [])
    content += tail
    harness.put("orders", 0, 0, b"4")
    assert harness.micro_batch(reader, position)[1] == [b"4"]


def test_a_reconnect_in_the_middle_of_a_batch_neither_loses_nor_repeats(harness: Harness) -> None:
    """Messages were lost and repeated when the connection broke while a batch was read; found by counting ten."""
    payloads = [b"message %d" % n for n in range(10)]
    harness.put("orders", 0, 0, *payloads)
    broker, gets = harness.brokers[0], iter(range(1, 1000))

    def cut(command: Command) -> None:
        if isinstance(command, Get) and next(gets) % 3 == 0:
            broker.kill()
            broker.start()

    broker.before_command = cut
    _, batches = harness.drain(harness.stream(startingOffsets="earliest", fetchBytes="40"))
    assert batches == [payloads]


def test_more_partitions_than_before_are_read_from_their_first_message(harness: Harness) -> None:
    """With a start at latest, what was written to a new partition before it was discovered was never read."""
    harness.put("orders", 0, 0, b"old")
    reader = harness.stream(startingOffsets="latest")
    position = reader.initialOffset()
    for broker in harness.brokers:
        broker.topics["orders"] = 5
    harness.put("orders", 0, 4, b"grown on a known broker")
    harness.put("orders", 1, 3, b"grown on another")
    position, batches = harness.drain(reader, position)
    assert batches == [[b"grown on a known broker", b"grown on another"]]
    assert at(position) == {"0-0": 23, "0-4": 43, "1-3": 36}


def test_a_topic_created_after_the_start_is_read(harness: Harness) -> None:
    """A topic that was just created failed the job, or was not found until a restart."""
    reader = harness.stream(subscribe="orders,invoices", waitForTopic="true")
    position = reader.initialOffset()
    assert harness.drain(reader, position) == (position, [])
    harness.brokers[0].topics["invoices"] = 1
    assert harness.drain(reader, position) == (position, [])
    harness.put("invoices", 0, 0, b"first")
    assert harness.drain(reader, position)[1] == [[b"first"]]


def test_two_brokers_with_the_same_partition_indexes_are_not_mixed_up(harness: Harness) -> None:
    """Positions were kept by queue id alone, so that the queues of two brokers overwrote each other's."""
    harness.put("orders", 0, 0, b"a1", b"a2", b"a3")
    harness.put("orders", 1, 0, b"b1")
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    position, batches = harness.drain(reader)
    assert sorted(value for values in batches for value in values) == [b"a1", b"a2", b"a3", b"b1"]
    assert at(position) == {"0-0": 66, "1-0": 22}
    harness.put("orders", 1, 0, b"b2")
    assert harness.drain(harness.stream(), position)[1] == [[b"b2"]]


def test_available_now_with_partitions_that_appear_and_vanish(harness: Harness) -> None:
    """A run with AvailableNow failed for good as soon as the set of partitions was not the one it began with."""
    harness.put("orders", 0, 0, *[b"%d" % n for n in range(6)])
    harness.put("orders", 1, 0, *[b"%d" % n for n in range(6)])
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    position, first = harness.micro_batch(reader, reader.initialOffset())
    assert len(first) == 4
    gone = harness.brokers[1].partitions.pop(("orders", 0))
    harness.put("orders", 0, 1, b"appeared during the run")
    position, batches = harness.drain(reader, position)
    assert batches == [[b"2", b"3", b"4", b"5"]]
    assert at(position) == {"0-0": 126, "1-0": 42}
    harness.brokers[1].partitions["orders", 0] = gone
    position, batches = harness.available_now(position)
    assert [sorted(values) for values in batches] == [[b"2", b"3", b"4", b"5"], [b"appeared during the run"]]
