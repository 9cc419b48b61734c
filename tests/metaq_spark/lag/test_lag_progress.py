"""The lag in bytes: from a query's progress alone, and against what brokers hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq_spark.lag.progress import merged, read_query_progress, summarize
from metaq_spark.lag.unread import LagStatus, PartitionLag, lags
from metaq_spark.offsets import Progress

P0, P1 = TopicPartition("orders", Partition(0, 0)), TopicPartition("orders", Partition(0, 1))
A, B = "a" * 32, "b" * 32


def available(start: int, end: int, incarnation: str | None = None) -> PartitionState:
    return PartitionState(OffsetRange(start, end), incarnation)


def form_1(**topics: dict[str, int]) -> dict[str, Any]:
    return {"v": 1, "topics": topics}


def form_2(topics: dict[str, dict[str, int]], incarnations: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {"v": 2, "topics": topics, "incarnations": incarnations}


def source(end: object, latest: object = None) -> dict[str, Any]:
    return {"description": "PythonMicroBatchStream@1", "startOffset": None, "endOffset": end, "latestOffset": latest}


def progress(*sources: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"id": "query-id", "runId": "run-1", "name": "copy", "batchId": 7, "sources": list(sources)} | more


@pytest.mark.parametrize(
    ("at", "incarnation", "there", "unread", "status_note"),
    [
        (100, None, available(0, 100), (100, 100), None),
        (100, None, available(0, 150), (100, 150), None),
        (100, A, available(100, 150, A), (100, 150), None),
        (100, None, available(0, 150, A), (100, 150), None),  # a checkpoint of form 1: nothing to compare with
        (100, A, available(0, 150), (100, 150), None),  # the broker was replaced by one that does not tell
        (100, A, available(0, 150, B), (0, 150), LagStatus.RECREATED),
        (100, None, available(120, 150), (120, 150), LagStatus.REMOVED),
        (100, None, available(0, 90), (100, 100), LagStatus.AHEAD),
        (100, None, None, (100, 100), LagStatus.GONE),
        (None, None, available(20, 150), (20, 150), LagStatus.NEW),
    ],
)
def test_what_is_unread_of_a_partition(
    at: int | None,
    incarnation: str | None,
    there: PartitionState | None,
    unread: tuple[int, int],
    status_note: LagStatus | None,
) -> None:
    read_to = Progress({} if at is None else {P0: at}, {} if incarnation is None else {P0: incarnation})
    (lag,) = lags(read_to, {} if there is None else {P0: there})
    assert (lag.unread, lag.status_note, lag.bytes) == (OffsetRange(*unread), status_note, unread[1] - unread[0])
    assert (lag.messages, lag.seconds) == (None, None)


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("form", [1, 2])
def test_the_progress_of_a_query(form: int, as_text: bool) -> None:
    ends, latest = {"orders": {"0-0": 21, "0-1": 5}}, {"orders": {"0-0": 63, "0-1": 5, "2-0": 40}}
    if form == 1:
        offsets: list[Any] = [form_1(**ends), form_1(**latest)]
    else:
        offsets = [form_2(ends, {"orders": {"0-0": A}}), form_2(latest, {"orders": {"0-0": A, "2-0": B}})]
    if as_text:
        offsets = [json.dumps(offset) for offset in offsets]
    read = read_query_progress(progress(source(*offsets), inputRowsPerSecond=2, processedRowsPerSecond=1.5))
    assert (read.query, read.run_id, read.batch_id) == ("copy", "run-1", 7)
    assert (read.input_rows_per_second, read.processed_rows_per_second) == (2.0, 1.5)
    measured = merged(one.lags() for one in read.sources)
    assert [(str(lag.where), lag.read_to, lag.bytes, lag.status_note) for lag in measured] == [
        ("orders/0-0", 21, 42, None),
        ("orders/0-1", 5, 0, None),
        ("orders/2-0", 0, 40, LagStatus.NEW),
    ]


@pytest.mark.parametrize(
    "foreign",
    [
        None,
        {"orders": {"0": 12}},  # Kafka's
        '{"orders":{"0":12}}',
        {"logOffset": 3},
        12,
        "12",
        "a text",
        {"v": 99, "topics": {}},
        {"v": 1, "topics": {"orders": {"0-0": -1}}},
    ],
)
def test_sources_of_others_are_left_out(foreign: object) -> None:
    mine = source(form_1(orders={"0-0": 1}), form_1(orders={"0-0": 3}))
    read = read_query_progress(progress(source(foreign, foreign), mine, source(foreign), name=None))
    assert [lag.bytes for one in read.sources for lag in one.lags()] == [2]
    assert read.query == "query-id"
    assert (read.input_rows_per_second, read.processed_rows_per_second) == (0.0, 0.0)


def test_without_the_newest_offset_there_is_no_lag_to_report() -> None:
    (only,) = read_query_progress(progress(source(form_1(orders={"0-0": 1})))).sources
    assert only.lags() == []
    assert set(only.known) == {P0}


def test_of_two_sources_of_a_partition_the_one_further_behind_counts() -> None:
    near, far = (PartitionLag(P0, at, OffsetRange(at, 90)) for at in (80, 10))
    other = PartitionLag(P1, 0, OffsetRange(0, 1))
    assert merged([[near, other], [far]]) == merged([[far], [near, other]]) == [far, other]


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ([], "query=copy batch=7 lag_bytes=0 partitions=0 behind=0 input_rows_per_s=0.0"),
        (
            [PartitionLag(P0, 5, OffsetRange(5, 5), messages=0, seconds=0.0)],
            "query=copy batch=7 lag_bytes=0 lag_messages=0 lag_seconds=0.0 partitions=1 behind=0 input_rows_per_s=0.0",
        ),
        (
            [
                PartitionLag(P0, 5, OffsetRange(5, 26), messages=1, seconds=1.26),
                PartitionLag(P1, 0, OffsetRange(0, 42)),
            ],
            "query=copy batch=7 lag_bytes=63 lag_seconds=1.3 partitions=2 behind=2 furthest=orders/0-1 "
            "input_rows_per_s=0.0",
        ),
        (
            [
                PartitionLag(P0, 5, OffsetRange(5, 5), LagStatus.GONE),
                PartitionLag(P1, 9, OffsetRange(0, 4), LagStatus.NEW),
            ],
            "query=copy batch=7 lag_bytes=4 partitions=2 behind=1 furthest=orders/0-1 gone=orders/0-0 new=orders/0-1 "
            "input_rows_per_s=0.0",
        ),
    ],
)
def test_the_line_in_the_log(measured: list[PartitionLag], line: str) -> None:
    assert summarize(read_query_progress(progress()), measured) == line
