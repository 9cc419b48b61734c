"""Sources of a system that is not MetaQ: queues of named brokers, offsets that count messages. No Spark, no sockets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from checkpoints import commit, offset, plan, query
from fake_queues import FakeCluster, FakeOptions, FakeQueues, FakeSource, fake_options, queue
from metaq_harness import MicroBatches, Tree, no_cpu_s
from pyspark.sql.datasource import InputPartition

from metaq.model import OffsetRange, PartitionState
from metaq.testing.manual_clock import ManualClock
from metaq_spark.checkpoint.command import _undo_text
from metaq_spark.checkpoint.folder import add_batch, read_checkpoint, remove_planned
from metaq_spark.checkpoint.move import AfterBatch, Choice, plan_move
from metaq_spark.checkpoint.report import checkpoint_text, checkpoint_tree, move_text, move_tree
from metaq_spark.checkpoint.sources import read_sources
from metaq_spark.errors import CheckpointError, DataLoss, OptionError
from metaq_spark.lag.progress import merged, read_query_progress, summarize
from metaq_spark.lag.unread import LagStatus, lags
from metaq_spark.offsets import Progress, from_json, to_json
from metaq_spark.options.positions import Earliest, Specific, Timestamps
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.source.tasks import RangeGroup, read_task

A0, A3, B = queue("broker-a:0"), queue("broker-a:3"), queue("rack:1:b.c-d_e:2")


class Query(MicroBatches):
    """A streaming query over three queues of ten messages each."""

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.queues = FakeQueues()
        for where in (A0, A3, B):
            self.queues.put(where, *(f"{where.partition} {n}".encode() for n in range(10)), at_ms=1000)
        self.options = fake_options(Use.STREAM_READ, **{"startingOffsets": "earliest"} | options)
        self.source, self.reader = self.start()

    def start(self) -> tuple[FakeSource, StreamReader]:
        """A new run."""
        source = FakeSource(self.queues, self.options, self.clock)
        return source, StreamReader(source, no_cpu_s)

    def step(self, start: Tree) -> tuple[Tree, list[bytes]]:
        """One micro-batch, a second later."""
        return self.micro_batch(self.reader, start)


def read_of(queues: FakeQueues, **options: str) -> tuple[list[InputPartition], list[bytes]]:
    """The tasks of a batch read and its rows."""
    reader = BatchReader(FakeSource(queues, fake_options(Use.BATCH_READ, **options), ManualClock()))
    tasks = reader.partitions()
    return tasks, [value for task in tasks for batch in reader.read(task) for value in batch["value"].to_pylist()]


def payloads(queues: FakeQueues) -> list[bytes]:
    return [value for where in sorted(queues.messages) for value in queues.messages[where][queues.starts[where] :]]


@pytest.mark.parametrize("placeholder", [None, InputPartition(None)], ids=["before Spark 4.2", "since then"])
def test_a_read_of_nothing_has_a_task_without_rows(placeholder: InputPartition | None) -> None:
    assert list(read_task(placeholder, FakeSource(FakeQueues(), fake_options(Use.BATCH_READ), ManualClock()))) == []


def test_the_checkpoint_names_queues_by_broker_and_number() -> None:
    query = Query()
    start = query.reader.initialOffset()
    assert start == {
        "v": 2,
        "topics": {"orders": {"broker-a:0": 0, "broker-a:3": 0, "rack:1:b.c-d_e:2": 0}},
        "incarnations": {},
    }
    end, rows = query.step(start)
    assert list(end["topics"]["orders"].values()) == [10, 10, 10]
    assert rows == payloads(query.queues)


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        ({"maxBytesPerTrigger": "60"}, [6, 6, 6, 6, 6]),  # of ten bytes each
        ({"maxBytesPerTrigger": "1"}, [3] * 10),  # one of each queue, always
        ({"maxOffsetsPerTrigger": "12"}, [12, 12, 6]),
        ({"maxOffsetsPerTrigger": "12", "maxBytesPerTrigger": "30"}, [3] * 10),
    ],
)
def test_limits_of_a_micro_batch(limit: dict[str, str], sizes: list[int]) -> None:
    query = Query(**limit)
    _, batches = query.drain(query.reader)
    assert [len(rows) for rows in batches] == sizes
    assert sorted(value for rows in batches for value in rows) == sorted(payloads(query.queues))


def test_a_micro_batch_waits_for_enough_messages() -> None:
    query = Query(minOffsetsPerTrigger="5")
    end, rows = query.step(query.reader.initialOffset())
    assert len(rows) == 30
    query.queues.put(A3, b"1", b"2", b"3", b"4")
    assert query.step(end) == (end, [])
    query.queues.put(B, b"5")
    assert query.step(end)[1] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_run_to_the_present_end_stops_there() -> None:
    query = Query(maxOffsetsPerTrigger="9")
    query.reader.prepareForTriggerAvailableNow()
    query.queues.put(A0, b"later")
    at, batches = query.drain(query.reader)
    assert sum(map(len, batches)) == 30
    assert at["topics"]["orders"]["broker-a:0"] == 10


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"minBytesPerPartition": "1"}, [(0, 10), (0, 10), (0, 10)]),
        ({"minBytesPerPartition": "1", "minPartitions": "6"}, [(0, 5), (5, 10)] * 3),
        ({"minBytesPerPartition": "1", "maxBytesPerPartition": "40"}, [(0, 3), (3, 6), (6, 10)] * 3),
        ({"minBytesPerPartition": "1", "maxBytesPerPartition": "1"}, [(n, n + 1) for n in range(10)] * 3),
    ],
)
def test_ranges_become_tasks_of_the_size_wanted(options: dict[str, str], ranges: list[tuple[int, int]]) -> None:
    query = Query()
    tasks, rows = read_of(query.queues, **options)
    assert [(task.offsets.start, task.offsets.end) for task in tasks] == ranges
    assert rows == payloads(query.queues)


def test_small_ranges_are_read_together_in_one_batch_of_rows() -> None:
    query = Query()
    (task,) = query.reader.partitions(query.reader.initialOffset(), to_json({A0: 10, A3: 4, B: 1}))
    assert isinstance(task, RangeGroup)
    (batch,) = query.reader.read(pickle.loads(pickle.dumps(task)))
    assert batch["queue"].to_pylist() == ["broker-a:0"] * 10 + ["broker-a:3"] * 4 + ["rack:1:b.c-d_e:2"]
    assert query.source.reads == 1


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        (
            {"startingOffsets": json.dumps({"orders": {"broker-a:0": 4, "broker-a:3": -1, str(B.partition): -2}})},
            (4, 10, 0),
        ),
        ({"startingOffsets": "latest"}, (10, 10, 10)),
        ({"startingTimestamp": "1000"}, (0, 0, 0)),
        ({"startingTimestamp": "1001", "startingOffsetsByTimestampStrategy": "latest"}, (10, 10, 10)),
        ({"startingOffsets": "group", "group": "g"}, (10, 7, 10)),
    ],
)
def test_where_a_query_begins(options: dict[str, str], starts: tuple[int, ...]) -> None:
    query = Query(**options)
    query.queues.groups["g"] = {A3: 7}
    assert from_json(query.reader.initialOffset()) == dict(zip((A0, A3, B), starts, strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"orders": {"0-0": 4}}'}, "expected BROKER_NAME:QUEUE_ID, for example broker-a:3"),
        ({"startingOffsets": '{"orders": {"broker-a:0": -3}}'}, "orders/broker-a:0: -3 is no queue offset"),
        ({"assign": '{"orders": ["broker-a"]}'}, "expected BROKER_NAME:QUEUE_ID"),
        ({"brokers": "b:1"}, "there is no such option"),
    ],
)
def test_wrong_options(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        fake_options(Use.STREAM_READ, **options)


def test_a_topic_that_is_not_there() -> None:
    query = Query(subscribe="orders,missing")
    with pytest.raises(OptionError, match="no topic missing"):
        query.reader.initialOffset()


def test_assigned_queues_alone_are_read() -> None:
    query = Query(assign=json.dumps({"orders": [str(B.partition)]}))
    _, rows = query.step(query.reader.initialOffset())
    assert rows == query.queues.messages[B]


def test_messages_that_expired_are_a_loss_in_the_words_of_the_system() -> None:
    query = Query()
    at = query.reader.initialOffset()
    query.queues.starts[A3] = 4
    with pytest.raises(DataLoss, match=r"orders/broker-a:3: offset 0 was .* holds \[4, 10\): its messages expired"):
        query.step(at)
    lenient = Query(failOnDataLoss="false")
    at = lenient.reader.initialOffset()
    lenient.queues.starts[A3] = 4
    assert lenient.step(at)[1] == payloads(lenient.queues)


def test_an_end_that_is_lost_is_waited_for_and_then_a_loss() -> None:
    query = Query(lossGraceMs="5s")
    at, _ = query.step(query.reader.initialOffset())
    del query.queues.messages[A0][8:]
    assert query.step(at) == (at, [])
    query.clock.advance(5)
    with pytest.raises(DataLoss, match="its end is lost"):
        query.step(at)


def test_the_queues_of_a_broker_that_is_away_wait() -> None:
    query = Query()
    at, _ = query.step(query.reader.initialOffset())
    for where in (A0, B):
        query.queues.put(where, b"more")
    query.queues.away = {"broker-a"}
    at, rows = query.step(at)
    assert rows == [b"more"]
    assert at["topics"]["orders"] == {"broker-a:0": 10, "broker-a:3": 10, "rack:1:b.c-d_e:2": 11}
    query.queues.away = set()
    assert query.step(at)[1] == [b"more"]


def test_a_new_queue_is_read_from_its_first_message() -> None:
    query = Query(startingOffsets="earliest")
    at, _ = query.step(query.reader.initialOffset())
    query.queues.put(queue("broker-c:0"), b"first")
    noticed, rows = query.step(at)
    assert (rows, query.drain(query.reader, noticed)[1]) == ([], [[b"first"]])


def test_a_completed_batch_is_committed_to_the_group() -> None:
    query = Query(group="g")
    at, _ = query.step(query.reader.initialOffset())
    query.reader.commit(at)
    assert query.queues.groups == {"g": {A0: 10, A3: 10, B: 10}}


def test_the_checkpoint_of_metaq_is_refused() -> None:
    query = Query()
    with pytest.raises(CheckpointError, match="expected BROKER_NAME:QUEUE_ID"):
        query.step({"v": 2, "topics": {"orders": {"0-0": 5}}, "incarnations": {}})


class TestCheckpoints:
    """``metaq-spark checkpoint`` on the checkpoint of such a query."""

    LINES = tuple(offset(orders={"broker-a:0": n, "broker-a:3": 2 * n}) for n in (1, 2, 3))

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return query(tmp_path, *self.LINES)

    def test_show(self, folder: Path) -> None:
        checkpoint = read_checkpoint(folder)
        (source,) = read_sources(checkpoint)
        available = {A0: PartitionState(OffsetRange(0, 10), None), A3: PartitionState(OffsetRange(0, 10), None)}
        assert source.read_to is not None
        tree = checkpoint_tree(checkpoint, [(source, lags(source.read_to, available))])
        assert tree["sources"][0]["format"] == "rocketmq"
        rows = [(row["partition"], row["read_to"], row["lag_messages"]) for row in tree["sources"][0]["partitions"]]
        assert rows == [("broker-a:0", 3, 7), ("broker-a:3", 6, 4)]
        assert "orders/broker-a:3" in checkpoint_text(tree)

    @pytest.mark.parametrize(
        ("position", "ends"),
        [
            (Earliest(), (0, 0)),
            (AfterBatch(0), (1, 2)),
            (Specific({A0: 9, A3: 9}), (9, 9)),
            (Timestamps(1000), (0, 0)),
        ],
    )
    def test_move_and_undo(self, folder: Path, position: Any, ends: tuple[int, int]) -> None:
        queues = Query().queues
        choice = Choice(format="rocketmq", system="RocketMQ")
        move = plan_move(read_checkpoint(folder), FakeCluster(queues), position, choice, 1)
        assert [(str(step.where), step.start, step.end) for step in move.steps] == [
            ("orders/broker-a:0", 3, ends[0]),
            ("orders/broker-a:3", 6, ends[1]),
        ]
        tree = move_tree(read_checkpoint(folder), move, done=True)
        assert tree["partitions"][0]["read_again_messages"] == max(0, 3 - ends[0])
        assert "messages read again" in move_text(tree)
        add_batch(read_checkpoint(folder), move.batch)
        moved = read_checkpoint(folder)
        assert moved.planned is not None
        topics = json.loads(moved.planned.lines["0"])["topics"]
        assert topics["orders"] == {"broker-a:0": ends[0], "broker-a:3": ends[1]}
        remove_planned(moved)
        assert read_checkpoint(folder).planned is None
        assert "was removed" in _undo_text({"done": True, "batch": 3})

    def test_a_source_of_the_other_system_is_not_moved(self, tmp_path: Path) -> None:
        plan(tmp_path, 0, offset(orders={"broker-a:0": 5}), offset(orders={"0-0": 5}))
        commit(tmp_path, 0)
        choice = Choice(format="rocketmq", system="RocketMQ")
        move = plan_move(read_checkpoint(tmp_path), FakeCluster(Query().queues), Earliest(), choice, 1)
        assert [str(step.where) for step in move.steps] == ["orders/broker-a:0"]
        assert json.loads(move.batch.lines["1"])["topics"] == {"orders": {"0-0": 5}}


class TestLag:
    """The lag of such a query: in messages."""

    def test_lags_count_messages(self) -> None:
        available = {A0: PartitionState(OffsetRange(0, 10), None), B: PartitionState(OffsetRange(5, 10), None)}
        found = lags(Progress({A0: 3, B: 2, A3: 1}), available)
        assert [(str(lag.where.partition), lag.messages, lag.bytes, lag.status_note) for lag in found] == [
            ("broker-a:0", 7, None, None),
            ("broker-a:3", 0, None, LagStatus.GONE),
            ("rack:1:b.c-d_e:2", 5, None, LagStatus.REMOVED),
        ]

    def test_a_query_that_reads_both_systems(self) -> None:
        def source(name: str, at: int) -> Tree:
            return {"endOffset": offset(orders={name: at}), "latestOffset": offset(orders={name: 10})}

        progress = read_query_progress(
            {"id": "q", "runId": "r", "batchId": 7, "sources": [source("broker-a:0", 4), source("0-0", 2)]}
        )
        found = merged(each.lags() for each in progress.sources)
        assert [(str(lag.where), lag.bytes, lag.messages) for lag in found] == [
            ("orders/0-0", 8, None),
            ("orders/broker-a:0", None, 6),
        ]
        assert "lag_bytes" not in summarize(progress, found)
        assert "lag_messages=6" in summarize(progress, found[1:])


def test_options_are_a_frozen_object_of_the_format() -> None:
    options = fake_options(Use.BATCH_READ)
    assert isinstance(options, FakeOptions)
    assert options.row_layout.ddl == "`queue` string, `value` binary"
