"""Stories of what is read and where it starts and ends, over brokers in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from metaq_harness import NO_EXTENSIONS, Harness
from metaq_harness import offsets as at

from metaq.errors import ExtensionMissing, TopicNotFound
from metaq.model import TopicPartition
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Offsets
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader

HOUR_MS = 3_600_000
T0_MS = 1_795_000_000_000


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def test_a_pattern_is_for_the_whole_name(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"o")
    harness.put("carts", 1, 0, b"c")
    assert harness.batch(subscribePattern="orders|carts") == [b"c", b"o"]
    assert harness.batch(subscribePattern=".*r.*s") == [b"c", b"o"]
    assert harness.batch(subscribePattern="order") == []
    assert harness.batch(subscribePattern="nothing-like-that") == []


def test_a_later_matching_topic_is_read_from_its_first_message(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"old")
    reader = harness.stream(subscribePattern="orders.*")
    position = reader.initialOffset()
    harness.brokers[1].topics["orders-eu"] = 1
    harness.put("orders-eu", 1, 0, b"first", b"second")
    harness.put("carts", 1, 0, b"no")
    position, batches = harness.drain(reader, position)
    assert batches == [[b"first", b"second"]]
    assert at(position, "orders-eu") == {"1-0": 51}
    assert "carts" not in position["topics"]


def test_only_the_partitions_assigned_are_read(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"no")
    harness.put("orders", 0, 1, b"yes")
    harness.put("carts", 1, 0, b"cart")
    assign = '{"orders": ["0-1", "1-1"], "carts": ["1-0"]}'
    # A Java broker does not tell an empty partition from one that it has not opened: test_unopened_partitions.
    assert harness.batch(assign=assign, failOnDataLoss="false") == [b"cart", b"yes"]
    reader = harness.stream(assign=assign, startingOffsets="earliest")
    position, batches = harness.drain(reader)
    assert batches == [[b"cart", b"yes"]]
    harness.put("orders", 1, 0, b"no")
    harness.put("orders", 1, 1, b"assigned, and written to for the first time")
    assert harness.drain(reader, position)[1] == [[b"assigned, and written to for the first time"]]


@pytest.mark.parametrize(
    ("assign", "words"),
    [
        ('{"orders": ["0-2"]}', r"topic 'orders' has no partition 0-2; there is 0-0, 0-1, 1-0, 1-1"),
        ('{"orders": ["0-0", "5-0", "0-7"]}', "has no partition 0-7, 5-0; there is"),
    ],
)
def test_a_partition_that_cannot_be_is_an_error(harness: Harness, assign: str, words: str) -> None:
    harness.put("orders", 0, 0, b"1")
    with pytest.raises(OptionError, match=words):
        harness.batch(assign=assign)
    with pytest.raises(OptionError, match=words):
        harness.stream(assign=assign).initialOffset()


def test_a_topic_that_nobody_knows_is_waited_for_if_asked(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"here")
    for choice in ({"subscribe": "orders,later"}, {"assign": '{"orders": ["0-0"], "later": ["1-0"]}'}):
        with pytest.raises(TopicNotFound, match="topic 'later' does not exist"):
            harness.batch(**choice)
        with pytest.raises(TopicNotFound, match="topic 'later' does not exist"):
            harness.stream(**choice).initialOffset()
        assert harness.batch(**choice, waitForTopic="true") == [b"here"]
    reader = harness.stream(subscribe="orders,later", waitForTopic="true")
    position, batches = harness.drain(reader)
    assert batches == []
    harness.brokers[1].topics["later"] = 1
    harness.put("later", 1, 0, b"its first")
    assert harness.drain(reader, position)[1] == [[b"its first"]]


def test_the_checkpoint_wins_over_every_start_option(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    position = {"v": 2, "topics": {"orders": {"0-0": 21}}, "incarnations": {}}
    for options in (
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0-0": 42}}'},
        {"startingTimestamp": "2000-01-01T00:00:00Z"},
    ):
        assert harness.drain(harness.stream(**options), position)[1] == [[b"2", b"3"]]


def hourly(harness: Harness) -> None:
    """Messages of four hours in one partition, of the first in another; a third is empty."""
    for hour in range(4):
        harness.put("orders", 0, 0, b"%d" % hour, at_ms=T0_MS + hour * HOUR_MS)
    harness.put("orders", 1, 0, b"early", at_ms=T0_MS)
    harness.brokers[1].partition("orders", 1)


def test_a_read_between_two_times() -> None:
    harness = Harness()
    hourly(harness)
    second, fourth = str(T0_MS + HOUR_MS), str(T0_MS + 3 * HOUR_MS)
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    assert harness.batch(startingTimestamp=second, **lenient) == [b"1", b"2", b"3"]
    assert harness.batch(startingTimestamp=second, endingTimestamp=fourth, **lenient) == [b"1", b"2"]
    assert harness.batch(endingTimestamp=second) == [b"0", b"early"]
    assert harness.batch(startingTimestamp=fourth, endingTimestamp=second, **lenient) == []
    # a time in between: the next message; times go before offsets, the one for all before those for each
    assert harness.batch(startingTimestamp=str(T0_MS + 1), startingOffsets="earliest", **lenient) == [b"1", b"2", b"3"]
    with pytest.raises(
        OptionError, match=r"option startingTimestamp: orders/1-0, orders/1-1 has no message at or after"
    ):
        harness.batch(startingTimestamp=second)


def test_a_read_by_a_time_for_each_partition() -> None:
    harness = Harness()
    hourly(harness)
    times = '{"orders": {"0-0": %d, "1-0": "2020-01-01T00:00:00Z", "1-1": 5}}'
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    start, end = times % (T0_MS + 1), times % (T0_MS + 3 * HOUR_MS)
    assert harness.batch(startingOffsetsByTimestamp=start, **lenient) == [b"1", b"2", b"3", b"early"]
    assert harness.batch(endingOffsetsByTimestamp=end) == [b"0", b"1", b"2"]
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp: no value for orders/1-0, orders/1-1; expected"):
        harness.batch(startingOffsetsByTimestamp='{"orders": {"0-0": 5}}', **lenient)


def test_a_stream_from_a_time_and_new_partitions_from_their_first_byte() -> None:
    harness = Harness()
    hourly(harness)
    reader = harness.stream(startingTimestamp=str(T0_MS + 3 * HOUR_MS), startingOffsetsByTimestampStrategy="latest")
    start = reader.initialOffset()
    assert at(start) == {"0-0": 63, "1-0": 25, "1-1": 0}
    harness.put("orders", 0, 1, b"new partition", at_ms=T0_MS)
    harness.put("orders", 1, 1, b"late", at_ms=T0_MS)
    assert harness.drain(reader, start)[1] == [[b"3", b"late"], [b"new partition"]]


def test_a_broker_that_keeps_no_times_says_so() -> None:
    harness = Harness(extensions=NO_EXTENSIONS)
    hourly(harness)
    for options in ({"startingTimestamp": "1"}, {"endingTimestamp": "1"}):
        with pytest.raises(ExtensionMissing, match="broker b0:1 does not offer 'timestamp', which starting or ending"):
            harness.batch(**options)


class Groups:
    """A directory that keeps the offsets of groups."""

    def __init__(self, **known: int) -> None:
        self.known, self.committed = known, []

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert group == "billing"
        return {where: self.known[str(where.partition)] for where in partitions if str(where.partition) in self.known}

    def commit(self, group: str, offsets: Offsets) -> None:
        self.committed.append((group, {str(where): offset for where, offset in offsets.items()}))


def test_a_start_where_a_group_is_and_its_offsets_after_each_batch(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2")
    harness.put("orders", 1, 0, b"never read by the group")
    groups = Groups(**{"0-0": 21})
    choice = {"startingOffsets": "group", "group": "billing"}
    options = harness.options(Use.STREAM_READ, commitGroupOffsets="true", **choice)
    reader = StreamReader(MetaQSource(options, harness.pool, harness.clock, groups))
    position, batches = harness.drain(reader)
    assert batches == [[b"2", b"never read by the group"]]
    reported = "billing", {"orders/0-0": 42, "orders/1-0": 43}
    assert groups.committed == [reported], "told when the batch behind it is asked for"
    reader.commit(position)
    assert groups.committed == [reported, reported]
    batch = BatchReader(MetaQSource(harness.options(Use.BATCH_READ, **choice), harness.pool, harness.clock, groups))
    assert harness.values(batch, batch.partitions()) == [b"2", b"never read by the group"]


def test_a_group_needs_zookeeper(harness: Harness) -> None:
    for name, options in (
        ("startingOffsets", {"startingOffsets": "group"}),
        ("commitGroupOffsets", {"commitGroupOffsets": "true"}),
    ):
        with pytest.raises(OptionError, match=f"option {name}: .*needs discovery by ZooKeeper"):
            harness.stream(group="billing", **options)
    with pytest.raises(OptionError, match="ZooKeeper"):
        harness.batch(group="billing", startingOffsets="group")


def test_without_commit_group_offsets_nothing_is_committed_anywhere(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.drain(reader)
    before = sum(len(broker.commands) for broker in harness.brokers)
    reader.commit(position)
    assert sum(len(broker.commands) for broker in harness.brokers) == before
