"""Queues that are pulled together: whatever is wrong with one, the read says and gives what it does alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from rocketmq_harness import RocketMQHarness

from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq_spark.backends.rocketmq import small_ranges
from metaq_spark.backends.rocketmq.range_task import QueuePartition
from metaq_spark.backends.rocketmq.small_ranges import conversations, read_small
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.columns.rocketmq.checks import UnusableRecord
from metaq_spark.errors import DataLoss, ReadFailed
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.tasks import RangeGroup

QUEUES = ("a0", "a1", "b0", "b1")
BODIES = [f"{queue} {n}".encode() for queue in QUEUES for n in range(42)]
VICTIM = TopicPartition("orders", Partition("broker-a", 1))


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    """Every queue of ``orders`` with 42 messages, which are two pulls."""
    with RocketMQHarness() as harness:
        for queue in QUEUES:
            harness.put(queue, *(f"{queue} {n}".encode() for n in range(42)))
        yield harness


def planned(harness: RocketMQHarness, **options: str) -> tuple[BatchReader, RangeGroup]:
    reader = BatchReader(harness.source(Use.BATCH_READ, **options))
    [task] = reader.partitions()
    assert isinstance(task, RangeGroup)
    return reader, task


def values(harness: RocketMQHarness, reader: BatchReader, task: RangeGroup) -> list[bytes]:
    return harness.values(reader, [task])


def pulled_of_victim(harness: RocketMQHarness) -> int:
    requests = harness.cluster.broker("broker-a").requests
    return sum(
        command.code == PullMessage.CODE and command.ext["queueId"] == "1" and command.ext["maxMsgNums"] != "8"
        for command in requests
    )


def changed_once(
    harness: RocketMQHarness, change: Callable[[RemotingCommand, RemotingCommand], RemotingCommand]
) -> None:
    """Change the answer to the first pull of the victim's second half."""
    left = [1]

    def tamper(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        place = request.ext.get("queueId"), request.ext.get("queueOffset")
        if request.code == PullMessage.CODE and place == ("1", "32") and left:
            left.pop()
            return change(request, answer)
        return answer

    harness.cluster.broker("broker-a").tamper = tamper


def flipped(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    at = answer.body.index(b"a1 32")
    return replace(answer, body=answer.body[:at] + b"A" + answer.body[at + 1 :])


FLEETING: dict[str, Callable[[RemotingCommand, RemotingCommand], RemotingCommand]] = {
    "busy": lambda request, answer: request.reply(ResponseCode.SYSTEM_BUSY, remark="busy"),
    "not yet": lambda request, answer: replace(answer, code=ResponseCode.PULL_NOT_FOUND, body=b""),
    "cut": lambda request, answer: replace(answer, body=answer.body[: len(answer.body) // 2]),
}


def test_all_are_read_with_one_pull_for_each_32_messages(harness: RocketMQHarness) -> None:
    reader, task = planned(harness)
    assert values(harness, reader, task) == BODIES
    assert pulled_of_victim(harness) == 2


@pytest.mark.parametrize("change", FLEETING.values(), ids=FLEETING)
def test_what_goes_wrong_once_is_asked_again_for_that_queue_alone(
    harness: RocketMQHarness, change: Callable[[RemotingCommand, RemotingCommand], RemotingCommand]
) -> None:
    reader, task = planned(harness)
    changed_once(harness, change)
    assert values(harness, reader, task) == BODIES
    assert pulled_of_victim(harness) == 4


def test_a_short_answer_is_read_on(harness: RocketMQHarness) -> None:
    harness.put("b1", *[b"x" * 20_000] * 30)  # a pull gives 256 KiB
    reader, task = planned(harness)
    assert values(harness, reader, task) == [*BODIES, *[b"x" * 20_000] * 30]


def test_a_lost_connection_is_made_again(harness: RocketMQHarness) -> None:
    reader, task = planned(harness)
    harness.cluster.broker("broker-a").disconnect(PullMessage.CODE)
    assert values(harness, reader, task) == BODIES


@pytest.mark.parametrize("together", [True, False])
def test_pulls_that_are_always_lost_are_sent_as_often_as_said(harness: RocketMQHarness, together: bool) -> None:
    reader, task = planned(harness, retries="2")
    broker = harness.cluster.broker("broker-a")
    before = broker.counts()[PullMessage.CODE]
    broker.disconnect(PullMessage.CODE, times=100)
    with pytest.raises(ReadFailed, match=r"orders/broker-a:0 could not .* from offset 0 on: .* tried 3 times in a row"):
        harness.values(reader, [task] if together else task.parts)
    assert broker.counts()[PullMessage.CODE] - before == 3


def test_damage_is_met_by_the_read_of_the_queue(harness: RocketMQHarness) -> None:
    reader, task = planned(harness)
    changed_once(harness, flipped)
    assert values(harness, reader, task) == BODIES
    harness.cluster.broker("broker-a").tamper = lambda request, answer: (
        flipped(request, answer) if b"a1 32" in answer.body else answer
    )
    with pytest.raises(UnusableRecord, match="queue offset 32"):
        values(harness, reader, task)
    reader, task = planned(harness, onCorrupt="skip")
    assert values(harness, reader, task) == [body for body in BODIES if body != b"a1 32"]


def test_messages_that_were_removed_are_data_loss(harness: RocketMQHarness) -> None:
    reader, task = planned(harness)
    harness.cluster.remove_below("orders", VICTIM.partition, 35)
    with pytest.raises(DataLoss, match="orders queue broker-a:1"):
        values(harness, reader, task)


@pytest.mark.parametrize("option", [{"tags": "hot"}, {"compactedTopics": "true"}, {"dropRepeatedWithin": "5"}])
def test_where_offsets_may_be_missing_queues_are_read_alone(harness: RocketMQHarness, option: dict[str, str]) -> None:
    source = harness.source(Use.BATCH_READ, **option)
    part = QueuePartition(VICTIM, OffsetRange(0, 42))
    assert read_small([part], source.options, harness.pool, harness.directory) == {}


def test_only_small_neighbours_at_one_broker_are_asked_together(harness: RocketMQHarness) -> None:
    options = harness.source(Use.BATCH_READ, fetchBytes="1m").options  # four answers

    def part(queue: str, count: int) -> QueuePartition:
        where = TopicPartition("orders", Partition(f"broker-{queue[0]}", int(queue[1:])))
        return QueuePartition(where, OffsetRange(5, 5 + count))

    parts = [part("a0", 33), part("a1", 64), part("a2", 1), part("b0", 129), part("b1", 128), part("a3", 1)]
    assert list(conversations(parts, options)) == [parts[:2], parts[2:3], parts[4:5], parts[5:]]


def test_ranges_that_are_larger_than_they_seem_are_not_kept_in_memory(harness: RocketMQHarness) -> None:
    big = [bytes(1 << 20)] * 9
    for queue in ("a0", "b1"):
        harness.put(queue, *big)  # behind the messages that tell how large its range is
    reader, task = planned(harness)
    sizes = [batch.nbytes for batch in reader.read(task)]
    assert sum(sizes) > 18 << 20
    assert max(sizes) <= 9 << 20
    assert sorted(values(harness, reader, task)) == sorted(BODIES + 2 * big)


def test_bodies_that_become_large_are_left_to_the_next_reader(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_ranges, "ROWS_BYTES_MAX", 500)
    reader, task = planned(harness)
    parts = [part for part in task.parts if isinstance(part, QueuePartition)]
    source = reader._source
    assert isinstance(source, RocketMQSource)
    assert len(read_small(parts, source.options, harness.pool, harness.directory)) < len(QUEUES)
    assert sorted(values(harness, reader, task)) == sorted(BODIES)
