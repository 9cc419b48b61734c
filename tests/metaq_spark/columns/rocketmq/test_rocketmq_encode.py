"""Rows to the elements of RocketMQ's batches: the compiled and the plain encoder, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.rocketmq.encode import (
    Element,
    ElementEncoder,
    PropertyColumn,
    RowColumns,
    SingleMessage,
    _joined,
)
from metaq_spark.columns.rocketmq.plain import encode_element
from metaq_spark.columns.rocketmq.record import parse_properties
from metaq_spark.columns.rocketmq.unique_keys import key_prefix, unique_key
from metaq_spark.errors import RowError

PREFIX = key_prefix("query", 7, 3)
ENGINES = {"compiled": lambda: ColumnEngine(0), "plain": lambda: ColumnEngine(1 << 60)}
MAP = pa.map_(pa.string(), pa.string())
GOLDEN = Path(__file__).parents[3] / "golden/rocketmq/records.jsonl"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> ColumnEngine:
    return ENGINES[request.param]()


def elements(block: EncodedBlock) -> list[Element]:
    """The parts of a block's elements, each checked for its lengths."""
    data, at, found = bytes(block.data), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        assert data[at + 4 : at + 16] == bytes(12)
        element = Element.of(data[at : at + size])
        assert encode_element(element.body, element.properties) == data[at : at + size]
        found.append(element)
        at += size
    assert len(found) == block.count
    return found


def encoded(
    columns: RowColumns, engine: ColumnEngine, *, first_row: int = 0, rows: list[int] | None = None
) -> list[EncodedBlock]:
    encoder = ElementEncoder(columns, PREFIX, first_row, "the input of task 3", engine)
    block = OpenBlock(300, 5)
    chosen = np.array(range(len(columns.value)) if rows is None else rows, dtype=np.int64)
    blocks = list(encoder.append(chosen, block))
    return [*blocks, block.take()] if block.count else blocks


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02|"), min_size=1, max_size=9)
maps = st.none() | st.dictionaries(texts | st.sampled_from(["KEYS", "WAIT"]), st.none() | texts, max_size=4)
row = st.tuples(
    st.binary(max_size=90), st.none() | texts, st.none() | st.lists(texts, max_size=3), maps, st.integers(0, 2)
)


def columns_of(items: list[Any], slice_at: int = 0) -> RowColumns:
    types = (pa.binary(), pa.string(), pa.list_(pa.string()), MAP, pa.int32())
    lists = zip(*items, strict=True) if items else [[] for _ in types]
    arrays = [
        pa.array([None if one is None else list(one.items()) for one in values] if kind == MAP else list(values), kind)
        for values, kind in zip(lists, types, strict=True)
    ]
    return RowColumns(*(array.slice(slice_at) for array in arrays))


def test_a_tag_that_no_subscription_can_name_is_refused(engine: ColumnEngine) -> None:
    tags = pa.array(["a|b", None, "a|", "|b", "tea||scones"])
    columns = RowColumns(pa.array([b"x"] * 5), tags)
    assert encoded(RowColumns(columns.value.slice(0, 4), tags.slice(0, 4)), engine)[0].count == 4
    with pytest.raises(
        RowError, match=r"row 8 of the input of task 3: its tag is 'tea\|\|scones'; \|\| stands between"
    ):
        encoded(columns, engine, first_row=3)


@given(st.lists(row, max_size=12), st.integers(0, 3), st.integers(0, 2**40), st.randoms())
@settings(max_examples=examples(150))
def test_both_encoders_write_the_same_messages(items: list[Any], cut: int, first_row: int, random: Any) -> None:
    cut = min(cut, len(items))
    columns, kept = columns_of(items, cut), items[cut:]
    order = sorted(range(len(kept)), key=lambda _: random.random())
    found = [encoded(columns, make(), first_row=first_row, rows=order) for make in ENGINES.values()]
    assert [(type(b), bytes(b.data), b.count) for b in found[0]] == [
        (type(b), bytes(b.data), b.count) for b in found[1]
    ]
    written = {}
    for block in found[0]:
        for element in elements(block):
            pairs = parse_properties(element.properties)
            written[pairs.pop(b"UNIQ_KEY")] = (element.body, pairs, isinstance(block, SingleMessage))
    assert len(written) == len(kept)
    for index, (body, tag, keys, own, delay) in enumerate(kept):
        pairs = {} if tag is None else {b"TAGS": tag.encode()}
        if keys:
            pairs[b"KEYS"] = " ".join(keys).encode()
        if delay:
            pairs[b"DELAY"] = str(delay).encode()
        pairs |= {n.encode(): v.encode() for n, v in (own or {}).items() if v and n not in ("KEYS", "WAIT")}
        assert written[unique_key(PREFIX, first_row + index)] == (body, pairs, delay > 0)


