"""Filters that narrow a read: what is taken, what is left to Spark, and that the rows stay the same."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections.abc import Callable

import pytest
from examples import examples, in_one_test
from hypothesis import given, settings
from hypothesis import strategies as st
from metaq_harness import NO_EXTENSIONS, Harness
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_id import EPOCH_MS, IdRange
from metaq.model import Message
from metaq.protocols.text.commands import Value
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.pushdown import PushdownReader

Row = dict[str, object]
T0 = EPOCH_MS + 1_000_000
ATTRIBUTES = ["a", "b", None, "two words", ""]


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def filled(**settings: object) -> Harness:
    """Messages over two brokers whose times mostly grow; some go back, and some ids hold no time."""
    harness, chance = Harness(**settings), random.Random(5)
    for broker, index in ((0, 0), (0, 1), (1, 1)):
        store, now = harness.brokers[broker].partition("orders", index), T0
        for number in range(60):
            now += chance.choice([0, 1, 10, -25])
            message_id = -number if number % 13 == 5 else IdRange(now, number, 1, broker).first
            message = Message(b"%d-%d-%d" % (broker, index, number), ATTRIBUTES[number % 5])
            store.append(encode_frame(message_id, *encode_body(message)))
    return harness


def rows(reader: BatchReader) -> list[Row]:
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def pushed(harness: Harness, filters: list[Filter], **options: str) -> tuple[PushdownReader, list[Filter]]:
    given = harness.options(Use.BATCH_READ, pushFilters="true", **options)
    reader = PushdownReader(MetaQSource(given, harness.pool, harness.clock))
    return reader, list(reader.pushFilters(filters))


CHECKS: dict[type[Filter], Callable[[object, object], bool]] = {
    EqualTo: lambda value, other: value == other,
    EqualNullSafe: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
    In: lambda value, other: value in other,
    StringStartsWith: lambda value, other: value.startswith(other),
}


def should_wait(condition: Filter, row: Row) -> bool:
    """What Spark makes of a condition on a row."""
    if isinstance(condition, Not):
        inner = row[condition.child.attribute[0]]
        return inner is not None and not should_wait(condition.child, row)
    value = row[condition.attribute[0]]
    if isinstance(condition, IsNull | IsNotNull):
        return (value is None) == isinstance(condition, IsNull)
    return value is not None and CHECKS[type(condition)](value, condition.value)


compare = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
NUMBERS = [0, 1, 25, 60, 61, 200, 700, 1300, 10**9]
TIMES = [at(T0 + ms) for ms in (-(10**6), -300, -100, -20, -1, 0, 1, 5, 10, 50, 400)]
filters = st.one_of(
    st.builds(lambda kind, value: kind(("offset",), value), compare, st.sampled_from(NUMBERS)),
    st.builds(lambda values: In(("offset",), tuple(values)), st.lists(st.sampled_from(NUMBERS), min_size=1)),
    st.builds(lambda kind, value: kind(("timestamp",), value), compare, st.sampled_from(TIMES)),
    st.builds(lambda value: EqualTo(("attribute",), value), st.sampled_from(["a", "b", "two words", "", "none"])),
    st.builds(
        lambda values: In(("attribute",), tuple(values)), st.lists(st.sampled_from(["a", "b", "c d"]), min_size=1)
    ),
    st.builds(lambda kind, value: kind(("broker_id",), value), compare, st.integers(-1, 2)),
    st.builds(lambda kind, value: kind(("partition",), value), compare, st.integers(-1, 2)),
    st.builds(lambda kind, value: kind(("topic",), value), compare, st.sampled_from(["a", "orders", "z"])),
    st.sampled_from(
        [
            IsNotNull(("attribute",)),
            IsNull(("attribute",)),
            Not(EqualTo(("attribute",), "a")),
            Not(EqualTo(("partition",), 0)),
            StringStartsWith(("topic",), "ord"),
            GreaterThan(("message_id",), 0),
        ]
    ),
)
HARNESSES = {"ours": filled(), "java": filled(extensions=NO_EXTENSIONS)}


@given(st.lists(filters, max_size=3), st.sampled_from([{}, {"messageTypes": "a,b"}, {"maxBytesPerPartition": "300"}]))
@settings(max_examples=examples(150))
@pytest.mark.parametrize("kind", HARNESSES)
def test_the_same_rows_with_and_without(kind: str, conditions: list[Filter], options: dict[str, str]) -> None:
    harness = HARNESSES[kind]
    everything = rows(BatchReader(MetaQSource(harness.options(Use.BATCH_READ, **options), harness.pool, harness.clock)))
    reader, left = pushed(harness, conditions, **options)
    assert all(any(one is condition for condition in conditions) for one in left)
    got = [row for row in rows(reader) if all(should_wait(one, row) for one in left)]
    assert got == [row for row in everything if all(should_wait(one, row) for one in conditions)]


@in_one_test(
    "condition, exact",
    [
        (EqualTo(("attribute",), "a"), True),
        (EqualNullSafe(("attribute",), "a"), True),
        (In(("attribute",), ("a", "b")), True),
        (In(("attribute",), ("a", None)), False),
        (In(("attribute",), ("a", "two words")), False),
        (In(("attribute",), ()), False),
        (EqualTo(("attribute",), "two words"), False),
        (EqualTo(("attribute",), ""), False),
        (EqualTo(("attribute",), None), False),
        (EqualNullSafe(("attribute",), None), False),
        (GreaterThan(("attribute",), "a"), False),
        (IsNotNull(("attribute",)), False),
        (Not(EqualTo(("attribute",), "a")), False),
        (EqualTo(("attribute", "k"), "a"), False),
        (EqualTo(("offset",), 5), False),
        (EqualTo(("offset",), "5"), False),
        (GreaterThan(("timestamp",), at(T0)), False),
        (GreaterThan(("timestamp",), dt.datetime(2024, 1, 1)), False),
        (EqualTo(("topic",), "orders"), True),
        (In(("topic",), ("orders", "x")), True),
        (EqualTo(("topic",), 5), False),
        (EqualTo(("partition",), 1), True),
        (EqualTo(("partition",), True), False),
        (LessThan(("broker_id",), 1), True),
        (In(("broker_id",), (0, None)), False),
        (EqualTo(("value",), b"x"), False),
    ],
)
def test_what_spark_need_not_check_again(condition: Filter, exact: bool) -> None:
    _, left = pushed(HARNESSES["ours"], [condition])
    assert left == ([] if exact else [condition])


def test_an_attribute_that_is_a_map_is_left_to_spark() -> None:
    condition = EqualTo(("attribute",), "a")
    assert pushed(HARNESSES["ours"], [condition], attributeFormat="map")[1] == [condition]


def bytes_fetched(harness: Harness, filters: list[Filter]) -> int:
    fetched = 0

    def counting(broker: MemoryBroker):
        plain = type(broker).answer

        def answer(command):
            nonlocal fetched
            reply = plain(broker, command)
            fetched += len(reply.data) if isinstance(reply, Value) else 0
            return reply

        return answer

    for broker in harness.brokers:
        broker.answer = counting(broker)  # type: ignore[method-assign]
    try:
        rows(pushed(harness, filters)[0])
    finally:
        for broker in harness.brokers:
            del broker.answer
    return fetched


@pytest.mark.parametrize("kind", HARNESSES)
@pytest.mark.parametrize(
    ("conditions", "share_max"),
    [
        ([EqualTo(("partition",), 0)], 0.34),
        ([EqualTo(("broker_id",), 7)], 0.0),
        ([LessThan(("offset",), 200)], 0.2),
        ([GreaterThanOrEqual(("offset",), 1300)], 0.4),
        ([GreaterThan(("offset",), 300), LessThan(("offset",), 500)], 0.2),
        ([EqualTo(("attribute",), "a"), EqualTo(("attribute",), "b")], 0.0),
        ([EqualTo(("attribute",), "a")], 0.4),
        ([GreaterThan(("timestamp",), at(T0 + 10**9))], 0.0),
    ],
)
def test_less_is_fetched(kind: str, conditions: list[Filter], share_max: float) -> None:
    harness = HARNESSES[kind]
    named = {condition.attribute[0] for condition in conditions}
    if kind == "java" and (named == {"timestamp"} or (named == {"attribute"} and len(conditions) == 1)):
        share_max = 1.0  # it keeps no times, and filters nothing
    # A broker without the extension walks headers to find where messages begin.
    walked = 4000 if kind == "java" and named == {"offset"} else 0
    assert bytes_fetched(harness, conditions) <= bytes_fetched(harness, []) * share_max + 3 * 60 + walked


def test_nothing_pushed_reads_everything() -> None:
    harness = HARNESSES["ours"]
    reader = PushdownReader(
        MetaQSource(harness.options(Use.BATCH_READ, pushFilters="true"), harness.pool, harness.clock)
    )
    assert len(rows(reader)) == 180
