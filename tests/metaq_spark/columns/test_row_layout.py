"""A choice of columns, message types and forms of values: the same rows on every path, and no work for the rest."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import combinations

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from metaq.errors import CorruptFrame
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message, Partition, TopicPartition
from metaq_spark.columns import kernels
from metaq_spark.columns.batches import RAW_COLUMNS, BatchMaker
from metaq_spark.columns.decode import CompiledDecoder, RunDecoder
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.plain import PlainDecoder
from metaq_spark.columns.row_layout import ATTRIBUTE_MAP, COLUMN_TYPES, RowLayout, message_layout
from metaq_spark.columns.schema import arrow_schema

SOURCE = TopicPartition("orders", Partition(3, 7))
NAMES = tuple(COLUMN_TYPES)
Types = tuple[str, ...] | None
Make = Callable[[RowLayout, Types, int, int], CompiledDecoder | PlainDecoder]
DECODERS: dict[str, Make] = {
    "compiled": lambda layout, types, rows, size: CompiledDecoder(
        BatchMaker(SOURCE, layout, types), rows, size, kernels
    ),
    "plain": lambda layout, types, rows, size: PlainDecoder(BatchMaker(SOURCE, layout, types), rows, size),
}

attributes = st.none() | st.sampled_from(["a", "b", "", "aa", "é", "k=v;k2=v2;k"]) | st.text("ab;=", max_size=6)
messages = st.lists(st.tuples(st.binary(max_size=60), attributes), max_size=30)
layouts = st.builds(
    message_layout,
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple),
    st.sampled_from([StringType(), ATTRIBUTE_MAP]),
    st.sampled_from([COLUMN_TYPES["value"], StringType()]),
)
types = st.none() | st.lists(st.sampled_from(["a", "b", "c", "aa"]), min_size=1, unique=True).map(tuple)


def frames_of(items: Iterable[tuple[bytes, str | None]]) -> list[bytes]:
    return [encode_frame(index << 22, *encode_body(Message(*item))) for index, item in enumerate(items)]


def addressed(frames: list[bytes], base: int) -> bytes:
    """Frames as a filtered get has them."""
    parts = []
    for frame in frames:
        parts += [struct.pack(">q", base), frame]
        base += len(frame)
    return b"".join(parts)


def table(batches: Iterable[pa.RecordBatch], layout: RowLayout) -> list[dict[str, object]]:
    rows = []
    for batch in batches:
        assert batch.schema.equals(arrow_schema(layout))
        assert batch.num_rows > 0
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def shown(row: dict[str, object], layout: RowLayout) -> dict[str, object]:
    """What a row with all columns looks like by ``layout``."""
    if isinstance(layout.types.get("value"), StringType):
        row = row | {"value": row["value"].decode("utf-8", "replace")}
    if layout.types.get("attribute") == ATTRIBUTE_MAP and row["attribute"] is not None:
        pairs = dict((*task_range.split("=", 1), None)[:2] for task_range in row["attribute"].split(";") if task_range)
        row = row | {"attribute": list(pairs.items())}
    return {name: row[name] for name in layout.types}


@given(messages, layouts, types, st.integers(1, 9), st.integers(1, 300))
@settings(max_examples=examples(120))
def test_every_path_gives_the_rows_of_a_full_read(
    items: list[tuple[bytes, str | None]], layout: RowLayout, wanted: Types, rows_max: int, bytes_max: int
) -> None:
    frames = frames_of(items)
    full = DECODERS["plain"](message_layout(), None, 100, 1 << 20)
    everything = table([*full.decode(b"".join(frames), 50), *full.flush()], message_layout())
    want = [shown(row, layout) for row in everything if wanted is None or row["attribute"] in wanted]
    for name, make in DECODERS.items():
        whole, task_ranges = make(layout, wanted, rows_max, bytes_max), make(layout, wanted, rows_max, bytes_max)
        assert table([*whole.decode(b"".join(frames), 50), *whole.flush()], layout) == want, name
        assert table([*task_ranges.decode_addressed(addressed(frames, 50)), *task_ranges.flush()], layout) == want, name


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("name", DECODERS)
def test_every_choice_of_columns_in_either_order(name: str, count: int) -> None:
    run = b"".join(frames_of([(b"x", "a"), (b"", None), (b"zz", "b")]))
    full = DECODERS[name](message_layout(), None, 10, 100)
    everything = table([*full.decode(run, 0), *full.flush()], message_layout())
    for chosen in combinations(NAMES, count):
        for names in (chosen, chosen[::-1]):
            layout = message_layout(names)
            decoder = DECODERS[name](layout, None, 10, 100)
            got = table([*decoder.decode(run, 0), *decoder.flush()], layout)
            assert [list(row) for row in got] == [list(names)] * 3
            assert got == [shown(row, layout) for row in everything]


@pytest.mark.parametrize("column", RAW_COLUMNS)
def test_columns_left_out_take_no_memory(column: str) -> None:
    decoder = DECODERS["compiled"](message_layout((column,)), None, 1000, 1 << 20)
    buffers = {
        "offset": [decoder._offsets],
        "message_id": [decoder._ids],
        "timestamp": [decoder._times, decoder._timed],
        "attribute": [decoder._attribute_ends, decoder._attributed, decoder._attributes],
        "value": [decoder._value_ends, decoder._values],
    }
    for name, arrays in buffers.items():
        assert all(len(array) >= 1000 if name == column else len(array) == 0 for array in arrays), name


@pytest.mark.parametrize("name", DECODERS)
def test_only_values_that_are_wanted_fill_a_batch(name: str) -> None:
    run = b"".join(frames_of([(b"x" * 50, None)] * 6))
    small = DECODERS[name](message_layout(("offset",)), None, 4, 60)
    assert [batch.num_rows for batch in [*small.decode(run, 0), *small.flush()]] == [4, 2]
    large = DECODERS[name](message_layout(("value",)), None, 4, 60)
    assert [batch.num_rows for batch in [*large.decode(run, 0), *large.flush()]] == [1] * 6


@pytest.mark.parametrize("layout", [message_layout(("offset",)), message_layout(("topic",)), message_layout()])
@pytest.mark.parametrize("in_front", ["", "addressed"])
@pytest.mark.parametrize("name", DECODERS)
def test_damage_is_found_whatever_is_read_and_the_rows_around_it_survive(
    name: str, in_front: str, layout: RowLayout
) -> None:
    good, bad, more = frames_of([(b"good", "a"), (b"evil", "a"), (b"more", "a")])
    bad = bad[:-1] + b"!"
    decoder = DECODERS[name](layout, None, 10, 100)
    frames = [good, bad, more]
    found = decoder.decode_addressed(addressed(frames, 100)) if in_front else decoder.decode(b"".join(frames), 100)
    with pytest.raises(CorruptFrame) as caught:
        list(found)
    assert (caught.value.where, caught.value.offset) == ("orders/3-7", 100 + len(good))
    rest = 100 + len(good) + len(bad)
    rows = table([*decoder.decode(more, rest), *decoder.flush()], layout)
    assert len(rows) == 2
    if "offset" in layout.types:
        assert [row["offset"] for row in rows] == [100, rest]


@pytest.mark.parametrize("cut", [1, 19, 21])
@pytest.mark.parametrize("name", DECODERS)
def test_addressed_frames_that_are_cut_are_damaged(name: str, cut: int) -> None:
    frames = frames_of([(b"good", None), (b"cut", None)])
    decoder = DECODERS[name](message_layout(), None, 10, 100)
    with pytest.raises(CorruptFrame):
        list(decoder.decode_addressed(addressed(frames, 0)[:-cut]))
    assert [row["value"] for row in table(decoder.flush(), message_layout())] == [b"good"]


@given(st.lists(st.binary(max_size=12), max_size=20))
@settings(max_examples=examples(80))
def test_values_as_text_are_what_python_makes_of_them(payloads: list[bytes]) -> None:
    layout = message_layout(("value",), value_type=StringType())
    run = b"".join(frames_of((payload, None) for payload in payloads))
    for make in DECODERS.values():
        decoder = make(layout, None, 7, 100)
        got = [row["value"] for row in table([*decoder.decode(run, 0), *decoder.flush()], layout)]
        assert got == [payload.decode("utf-8", "replace") for payload in payloads]


def test_json_values_on_both_paths_and_across_the_change_of_engines() -> None:
    kind = StructType([StructField("id", LongType()), StructField("name", StringType())])
    layout = message_layout(("value", "attribute"), ATTRIBUTE_MAP, kind)
    payloads = [b'{"id": %d, "name": "n%d"}' % (n, n) if n % 3 else b"{not json" for n in range(40)]
    want = [{"id": n, "name": f"n{n}"} if n % 3 else None for n in range(40)]
    for plain_bytes in (0, 300, 1 << 30):
        decoder = RunDecoder(SOURCE, 7, 200, ColumnEngine(plain_bytes), layout)
        batches = []
        for n, frame in enumerate(frames_of((payload, "k=v") for payload in payloads)):
            batches += decoder.decode(frame, n * 1000)
        rows = table([*batches, *decoder.flush()], layout)
        assert [row["value"] for row in rows] == want
        assert {tuple(row["attribute"]) for row in rows} == {(("k", "v"),)}


def test_the_plain_decoder_keeps_no_payloads_that_are_not_read() -> None:
    run = b"".join(encode_frame(number << 22, 0, bytes(100_000)) for number in range(100))
    decoder = DECODERS["plain"](message_layout(("offset",)), None, 1000, 1 << 30)
    tracemalloc.start()
    try:
        assert list(decoder.decode(run, 0)) == []
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1_000_000
