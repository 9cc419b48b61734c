"""Queries whose broker was put back to an older copy of its data, with the same incarnations; brokers in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from metaq_harness import NO_EXTENSIONS, Harness, MicroBatches, Tree
from metaq_harness import offsets as at
from rocketmq_harness import RocketMQHarness

from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message
from metaq_spark.errors import DataLoss
from metaq_spark.source.stream_reader import StreamReader

COPIED_MS = 1_795_156_200_000
READ_MS, SINCE_MS = COPIED_MS + 1004, COPIED_MS + 60_000


class Story:
    """A query has read ``a0`` to ``a4``; only the first two are in the copy that its broker is put back to."""

    partition, to = "0-0", "--to-time 2026-11-20T06:30:01.005Z"
    size = 22

    def __init__(self, **settings: Any) -> None:
        self.harness: Any = Harness(**settings)
        self.begin()

    def begin(self) -> None:
        self.put(b"a0", b"a1", at_ms=COPIED_MS)
        self.take_copy()
        self.put(b"a2", b"a3", b"a4", at_ms=READ_MS)

    def put(self, *payloads: bytes, at_ms: int = SINCE_MS) -> None:
        self.harness.put("orders", 0, 0, *payloads, at_ms=at_ms)

    def take_copy(self) -> None:
        self.copy = copy.deepcopy(self.harness.brokers[0].partitions)

    def put_back(self, *payloads: bytes) -> None:
        """Put the broker back to the copy, start it again, and put new messages."""
        self.harness.brokers[0].kill()
        self.harness.brokers[0].partitions = self.copy
        self.harness.brokers[0].start()
        self.put(*payloads)

    def stream(self, **options: str) -> StreamReader:
        reader: StreamReader = self.harness.stream(**options)
        return reader

    def run(self, position: Tree | None = None, **options: str) -> tuple[Tree, list[bytes]]:
        """A run to the end of what is there, from ``position`` on, or from the start."""
        brokers: MicroBatches = self.harness
        position, batches = brokers.drain(self.stream(startingOffsets="earliest", **options), position)
        return position, [value for batch in batches for value in batch]


class JavaStory(Story):
    """With a broker that keeps no times and does not say where messages begin."""

    to = "--to earliest"

    def __init__(self) -> None:
        super().__init__(extensions=NO_EXTENSIONS)

    def put(self, *payloads: bytes, at_ms: int = SINCE_MS) -> None:
        store = self.harness.brokers[0].partition("orders", 0)
        for payload in payloads:
            store.append(encode_frame(-at_ms, *encode_body(Message(payload))))


class RocketMQStory(Story):
    """With a queue."""

    partition, size = "broker-a:0", 1

    def __init__(self, harness: RocketMQHarness) -> None:
        self.harness = harness
        self.begin()

    def put(self, *payloads: bytes, at_ms: int = SINCE_MS) -> None:
        self.harness.put("a0", *payloads, store_ms=at_ms)

    def take_copy(self) -> None:
        self.copied = 2

    def put_back(self, *payloads: bytes) -> None:
        log = self.harness.cluster.broker("broker-a").store.queue("orders", 0)
        del log.stored[self.copied :]
        self.harness.restart()
        self.put(*payloads)


@pytest.fixture(params=["ours", "java", "rocketmq"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    if request.param == "rocketmq":
        with RocketMQHarness() as harness:
            yield RocketMQStory(harness)
    else:
        yield Story() if request.param == "ours" else JavaStory()


NEW = b"n0", b"n1", b"n2"


@pytest.mark.parametrize("more", [(), (b"n3",)], ids=["to the offset", "past it"])
def test_a_partition_that_has_grown_again(story: Story, more: tuple[bytes, ...]) -> None:
    position, values = story.run()
    assert values == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    story.put_back(*NEW, *more)
    said = (
        rf"orders/{story.partition}: offset {5 * story.size} was to be read next, but the message before it is not .*"
    )
    for _ in range(2):
        with pytest.raises(DataLoss, match=said + rf"older copy.* --partition {story.partition} {story.to}\. "):
            story.run(position)


def test_going_on_with_what_came_since(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    position, _ = story.run()
    story.put_back(*NEW, b"n3")
    position, values = story.run(position, failOnDataLoss="false")
    again = [b"a0", b"a1"] if isinstance(story, JavaStory) else []
    assert values == [*again, *NEW, b"n3"]
    assert "is not the one that was read" in caplog.text
    story.put(b"later")
    assert story.run(position)[1] == [b"later"]


def test_a_partition_that_ends_before_the_offset_goes_on(story: Story) -> None:
    position, _ = story.run()
    story.put_back(b"n0")
    reader, values = story.stream(failOnDataLoss="false", lossGraceMs="1ms"), []
    for _ in range(3):  # suspect, overdue, read
        position, read = story.harness.micro_batch(reader, position)
        values += read
    assert values == ([] if isinstance(story, JavaStory) else [b"n0"])


def test_a_query_that_runs_notices_it_by_its_new_connection(story: Story) -> None:
    if isinstance(story, RocketMQStory):
        pytest.skip("the harness restarts the client, not the broker")
    reader = story.stream(startingOffsets="earliest", retries="3")
    position, _ = story.harness.micro_batch(reader, reader.initialOffset())
    assert story.harness.micro_batch(reader, position) == (position, [])
    story.put_back(*NEW)
    with pytest.raises(DataLoss, match="is not the one that was read"):
        story.harness.micro_batch(reader, position)


def test_a_partition_that_grows_past_the_offset_while_it_is_waited_for(story: Story) -> None:
    position, _ = story.run()
    story.put_back(b"n0")
    reader = story.stream()
    assert story.harness.micro_batch(reader, position) == (position, [])
    story.put(b"n1", b"n2", b"n3")
    with pytest.raises(DataLoss, match="is not the one that was read"):
        story.harness.micro_batch(reader, position)


def test_a_java_brokers_partition_that_comes_back_with_other_messages() -> None:
    story = JavaStory()
    position, _ = story.run()
    story.copy = {}
    story.put_back()
    del story.harness.brokers[0].partitions["orders", 0]
    reader = story.stream()
    assert story.harness.micro_batch(reader, position) == (position, [])
    story.put(*NEW, *NEW)
    with pytest.raises(DataLoss, match="is not the one that was read"):
        story.harness.micro_batch(reader, position)


def test_a_batch_that_was_planned_is_not_read_from_another_log(story: Story) -> None:
    reader = story.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    story.harness.clock.advance(1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert story.harness.replay(story.stream(), start, end) == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    story.put_back(*NEW)
    with pytest.raises(DataLoss, match="is not the one that was read"):
        story.stream().partitions(start, end)
    assert story.harness.replay(story.stream(failOnDataLoss="false"), start, end) == [b"a0", b"a1", *NEW]


@pytest.mark.parametrize("at_ms", [READ_MS, SINCE_MS], ids=["later", "by a clock that was set back"])
def test_a_planned_batch_that_begins_in_another_log_is_not_read(story: Story, at_ms: int) -> None:
    """Its start may be inside a message now."""
    position, _ = story.run()
    story.put(b"a5", b"a6", at_ms=at_ms)
    reader = story.stream()
    end, _ = story.harness.micro_batch(reader, position)
    new = [b"new %d" % number for number in range(6)]
    story.put_back(*new)
    with pytest.raises(DataLoss, match="is not the one that was read"):
        story.stream().partitions(position, end)
    reader = story.stream(failOnDataLoss="false")
    for start in (end, position):  # Spark before 4.2 asks about the end first
        assert story.harness.values(reader, reader.partitions(start, end)) == []
    again = [b"a0", b"a1"] if isinstance(story, JavaStory) or at_ms == SINCE_MS else []
    assert story.run(end, failOnDataLoss="false")[1] == [*again, *new]


def test_a_run_that_ends_where_the_log_did_when_it_began(story: Story) -> None:
    """AvailableNow: what comes after the broker was put back has other boundaries."""
    position, _ = story.run()
    reader = story.stream(failOnDataLoss="false", lossGraceMs="1ms")
    reader.prepareForTriggerAvailableNow()
    story.put_back()
    position, values = story.harness.micro_batch(reader, position)
    new = [b"new %d" % number for number in range(6)]
    story.put(*new)
    position, batches = story.harness.drain(reader, position)
    assert [*values, *(value for batch in batches for value in batch), *story.run(position)[1]] == new


def test_the_same_log_goes_on(story: Story) -> None:
    """Also where retention has removed what was read last, and with a checkpoint of an older version."""
    position, _ = story.run()
    assert list(position["last"]["orders"]) == [story.partition]
    story.put(b"a5")
    old = {"v": 2, "topics": position["topics"], "incarnations": position["incarnations"]}
    for known in (position, old):
        after, values = story.run(known)
        assert values == [b"a5"]
        assert after["last"]["orders"][story.partition] != position["last"]["orders"][story.partition]
    assert story.run(position, proveOffsets="false")[0] == {**old, "topics": after["topics"]}


def test_an_offset_between_two_batches_is_noted_too(story: Story) -> None:
    reader = story.stream(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    first, _ = story.harness.micro_batch(reader, reader.initialOffset())
    assert at(first)[story.partition] == 3 * story.size
    story.put_back(*NEW)
    with pytest.raises(DataLoss, match=f"offset {3 * story.size} was to be read next"):
        story.run(first)


def test_what_retention_has_removed_proves_nothing() -> None:
    story = Story(segment_bytes_max=40)
    position, _ = story.run()
    story.put(b"a5", b"a6")
    store = story.harness.brokers[0].partition("orders", 0)
    while store.start < at(position)["0-0"]:
        store.drop_segments(1)
    assert story.run(position, failOnDataLoss="false")[1] in ([b"a5", b"a6"], [b"a6"])


def test_a_message_too_long_to_be_found_at_a_java_broker_is_not_noted() -> None:
    story = JavaStory()
    position, _ = story.run()
    story.put(b"x" * 70_000, b"short")
    after, values = story.run(position, maxOffsetsPerTrigger="1")
    assert [len(value) for value in values] == [70_000, 5]
    assert after["last"]["orders"].keys() == {"0-0"}
