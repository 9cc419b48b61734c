"""Which partition a row goes to."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from metaq.model import Partition, TopicPartition
from metaq_spark.errors import RowError
from metaq_spark.sink.columns import SinkColumns
from metaq_spark.sink.routing import Router

PLACES = {"t": [Partition(0, 0), Partition(0, 1), Partition(2, 0)], "one": [Partition(5, 0)]}


def route(router: Router, batch: pa.RecordBatch) -> dict[str, list[int]]:
    return {str(target): rows.tolist() for target, rows in router.route(batch)}


def table(**columns: list[object]) -> tuple[SinkColumns, pa.RecordBatch]:
    """The columns in the order given, ``value`` behind them."""
    types = {"partition": pa.int32(), "topic": pa.string(), "key": None}
    rows = len(next(iter(columns.values())))
    arrays = [pa.array(cells, types[name]) for name, cells in columns.items()] + [pa.array([b"v"] * rows)]
    places = {name: place for place, name in enumerate([*columns, "value"])}
    return SinkColumns(**places), pa.RecordBatch.from_arrays(arrays, names=list(places))


def router_for(columns: SinkColumns, topic: str | None = "t", first_partition: int = 0) -> Router:
    return Router(columns, topic, PLACES.__getitem__, first_partition, "the input of task 4")


def by_key(key: bytes) -> str:
    return str(TopicPartition("t", PLACES["t"][zlib.crc32(key) % 3]))


def test_a_partition_is_a_place_in_the_sorted_list() -> None:
    columns, batch = table(partition=[2, 0, 1, 2, 0])
    assert route(router_for(columns), batch) == {"t/0-0": [1, 4], "t/0-1": [2], "t/2-0": [0, 3]}


@pytest.mark.parametrize(
    ("keys", "raw"),
    [
        ([b"a", b"", b"\xff\x00"], [b"a", b"", b"\xff\x00"]),
        (["a", "é", ""], [b"a", "é".encode(), b""]),
        ([7, -7, 2**40], [b"7", b"-7", str(2**40).encode()]),
    ],
)
def test_a_key_decides_by_its_crc32(keys: list[object], raw: list[bytes]) -> None:
    columns, batch = table(key=keys)
    routed = {row: target for target, rows in route(router_for(columns), batch).items() for row in rows}
    assert routed == {row: by_key(key) for row, key in enumerate(raw)}


def test_partition_before_key_before_turn() -> None:
    columns, batch = table(partition=[1, None, None, 0], key=[b"k", b"k", None, None])
    routed = {
        row: target for target, rows in route(router_for(columns, first_partition=2), batch).items() for row in rows
    }
    assert routed == {0: "t/0-1", 1: by_key(b"k"), 2: "t/2-0", 3: "t/0-0"}


def test_rows_without_either_go_in_turn_a_batch_at_a_time() -> None:
    columns, batch = table(topic=["ignored"] * 4)
    router = router_for(columns, first_partition=1)
    assert [route(router, batch) for _ in range(4)] == [
        {"t/0-1": [0, 1, 2, 3]},
        {"t/2-0": [0, 1, 2, 3]},
        {"t/0-0": [0, 1, 2, 3]},
        {"t/0-1": [0, 1, 2, 3]},
    ]


def test_each_topic_of_a_column_has_turns_of_its_own() -> None:
    columns, batch = table(topic=["t", "u", "t", "u"])
    router = Router(columns, None, lambda topic: PLACES["t"], 0, "the input of task 4")
    turns = [list(route(router, batch)) for _ in range(3)]
    assert turns == [["t/0-0", "u/0-0"], ["t/0-1", "u/0-1"], ["t/2-0", "u/2-0"]]


def test_topics_from_a_column() -> None:
    columns, batch = table(topic=["t", "one", "t", "one"], partition=[0, 0, 1, None])
    assert route(router_for(columns, topic=None), batch) == {"t/0-0": [0], "t/0-1": [2], "one/5-0": [1, 3]}


def test_an_empty_batch_has_no_targets() -> None:
    columns, batch = table(topic=["t"], key=[b"k"])
    assert route(router_for(columns, topic=None), batch.slice(0, 0)) == {}
    assert route(router_for(columns), batch.slice(0, 0)) == {}


def test_slices_of_a_batch_keep_their_own_rows() -> None:
    columns, batch = table(topic=["t"] * 4, partition=[2, 2, None, 1], key=[b"x", b"x", b"k", b"x"])
    routed = route(router_for(columns, topic=None), batch.slice(2))
    assert {row: target for target, rows in routed.items() for row in rows} == {0: by_key(b"k"), 1: "t/0-1"}


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_partition_that_the_topic_does_not_have(wrong: int) -> None:
    columns, batch = table(partition=[0, None, wrong])
    with pytest.raises(RowError, match="row 3 of the input of task 4") as caught:
        route(router_for(columns), batch)
    assert f"partition {wrong}: topic 't' has the partitions 0 to 2" in str(caught.value)


def test_a_null_is_named_by_its_place_in_the_task() -> None:
    columns, batch = table(topic=["t", "t", "t"])
    broken = batch.set_column(1, "value", pa.array([b"v", None, b"v"]))
    router = router_for(columns)
    assert route(router, batch)
    with pytest.raises(RowError, match="row 5 of the input of task 4: column value is null"):
        route(router, broken)


def test_a_null_topic_is_refused() -> None:
    columns, batch = table(topic=["t", None])
    with pytest.raises(RowError, match="row 2 of the input of task 4: column topic is null"):
        route(router_for(columns, topic=None), batch)
    assert route(router_for(columns), batch) == {"t/0-0": [0, 1]}