def test_elements_have_the_form_that_java_writes() -> None:
    (java,) = (json.loads(line) for line in GOLDEN.read_text().splitlines() if "batch_hex" in line)
    raw = bytes.fromhex(java["batch_hex"])
    parts = [raw[:56], raw[56:112], raw[112:]]
    found = [Element.of(part) for part in parts]
    for number, (part, element) in enumerate(zip(parts, found, strict=True)):
        ours = encode_element(element.body, element.properties)
        assert ours[:12] + number.to_bytes(4) + ours[16:] == part  # theirs have the numbers as flags
    assert [element.body for element in found] == [b"batch 0", b"batch 1", b"batch 2"]
    assert parse_properties(found[2].properties) == {b"KEYS": b"k2", b"WAIT": b"true", b"TAGS": b"Tag2"}


def test_blocks_keep_their_limits(engine: ColumnEngine) -> None:
    items = [(bytes(size), None, None, None, 0) for size in (10, 10, 150, 150, 400, 1, 1, 1, 1, 1, 1)]
    assert [block.count for block in encoded(columns_of(items), engine)] == [2, 1, 1, 1, 4, 2]


def test_a_key_is_the_row_s_and_nobody_else_s(engine: ColumnEngine) -> None:
    assert len({key_prefix(*named) for named in [("q", 1, 2), ("q", 2, 1), ("r", 1, 2), ("q", 12, 0)]}) == 4
    items = [(b"a", None, None, None, 0)] * 3
    keys = [
        parse_properties(e.properties)[b"UNIQ_KEY"] for b in encoded(columns_of(items), engine) for e in elements(b)
    ]
    assert keys == [PREFIX + b"%012X" % n for n in range(3)]
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ((b"", "a\x01", None, None, 0), "row 12 of the input of task 3: a tag, a key or a property has one of"),
        ((b"", None, ["a\x02"], None, 0), "a tag, a key or a property has one of"),
        ((b"", None, None, {"a": "b\x02"}, 0), "a tag, a key or a property has one of"),
        ((b"", None, None, {"a\x01": "b"}, 0), "a tag, a key or a property has one of"),
        (
            (b"", None, None, {"": "b"}, 0),
            "row 12 of the input of task 3: a property has an empty name or an empty value",
        ),
        ((b"", None, None, {"a": ""}, 0), "a property has an empty name or an empty value"),
        ((b"", None, None, {"a": "b" * 32000}, 0), "are 32045 bytes; at most 32000 are allowed"),
        ((b"", None, None, None, 19), "delay_level is 19; it goes from 0"),
        ((b"", None, None, None, -1), "delay_level is -1; it goes from 0"),
    ],
)
def test_rows_that_cannot_become_messages(engine: ColumnEngine, item: Any, sentence: str) -> None:
    with pytest.raises(RowError, match=sentence):
        encoded(columns_of([(b"fine", "t", None, None, 0), item]), engine, first_row=10)


def test_a_null_among_keys_leaves_the_other_keys(engine: ColumnEngine) -> None:
    lists = pa.array([["x"], ["a", None, "b"], [None], None], pa.list_(pa.string())).slice(1)
    (block,) = encoded(RowColumns(pa.array([b"1", b"2", b"3"]), keys=lists), engine)
    assert [parse_properties(each.properties).get(b"KEYS") for each in elements(block)] == [b"a b", None, None]


def test_a_value_above_the_limit_is_refused_before_any_block_of_its_rows(engine: ColumnEngine) -> None:
    limit = 4 << 20
    largest = encoded(columns_of([(bytes(limit), None, None, None, 0)]), engine)
    assert [len(element.body) for block in largest for element in elements(block)] == [limit]
    for values in (pa.array([b"a", b"b", bytes(limit + 1)]).slice(1), pa.array(["a" * 400, "b" * (limit + 1)])):
        with pytest.raises(RowError, match=r"row 12 of the input of task 3: its value is 4194305 bytes; .* 4194304"):
            encoded(RowColumns(values), engine, first_row=10)
    encoder = ElementEncoder(RowColumns(values), PREFIX, 10, "a test", engine, value_bytes_max=lambda: limit + 1)
    assert len(list(encoder.append(np.arange(2), OpenBlock(1 << 20, 100)))) == 1


def test_properties_by_which_a_broker_dispatches_to_further_queues_are_not_written() -> None:
    """A message that was read has them; its copy would be dispatched again."""
    own = {"colour": "red", "INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "7", "__LITE_TOPIC": "l"}
    column = PropertyColumn.of(pa.array([list(own.items())], pa.map_(pa.string(), pa.string())))
    assert column.wanted.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("nullable", [True, False])
def test_lists_of_keys_are_joined_whether_or_not_their_type_allows_nulls(nullable: bool) -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=nullable))
    keys = pa.array([["k", "l"], None, []], kind)
    assert _joined(keys).to_pylist() == ["k l", None, ""]
