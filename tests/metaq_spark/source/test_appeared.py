"""Partitions that appear in a stream that began with ``latest`` or at a time; brokers in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import commit, plan
from metaq_harness import ADDRESSES, NO_EXTENSIONS, Harness, MicroBatches, Tree
from metaq_harness import offsets as at
from rocketmq_harness import RocketMQHarness

from metaq.model import TopicPartition
from metaq_spark.checkpoint.folder import read_checkpoint
from metaq_spark.checkpoint.move import Choice, plan_drop, plan_move
from metaq_spark.options.positions import Earliest
from metaq_spark.source.stream_reader import StreamReader

NOW_MS = time.time_ns() // 1_000_000
AGO_MS, SOON_MS = NOW_MS - 3_600_000, NOW_MS + 3_600_000

LATEST = {"startingOffsets": "latest"}
AT_A_TIME = {
    "startingTimestamp": str(NOW_MS - 60_000),
    "startingOffsetsByTimestampStrategy": "latest",
}
FROM_THE_START = {"startingOffsets": "earliest"}


class Story:
    """A query begins while the second broker, which has two old messages, is not found; then that broker is found."""

    new, size = "1-0", 22

    def __init__(self, **settings: Any) -> None:
        self.harness: Any = Harness(**settings)
        self.there = str(ADDRESSES[0])
        self.put_at_the_other(b"a0", at_ms=AGO_MS)
        self.put(b"b0", b"b1", at_ms=AGO_MS)

    def put(self, *payloads: bytes, at_ms: int = SOON_MS) -> None:
        self.harness.put("orders", 1, 0, *payloads, at_ms=at_ms)

    def put_at_the_other(self, *payloads: bytes, at_ms: int = SOON_MS) -> None:
        self.harness.put("orders", 0, 0, *payloads, at_ms=at_ms)

    def returns(self) -> None:
        self.there = ",".join(map(str, ADDRESSES))

    def stream(self, **options: str) -> StreamReader:
        reader: StreamReader = self.harness.stream(brokers=self.there, **options)
        return reader

    def run(self, position: Tree | None = None, **options: str) -> tuple[Tree, list[list[bytes]]]:
        """A run to the end of what is there."""
        brokers: MicroBatches = self.harness
        end, batches = brokers.drain(self.stream(**options), position)
        return end, batches


class RocketMQStory(Story):
    """The same with a broker that is out of the route."""

    new, size = "broker-b:0", 1

    def __init__(self, harness: RocketMQHarness) -> None:
        self.harness = harness
        self.put_at_the_other(b"a0", at_ms=AGO_MS)
        self.put(b"b0", b"b1", at_ms=AGO_MS)
        harness.cluster.stop_broker("broker-b")
        harness.restart()

    def put(self, *payloads: bytes, at_ms: int = SOON_MS) -> None:
        self.harness.put("b0", *payloads, store_ms=at_ms)

    def put_at_the_other(self, *payloads: bytes, at_ms: int = SOON_MS) -> None:
        self.harness.put("a0", *payloads, store_ms=at_ms)

    def returns(self) -> None:
        self.harness.cluster.start_broker("broker-b")
        self.harness.restart()

    def stream(self, **options: str) -> StreamReader:
        reader: StreamReader = self.harness.stream(**options)
        return reader


@pytest.fixture(params=["metaq", "rocketmq"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    if request.param == "rocketmq":
        with RocketMQHarness() as harness:
            yield RocketMQStory(harness)
    else:
        yield Story()


def begun(story: Story, **options: str) -> Tree:
    position, batches = story.run(**options)
    assert batches == ([[b"a0"]] if options == FROM_THE_START else [])
    return position


@pytest.mark.parametrize("began", [LATEST, AT_A_TIME], ids=["latest", "at a time"])
@pytest.mark.parametrize("later", [LATEST, FROM_THE_START], ids=["", "options changed"])
def test_a_partition_that_was_away_begins_where_the_query_began(
    story: Story, began: dict[str, str], later: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    position = begun(story, **began)
    story.returns()
    position, batches = story.run(position, **later)
    assert (at(position)[story.new], batches) == (2 * story.size, [])
    assert f"orders/{story.new} appeared after the query began" in caplog.text
    assert f"does not read [0, {2 * story.size})" in caplog.text
    story.put(b"b2", b"b3")
    position, batches = story.run(position, **later)
    assert batches == [[b"b2", b"b3"]]


def test_what_came_while_it_was_away_is_read(story: Story) -> None:
    position = begun(story, **LATEST)
    story.put(b"b2", b"b3")
    story.returns()
    assert story.run(position)[1] == [[b"b2", b"b3"]]


def test_a_query_that_began_with_everything_reads_everything(story: Story) -> None:
    position = begun(story, **FROM_THE_START)
    story.returns()
    assert story.run(position)[1] == [[b"b0", b"b1"]]


@pytest.mark.parametrize("form", [2, 3])
def test_a_checkpoint_of_an_older_version(story: Story, form: int) -> None:
    """It does not say when the query began."""
    position = begun(story, **LATEST)
    del position["since_ms"], position["since_brokers"]
    position["v"] = form
    if form == 2:
        del position["last"]
    story.returns()
    assert story.run(position)[1] == [[b"b0", b"b1"]]


def test_a_checkpoint_that_an_older_version_can_read(story: Story) -> None:
    position = begun(story, **LATEST)
    assert position["v"] == 4
    story.put_at_the_other(b"a1")
    position, _ = story.run(position, proveOffsets="false")
    assert (position["v"], position.keys() & {"since_ms", "since_brokers", "last"}) == (2, set())


def test_a_run_that_ends_by_itself(story: Story) -> None:
    position = begun(story, **LATEST)
    story.returns()
    story.put(b"b2")
    reader = story.stream()
    reader.prepareForTriggerAvailableNow()
    assert story.harness.drain(reader, position)[1] == [[b"b2"]]


def test_moved_queries_keep_it(story: Story, tmp_path: Path) -> None:
    position = begun(story, **LATEST)
    plan(tmp_path, 0, json.dumps(position))
    commit(tmp_path, 0)
    source = story.stream()._source
    name = "rocketmq" if isinstance(story, RocketMQStory) else "metaq"
    moved = plan_move(read_checkpoint(tmp_path), source.cluster, Earliest(), Choice(format=name), 0)
    (line,) = moved.batch.lines.values()
    assert json.loads(line)["since_ms"] == position["since_ms"]
    partitions = frozenset(TopicPartition("orders", source.notation.parse_partition(n)) for n in list(at(position))[1:])
    if partitions:
        dropped = plan_drop(read_checkpoint(tmp_path), Choice(partitions=partitions, format=name), 0)
        (line,) = dropped.batch.lines.values()
        assert json.loads(line)["since_ms"] == position["since_ms"]


def test_a_broker_without_times_is_read_from_its_first_message(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(extensions=NO_EXTENSIONS)
    position = begun(story, **LATEST)
    story.returns()
    assert story.run(position)[1] == [[b"b0", b"b1"]]
    assert "orders/1-0 appeared after the query began" in caplog.text
    assert "is read from the first message on, however old" in caplog.text


def test_a_partition_of_a_known_broker_is_new_whatever_the_clock() -> None:
    story = Story()
    story.returns()
    reader = story.stream()
    position = reader.initialOffset()
    story.harness.put("orders", 0, 1, b"by a clock that is slow", at_ms=AGO_MS)
    assert story.harness.drain(reader, position)[1] == [[b"by a clock that is slow"]]


def test_a_broker_that_goes_away_again_is_asked_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is listed, and gone when its partition is looked up."""
    story = Story()
    position = begun(story, **LATEST)
    story.returns()
    reader = story.stream(brokerWaitMs="0", retries="0")
    positions = reader._source.cluster.positions
    first_at = positions.first_at

    def broken(times_ms: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        story.harness.brokers[1].kill()
        try:
            return first_at(times_ms)
        finally:
            story.harness.brokers[1].start()

    monkeypatch.setattr(positions, "first_at", broken)
    assert story.harness.micro_batch(reader, position) == (position, [])
    assert "Where the query begins at broker 1 is looked up when it is back" in caplog.text
    monkeypatch.undo()
    end, _ = story.harness.micro_batch(reader, position)
    assert at(end)["1-0"] == 2 * story.size
