"""The consumer for scripts, and a single fetch."""

from __future__ import annotations

import pytest
from fix_client import ADDRESS, MemoryCluster, memory_session

from metaq.backends.metaq.puts import encode_block
from metaq.client.consumer import AtEnd, Consumer, Moved, Run, fetch
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import CorruptFrame, OffsetMoved, TopicNotFound
from metaq.model import Message, Partition
from metaq.testing.memory import MemoryBroker

MESSAGES = [Message(b"one"), Message(b"two", "red"), Message(b"three")]


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(MemoryBroker({"t": 2, "empty": 1}, broker_id=3, segment_bytes_max=40))
    for message in MESSAGES:
        cluster.brokers[0].partition("t", 0).append(encode_block([message])[0])
    return cluster


def consumer_of(cluster: MemoryCluster) -> Consumer:
    return Consumer(FixedDirectory(cluster.addresses, cluster.pool), cluster.pool)


def test_messages_from_the_first_to_the_readable_end(cluster: MemoryCluster) -> None:
    frames = list(consumer_of(cluster).messages("t", Partition(3, 0)))
    assert [frame.message for frame in frames] == MESSAGES
    assert [(frame.offset, frame.end) for frame in frames] == [(0, 23), (23, 53), (53, 78)]


def test_reading_goes_on_where_it_stopped(cluster: MemoryCluster) -> None:
    consumer, partition = consumer_of(cluster), Partition(3, 0)
    first = next(consumer.messages("t", partition))
    rest = list(consumer.messages("t", partition, first.end))
    assert [frame.message for frame in rest] == MESSAGES[1:]
    assert list(consumer.messages("t", partition, rest[-1].end)) == []


def test_the_session_goes_back_to_the_pool(cluster: MemoryCluster) -> None:
    list(consumer_of(cluster).messages("t", Partition(3, 0)))
    assert cluster.pool.idle_count(cluster.addresses[0]) == 1
    assert cluster.transport.connections == 1


@pytest.mark.parametrize(("drop", "start", "to"), [(1, 0, 53), (0, 1000, 78)])
def test_a_start_outside_of_what_is_there_has_moved(cluster: MemoryCluster, drop: int, start: int, to: int) -> None:
    cluster.brokers[0].partition("t", 0).drop_segments(drop)
    with pytest.raises(OffsetMoved) as moved:
        list(consumer_of(cluster).messages("t", Partition(3, 0), start))
    assert (moved.value.asked, moved.value.to) == (start, to)


def test_a_message_that_fails_its_checksum_is_named_behind_the_good_ones(cluster: MemoryCluster) -> None:
    segment = cluster.brokers[0].partition("t", 0).segments[0][1]
    segment[-1] ^= 1
    messages = consumer_of(cluster).messages("t", Partition(3, 0))
    assert next(messages).message == MESSAGES[0]
    with pytest.raises(CorruptFrame, match="corrupt frame in t/3-0 at offset 23"):
        next(messages)


def test_an_unknown_topic_or_partition_is_reported_with_what_there_is(cluster: MemoryCluster) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(TopicNotFound, match=rf"'nosuch' does not exist on {ADDRESS}; topics there: empty, t"):
        next(consumer.messages("nosuch", Partition(3, 0)))
    with pytest.raises(ValueError, match="partition 3-1: partitions of t with messages: 3-0"):
        next(consumer.messages("t", Partition(3, 1)))
    with pytest.raises(ValueError, match="partition 3-0: partitions of empty with messages: none"):
        next(consumer.messages("empty", Partition(3, 0)))


def test_fetch_distinguishes_bytes_end_and_moved(cluster: MemoryCluster) -> None:
    session = memory_session(cluster.brokers[0])
    run = fetch(session, "t", 0, 0, 10)
    assert isinstance(run, Run)
    assert (run.offset, len(run.data), run.end) == (0, 10, 10)
    assert fetch(session, "t", 0, 78, 10) == AtEnd(78, "Could not find message at position 78")
    assert isinstance(fetch(session, "nosuch", 0, 0, 10), AtEnd)
    assert fetch(session, "t", 0, 2**63 - 1, 10) == Moved(78)
    assert fetch(session, "t", 0, -1, 10) == Moved(0)
