"""Stories of how much a micro-batch and a task read, over brokers in memory."""

from __future__ import annotations

import json
import time

import pytest
from metaq_harness import NO_EXTENSIONS, Harness
from metaq_harness import offsets as at

from metaq.protocols.text.commands import Get, GetOffset, Stats
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.spark_version import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def numbered(count: int, size: int = 4) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(count)]


def test_batches_of_so_many_messages(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(10))
    harness.put("orders", 1, 1, *numbered(30))
    _, batches = harness.drain(harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="8"))
    assert [len(values) for values in batches] == [8, 8, 8, 8, 8]
    assert sorted(value for values in batches for value in values) == sorted(numbered(10) + numbered(30))
    assert batches[0] == numbered(2) + numbered(6)


def test_messages_of_very_different_sizes_are_counted_not_weighed(harness: Harness) -> None:
    payloads = [bytes(100_000) if n % 7 == 0 else b"small %d" % n for n in range(60)]
    harness.put("orders", 0, 0, *payloads)
    _, batches = harness.drain(harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="13"))
    assert [len(values) for values in batches] == [13, 13, 13, 13, 8]
    assert [value for values in batches for value in values] == payloads


def test_both_limits_hold(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(20))  # 24 bytes each
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "96"}
    assert [len(values) for values in harness.drain(harness.stream(**options))[1]] == [4, 4, 4, 4, 4]
    options["maxBytesPerTrigger"] = "1g"
    assert [len(values) for values in harness.drain(harness.stream(**options))[1]] == [5, 5, 5, 5]


def test_every_limit_that_spark_knows_is_kept(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(20))
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    start = reader.initialOffset()
    for limit, count in (
        (ReadAllAvailable(), 20),
        (ReadMaxRows(3), 3),
        (ReadMaxBytes(100), 4),
        (reader.getDefaultReadLimit(), 10),
        (ReadMinRows(5), 10),
    ):
        assert len(harness.micro_batch(reader, start, limit)[1]) == count


def test_no_partition_starves_under_a_limit_below_the_number_of_partitions(harness: Harness) -> None:
    for broker in (0, 1):
        for index in (0, 1):
            harness.put("orders", broker, index, *numbered(3 + 50 * index))
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    end, values = harness.micro_batch(reader, reader.initialOffset())
    assert set(at(end).values()) == {24}
    assert len(values) == 4


def test_batches_wait_for_enough_messages_but_not_for_ever(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(2))
    reader = harness.stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    position, values = harness.micro_batch(reader, reader.initialOffset())
    assert len(values) == 2  # the first of a run goes at once
    harness.put("orders", 0, 0, *numbered(3))
    harness.put("orders", 0, 1, *numbered(1))
    available = [harness.micro_batch(reader, position) for _ in range(10)]
    assert available == [(position, [])] * 10
    harness.put("orders", 0, 0, *numbered(2))
    position, values = harness.micro_batch(reader, position)
    assert len(values) == 5
    assert len(harness.micro_batch(reader, position)[1]) == 0  # "0-1" was noted, one message of it is not enough
    harness.clock.advance(60)
    assert harness.micro_batch(reader, position)[1] == numbered(1)


def test_waiting_for_enough_messages_does_not_walk_them_again_and_again(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(1))
    reader = harness.stream(startingOffsets="earliest", minOffsetsPerTrigger="100")
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    harness.put("orders", 0, 0, *[bytes(500)] * 30)
    harness.micro_batch(reader, position)
    before = harness.count(Get) + harness.count(GetOffset)
    for _ in range(20):
        assert harness.micro_batch(reader, position) == (position, [])
    assert harness.count(Get) + harness.count(GetOffset) == before


def test_available_now_does_not_wait_for_enough_messages(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(7))
    options = {"minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4"}
    assert [len(values) for values in harness.available_now(**options)[1]] == [4, 3]


def test_available_now_under_all_limits_ends_at_what_was_there(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(11))
    reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", maxBytesPerTrigger="72")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    harness.put("orders", 0, 0, *numbered(50))
    harness.put("orders", 1, 0, *numbered(50))
    reader.prepareForTriggerAvailableNow()  # once is enough: what came meanwhile is for the next run
    position, batches = harness.drain(reader, start)
    assert [len(values) for values in batches] == [3, 3, 3, 2]
    assert at(position) == {"0-0": 11 * 24}


def test_large_ranges_are_cut_into_tasks(harness: Harness) -> None:
    payloads = [bytes([n]) * (n * 37 % 400) for n in range(100)]
    harness.put("orders", 0, 0, *payloads[:90])
    harness.put("orders", 1, 0, *payloads[90:])
    for options, count in (({"minPartitions": "8"}, 8), ({"maxBytesPerPartition": "2k"}, 10), ({}, 2)):
        alone = {"minBytesPerPartition": "1"} | options
        reader = BatchReader(MetaQSource(harness.options(Use.BATCH_READ, **alone), harness.pool, harness.clock))
        tasks = reader.partitions()
        assert len(tasks) >= count
        assert harness.values(reader, tasks) == payloads
        if "maxBytesPerPartition" in options:
            assert all(len(task.offsets) <= 2048 for task in tasks)
            assert max(len(task.offsets) for task in tasks) > 1500


def test_a_replayed_batch_is_cut_in_the_same_way(harness: Harness) -> None:
    harness.put("orders", 0, 0, *numbered(100))
    first = harness.stream(startingOffsets="earliest", minPartitions="7")
    start = first.initialOffset()
    end, values = harness.micro_batch(first, start)
    assert values == numbered(100)
    tasks = first.partitions(start, end)
    harness.put("orders", 0, 0, *numbered(100))
    again = harness.stream(startingOffsets="latest", minPartitions="7").partitions(
        json.loads(json.dumps(start)), json.loads(json.dumps(end))
    )
    assert again == tasks
    assert len(tasks) == 7


def test_a_thousand_partitions_are_planned_in_a_few_round_trips() -> None:
    harness = Harness()
    for broker in (0, 1):
        for index in range(500):
            harness.put("orders", broker, index, *numbered(20))
    options = {"maxBytesPerTrigger": "240k", "maxOffsetsPerTrigger": "9k", "minPartitions": "2000"}
    options["maxOffsetsPerTrigger"] = "9000"
    reader = harness.stream(startingOffsets="earliest", **options)
    start = reader.initialOffset()
    harness.clock.advance(1)
    surveys, began_s = harness.count(Stats), time.process_time()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    took_s = time.process_time() - began_s
    assert sum(at(end).values()) == 9000 * 24
    assert len(tasks) == 2000
    assert harness.count(Stats) - surveys <= 4
    assert took_s < 5  # most of it is the brokers' in memory
