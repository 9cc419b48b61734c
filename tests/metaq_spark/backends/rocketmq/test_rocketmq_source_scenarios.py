"""What users of connectors for RocketMQ meet: each has a test, in the order of the table in docs/rocketmq.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fix_broker import wait_until
from metaq_harness import offsets
from rocketmq_harness import RocketMQHarness

from metaq.model import Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.offsets import UpdateConsumerOffset
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq_spark.backends.rocketmq.range_task import ASK_AGAIN_S
from metaq_spark.errors import DataLoss


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    with RocketMQHarness() as harness:
        yield harness


def test_a_restart_reads_nothing_twice_and_misses_nothing(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1", b"2")
    position, read = harness.drained(harness.stream(startingOffsets="earliest"))
    assert (read, offsets(position)["broker-a:0"]) == ([b"1", b"2"], 2)  # the next message to read
    harness.put("a0", b"3")
    harness.restart()
    position, read = harness.drained(harness.stream(startingOffsets="earliest"), position)
    assert (read, offsets(position)["broker-a:0"]) == ([b"3"], 3)


def test_a_committed_group_offset_is_the_next_to_read(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1", b"2")
    harness.drained(harness.stream(startingOffsets="earliest", group="g", commitGroupOffsets="true"))
    store = harness.cluster.broker("broker-a").store
    assert store.group_offsets["g", "orders", 0] == 2
    harness.put("a0", b"3")
    assert harness.drained(harness.stream(startingOffsets="group", group="g"))[1] == [b"3"]


def test_a_broker_that_does_not_answer_commits_holds_up_nobody(
    harness: RocketMQHarness, caplog: pytest.LogCaptureFixture
) -> None:
    silent = harness.cluster.broker("broker-a")
    silent.latency_s = lambda command: 1000.0 if command.code == UpdateConsumerOffset.CODE else 0.0
    harness.put("a0", b"1", b"2")
    harness.put("b0", b"3")
    reader = harness.stream(startingOffsets="earliest", group="g", commitGroupOffsets="true")
    position, _ = harness.drained(reader)
    harness.put("b0", b"4")
    assert harness.drained(reader, position)[1] == [b"4"]
    store = harness.cluster.broker("broker-b").store
    wait_until(lambda: store.group_offsets.get(("g", "orders", 0)) == 2, "the other broker has the newest offset")
    assert [one.getMessage() for one in caplog.records if "of group g" in one.getMessage()] == [
        "the offsets of group g are not written for now: broker 'broker-a' does not answer"
    ]


def test_the_checkpoint_goes_before_the_start_option(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1")
    position, _ = harness.drained(harness.stream(startingOffsets="earliest"))
    harness.put("a0", b"2")
    assert harness.drained(harness.stream(startingOffsets="latest"), position)[1] == [b"2"]


def test_an_end_before_the_place_already_read_waits(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.drained(reader)
    harness.cluster.broker("broker-a").answers.lag = 1  # as a slave that is behind says
    harness.restart()
    reader = harness.stream(startingOffsets="earliest", lossGraceMs="1h")
    assert harness.drained(reader, position) == (position, [])
    harness.cluster.broker("broker-a").answers.lag = 0
    harness.put("a0", b"4")
    assert harness.drained(reader, position)[1] == [b"4"]


def test_a_queue_that_is_added_is_read_from_its_first_message(harness: RocketMQHarness) -> None:
    reader = harness.stream(startingOffsets="latest")
    position, _ = harness.drained(reader)
    harness.cluster.create_topic("orders", queues=3, broker="broker-a")
    harness.put("a2", b"first", b"second")
    harness.directory.invalidate()
    assert harness.drained(reader, position)[1] == [b"first", b"second"]


def test_a_broker_that_leaves_and_returns(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1")
    harness.put("b0", b"2")
    reader = harness.stream(startingOffsets="earliest")
    position, read = harness.drained(reader)
    assert read == [b"1", b"2"]
    harness.put("b0", b"3")
    harness.cluster.stop_broker("broker-b")
    harness.directory.invalidate()
    harness.put("a0", b"4")
    position, read = harness.drained(reader, position)
    assert (read, offsets(position)["broker-b:0"]) == ([b"4"], 1)
    harness.cluster.start_broker("broker-b")
    assert harness.drained(reader, position)[1] == [b"3"]


def test_a_run_that_begins_while_a_broker_is_away_waits_for_it(harness: RocketMQHarness) -> None:
    harness.put("b0", b"1")
    position, _ = harness.drained(harness.stream(startingOffsets="earliest"))
    harness.put("b0", b"2")
    harness.cluster.stop_broker("broker-b")
    harness.restart()
    reader = harness.stream(startingOffsets="earliest", lossGraceMs="2s")
    for _ in range(4):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.cluster.start_broker("broker-b")
    assert harness.drained(reader, position)[1] == [b"2"]


def test_a_master_that_is_down_is_read_from_its_slave() -> None:
    with RocketMQHarness({"broker-a": (1,)}) as harness:
        harness.put("a0", b"1")
        reader = harness.stream(startingOffsets="earliest")
        position, _ = harness.drained(reader)
        harness.put("a0", b"2")
        harness.cluster.stop_broker("broker-a", 0)
        assert harness.drained(reader, position)[1] == [b"2"]


def test_a_slave_that_does_not_know_the_topic_yet_is_asked_again() -> None:
    with RocketMQHarness({"broker-a": (1,)}) as harness:
        harness.put("a0", b"1", b"2", b"3")
        reader = harness.stream(startingOffsets="earliest", maxBytesPerTrigger="1m")
        harness.cluster.stop_broker("broker-a", 0)
        slave = harness.cluster.broker()  # master and slave have one script
        slave.refuse(PullMessage.CODE, ResponseCode.TOPIC_NOT_EXIST, times=2)
        assert harness.drained(reader)[1] == [b"1", b"2", b"3"]
        assert slave.counts()[PullMessage.CODE] >= 3


def test_a_topic_that_is_created_after_the_query(harness: RocketMQHarness) -> None:
    reader = harness.stream(subscribe="later", waitForTopic="true")
    position, read = harness.drained(reader)
    assert (position["topics"], read) == ({}, [])
    harness.cluster.create_topic("later", queues=1, broker="broker-a")
    harness.put("a0", b"first", topic="later")
    harness.directory.invalidate()
    assert harness.drained(reader, position)[1] == [b"first"]


def test_an_idle_queue_among_busy_ones(harness: RocketMQHarness) -> None:
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    position = reader.initialOffset()
    for number in range(3):
        harness.put("a0", b"%d" % number)
        harness.put("b1", b"%d" % number)
    position, read = harness.drained(reader, position)
    assert read == sorted([b"0", b"1", b"2"] * 2)
    assert offsets(position) == {"broker-a:0": 3, "broker-a:1": 0, "broker-b:0": 0, "broker-b:1": 3}


def test_a_filter_that_matches_nothing_still_moves_on(harness: RocketMQHarness) -> None:
    harness.put("a0", *[b"x"] * 100, tag="other")
    reader = harness.stream(startingOffsets="earliest", tags="wanted || missing")
    position, read = harness.drained(reader)
    assert (read, offsets(position)["broker-a:0"]) == ([], 100)
    harness.put("a0", b"mine", tag="wanted")
    assert harness.drained(reader, position)[1] == [b"mine"]


# ---- and what else the issue of a living cluster is


def test_a_name_server_that_dies() -> None:
    with RocketMQHarness(name_server_count=2) as harness:
        harness.put("a0", b"1")
        reader = harness.stream(startingOffsets="earliest")
        position, _ = harness.drained(reader)
        harness.cluster.stop_name_server(0)
        harness.directory.invalidate()
        harness.put("a0", b"2")
        position, read = harness.drained(reader, position)
        assert read == [b"2"]
        harness.cluster.stop_name_server(1)  # what they said last stands
        harness.directory.invalidate()
        harness.put("a0", b"3")
        assert harness.drained(reader, position)[1] == [b"3"]


def test_retention_that_passed_the_query(harness: RocketMQHarness) -> None:
    harness.put("a0", *(b"%d" % n for n in range(5)))
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    position, read = harness.micro_batch(reader, reader.initialOffset())
    assert read == [b"0", b"1"]
    harness.cluster.remove_below("orders", Partition("broker-a", 0), 4)
    with pytest.raises(
        DataLoss, match=r"orders/broker-a:0: offset 2 was to be read next, but the broker holds \[4, 5\)"
    ):
        harness.micro_batch(reader, position)
    accepted = harness.stream(startingOffsets="earliest", failOnDataLoss="false")
    assert harness.drained(accepted, position)[1] == [b"4"]


def test_retention_that_overtakes_a_task(harness: RocketMQHarness, caplog: pytest.LogCaptureFixture) -> None:
    harness.put("a0", *(b"%d" % n for n in range(5)))
    start = harness.stream(startingOffsets="earliest").initialOffset()
    for fail in (True, False):
        reader = harness.stream(startingOffsets="earliest", failOnDataLoss=str(fail))
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        harness.cluster.remove_below("orders", Partition("broker-a", 0), 3)
        if fail:
            with pytest.raises(DataLoss, match="has offsets 3 to 5, not 0: older messages were removed"):
                harness.replay(reader, start, end)
        else:
            end["topics"]["orders"]["broker-a:0"] = 5
            assert harness.replay(reader, start, end) == [b"3", b"4"]


def test_a_topic_that_was_made_again_is_data_loss_when_it_is_shorter(harness: RocketMQHarness) -> None:
    harness.put("a0", b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest", lossGraceMs="3s")
    position, _ = harness.drained(reader)
    store = harness.cluster.broker("broker-a").store
    store._queues.clear()
    harness.put("a0", b"new")
    for _ in range(3):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.clock.advance(3)
    with pytest.raises(DataLoss, match="the topic was deleted and made again"):
        harness.micro_batch(reader, position)


def test_a_replay_has_the_same_tasks_from_a_broker_that_forgot(harness: RocketMQHarness) -> None:
    harness.put("a0", *[bytes(100)], *[bytes(9000)] * 9)
    harness.put("b0", *[bytes(2000)] * 10)
    reader = harness.stream(startingOffsets="earliest", minPartitions="6")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    planned = reader.partitions(start, end)

    def from_disk(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code != PullMessage.CODE or not response.body:
            return response
        size = int.from_bytes(response.body[:4])
        ext = {**response.ext, "nextBeginOffset": str(int(command.ext["queueOffset"]) + 1)}
        return replace(response, ext=ext, body=response.body[:size])

    for name in ("broker-a", "broker-b"):
        harness.cluster.broker(name).tamper = from_disk
    assert harness.stream(startingOffsets="earliest", minPartitions="6").partitions(start, end) == planned
    assert len(planned) >= 6


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_a_task_misses_at_the_end_is_asked_for_again(
    harness: RocketMQHarness, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """A master that was frozen answers for a moment, although another one was elected meanwhile."""
    harness.put("a0", b"0")
    reader = harness.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    start["topics"]["orders"]["broker-a:0"], end["topics"]["orders"]["broker-a:0"] = 3, 5

    def sleep(seconds: float) -> None:
        if seconds == ASK_AGAIN_S and comes_back:
            harness.put("a0", b"1", b"2", b"3", b"4")

    monkeypatch.setattr(harness.pool.clock, "sleep", sleep)
    if comes_back:
        assert harness.replay(reader, start, end) == [b"3", b"4"]
    else:
        with pytest.raises(DataLoss, match="has offsets 0 to 1, not 3: the queue was created again"):
            harness.replay(reader, start, end)
