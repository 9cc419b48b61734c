"""Stories of how much a micro-batch and a task read, over brokers in memory."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from source_world import NO_EXTENSIONS, World, at

from metaq.protocols.text.commands import Get, GetOffset, Stats
from metaq_spark.options.parsing import Use
from metaq_spark.source.batch_reader import MetaQReader


@pytest.fixture(params=["ours", "java"])
def world(request: pytest.FixtureRequest) -> World:
    return World() if request.param == "ours" else World(extensions=NO_EXTENSIONS)


def numbered(count: int, size: int = 4) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(count)]


def test_batches_of_so_many_messages(world: World) -> None:
    world.put("orders", 0, 0, *numbered(10))
    world.put("orders", 1, 1, *numbered(30))
    _, batches = world.drain(world.stream(startingOffsets="earliest", maxOffsetsPerTrigger="8"))
    assert [len(values) for values in batches] == [8, 8, 8, 8, 8]
    assert sorted(value for values in batches for value in values) == sorted(numbered(10) + numbered(30))
    assert batches[0] == numbered(2) + numbered(6)


def test_messages_of_very_different_sizes_are_counted_not_weighed(world: World) -> None:
    payloads = [bytes(100_000) if n % 7 == 0 else b"small %d" % n for n in range(60)]
    world.put("orders", 0, 0, *payloads)
    _, batches = world.drain(world.stream(startingOffsets="earliest", maxOffsetsPerTrigger="13"))
    assert [len(values) for values in batches] == [13, 13, 13, 13, 8]
    assert [value for values in batches for value in values] == payloads


def test_both_limits_hold(world: World) -> None:
    world.put("orders", 0, 0, *numbered(20))  # 24 bytes each
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "96"}
    assert [len(values) for values in world.drain(world.stream(**options))[1]] == [4, 4, 4, 4, 4]
    options["maxBytesPerTrigger"] = "1g"
    assert [len(values) for values in world.drain(world.stream(**options))[1]] == [5, 5, 5, 5]


def test_every_limit_that_spark_knows_is_kept(world: World) -> None:
    world.put("orders", 0, 0, *numbered(20))
    reader = world.stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    start = reader.initialOffset()
    for limit, count in (
        (ReadAllAvailable(), 20),
        (ReadMaxRows(3), 3),
        (ReadMaxBytes(100), 4),
        (reader.getDefaultReadLimit(), 10),
        (ReadMinRows(5), 10),
    ):
        assert len(world.micro_batch(reader, start, limit)[1]) == count


def test_no_partition_starves_under_a_limit_below_the_number_of_partitions(world: World) -> None:
    for broker in (0, 1):
        for index in (0, 1):
            world.put("orders", broker, index, *numbered(3 + 50 * index))
    reader = world.stream(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    end, values = world.micro_batch(reader, reader.initialOffset())
    assert set(at(end).values()) == {24}
    assert len(values) == 4


def test_batches_wait_for_enough_messages_but_not_for_ever(world: World) -> None:
    world.put("orders", 0, 0, *numbered(2))
    reader = world.stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="60s")
    position, values = world.micro_batch(reader, reader.initialOffset())
    assert len(values) == 2  # the first of a run goes at once
    world.put("orders", 0, 0, *numbered(3))
    world.put("orders", 0, 1, *numbered(1))
    held = [world.micro_batch(reader, position) for _ in range(10)]
    assert held == [(position, [])] * 10
    world.put("orders", 0, 0, *numbered(2))
    position, values = world.micro_batch(reader, position)
    assert len(values) == 5
    assert len(world.micro_batch(reader, position)[1]) == 0  # "0-1" was noted, one message of it is not enough
    world.clock.advance(60)
    assert world.micro_batch(reader, position)[1] == numbered(1)


def test_waiting_for_enough_messages_does_not_walk_them_again_and_again(world: World) -> None:
    world.put("orders", 0, 0, *numbered(1))
    reader = world.stream(startingOffsets="earliest", minOffsetsPerTrigger="100")
    position, _ = world.micro_batch(reader, reader.initialOffset())
    world.put("orders", 0, 0, *[bytes(500)] * 30)
    world.micro_batch(reader, position)
    before = world.count(Get) + world.count(GetOffset)
    for _ in range(20):
        assert world.micro_batch(reader, position) == (position, [])
    assert world.count(Get) + world.count(GetOffset) == before


def test_available_now_does_not_wait_for_enough_messages(world: World) -> None:
    world.put("orders", 0, 0, *numbered(7))
    options = {"minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4"}
    assert [len(values) for values in world.available_now(**options)[1]] == [4, 3]


def test_available_now_under_all_limits_ends_at_what_was_there(world: World) -> None:
    world.put("orders", 0, 0, *numbered(11))
    reader = world.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", maxBytesPerTrigger="72")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    world.put("orders", 0, 0, *numbered(50))
    world.put("orders", 1, 0, *numbered(50))
    reader.prepareForTriggerAvailableNow()  # once is enough: what came meanwhile is for the next run
    position, batches = world.drain(reader, start)
    assert [len(values) for values in batches] == [3, 3, 3, 2]
    assert at(position) == {"0-0": 11 * 24}


def test_large_ranges_are_cut_into_tasks(world: World) -> None:
    payloads = [bytes([n]) * (n * 37 % 400) for n in range(100)]
    world.put("orders", 0, 0, *payloads[:90])
    world.put("orders", 1, 0, *payloads[90:])
    for options, count in (({"minPartitions": "8"}, 8), ({"maxBytesPerPartition": "2k"}, 10), ({}, 2)):
        alone = {"minBytesPerPartition": "1"} | options
        reader = MetaQReader(world.options(Use.BATCH_READ, **alone), world.pool, world.clock)
        tasks = reader.partitions()
        assert len(tasks) >= count
        assert world.values(reader, tasks) == payloads
        if "maxBytesPerPartition" in options:
            assert all(len(task.offsets) <= 2048 for task in tasks)
            assert max(len(task.offsets) for task in tasks) > 1500


def test_a_replayed_batch_is_cut_in_the_same_way(world: World) -> None:
    world.put("orders", 0, 0, *numbered(100))
    first = world.stream(startingOffsets="earliest", minPartitions="7")
    start = first.initialOffset()
    end, values = world.micro_batch(first, start)
    assert values == numbered(100)
    tasks = first.partitions(start, end)
    world.put("orders", 0, 0, *numbered(100))
    again = world.stream(startingOffsets="latest", minPartitions="7").partitions(
        json.loads(json.dumps(start)), json.loads(json.dumps(end))
    )
    assert again == tasks
    assert len(tasks) == 7


def test_a_thousand_partitions_are_planned_in_a_few_round_trips() -> None:
    world = World()
    for broker in (0, 1):
        for index in range(500):
            world.put("orders", broker, index, *numbered(20))
    options = {"maxBytesPerTrigger": "240k", "maxOffsetsPerTrigger": "9k", "minPartitions": "2000"}
    options["maxOffsetsPerTrigger"] = "9000"
    reader = world.stream(startingOffsets="earliest", **options)
    start = reader.initialOffset()
    world.clock.advance(1)
    surveys, began_s = world.count(Stats), time.process_time()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    took_s = time.process_time() - began_s
    assert sum(at(end).values()) == 9000 * 24
    assert len(tasks) == 2000
    assert world.count(Stats) - surveys <= 4
    assert took_s < 5  # most of it is the brokers' in memory
