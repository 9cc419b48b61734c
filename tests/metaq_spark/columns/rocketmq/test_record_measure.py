"""Which records of a pull are wanted: the compiled loop, the plain one and the plain client's against each other."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import record

from metaq.backends.rocketmq.reads.record_walk import MeasuredRecords, WantedRecords, measure_records
from metaq_spark.backends.rocketmq import record_measure
from metaq_spark.backends.rocketmq.record_measure import RecordMeasure
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.rocketmq.checks import ExpectedQueue, UnusableRecord

ENGINES = {"compiled": ColumnEngine(0), "plain": ColumnEngine(1 << 60)}


def measured(kind: str, data: bytes, wanted: WantedRecords, dense: bool) -> MeasuredRecords | tuple[int, str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_measure, "shared_engine", lambda: ENGINES[kind])
        try:
            return RecordMeasure("orders/broker-a:3", ExpectedQueue(wanted.topic, wanted.queue_id, dense))(
                memoryview(data), wanted
            )
        except UnusableRecord as found:
            return found.offset, found.reason, found.record


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 400), st.binary(max_size=6), st.booleans(), st.booleans())
@settings(max_examples=examples(400))
def test_all_agree(start: int, end: int, at: int, junk: bytes, cut: bool, dense: bool) -> None:
    run = b"".join(record(b"b" * 20, offset=n, version=1 + n % 2, properties=b"TAGS\x01a") for n in range(1, 5))
    data = run[: at % (len(run) + 1)] if cut else run[:at] + junk + run[at + len(junk) :]
    wanted = WantedRecords(b"orders", 3, start, end)
    compiled, plain = (measured(kind, data, wanted, dense) for kind in ENGINES)
    assert compiled == plain
    if data == run:
        assert compiled == measure_records(memoryview(data), wanted)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_bad_record_ends_the_run_and_is_reported_when_first(kind: str) -> None:
    good, bad = record(b"good", offset=5), record(b"bad", offset=6, topic=b"others")
    wanted = WantedRecords(b"orders", 3, 5, 9)
    found = measured(kind, good + bad, wanted, dense=True)
    assert found == MeasuredRecords(0, len(good), 1, 5, 5, ends_early=True)
    reported = measured(kind, bad + good, wanted._replace(start=6), dense=True)
    assert reported == (6, "it is of another topic", bad)
