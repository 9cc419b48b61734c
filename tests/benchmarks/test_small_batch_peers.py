"""The trivial sources and sinks that small batches are compared with, and what is made of their figures."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from bare_peer import counting
from ceilings import PAYLOAD_BYTES, ArrivalsWriter, TailReader, TrivialStreamReader, TrivialWriter, rows_of
from first_row import Listener, percentile, program, seconds_of
from fix_broker import RunningBroker

from metaq.backends.metaq.session import Session, call_all
from metaq.protocols.text.commands import GetOffset


def test_a_tailed_file_gives_what_was_appended_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "pings"
    path.write_bytes(b"a" * PAYLOAD_BYTES)
    reader = TailReader(path)
    start = reader.initialOffset()
    with path.open("ab") as file:
        file.write(b"b" * PAYLOAD_BYTES + b"c" * PAYLOAD_BYTES)
    [task] = reader.partitions(start, reader.latestOffset())
    [batch] = reader.read(task)
    assert batch.column("value").to_pylist() == [b"b" * PAYLOAD_BYTES, b"c" * PAYLOAD_BYTES]


@pytest.mark.process
def test_a_relay_counts_requests_and_what_was_waited_for(dev_broker: RunningBroker) -> None:
    with counting(dev_broker.address) as (address, counts):
        session = Session.connect(address)
        before = counts.requests, counts.round_trips
        for commands in (1, 3):
            call_all(session, [GetOffset("nothing", "group", 0, 0, 0)] * commands)
        assert (counts.requests - before[0], counts.round_trips - before[1]) == (4, 2)
        session.close()


def test_the_trivial_source_moves_on_by_its_rows_and_an_idle_one_stays() -> None:
    moving, idle = TrivialStreamReader(1000, 4), TrivialStreamReader(0, 1)
    assert [moving.latestOffset(), moving.latestOffset()] == [{"at": 1000}, {"at": 2000}]
    assert idle.latestOffset() == idle.initialOffset()
    tasks = moving.partitions({"at": 0}, {"at": 1000})
    assert [batch.num_rows for task in tasks for batch in moving.read(task)] == [250] * 4
    assert TrivialWriter().write(iter([rows_of([b"x"] * 3)])).rows == 3


def test_arrivals_are_reported_with_the_clock_of_this_machine() -> None:
    listener = Listener()
    try:
        old_ns, sent_ns = 5, time.monotonic_ns()
        values = [old_ns.to_bytes(8), sent_ns.to_bytes(8)]
        batch = pa.RecordBatch.from_pydict({"value": values}, pa.schema([("value", pa.binary())]))
        assert ArrivalsWriter(listener.port).write(iter([batch])).rows == 2
        took_ms = listener.latency_ms(sent_ns)
        assert 0 <= took_ms <= (time.monotonic_ns() - sent_ns) / 1e6
    finally:
        listener.close()


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 102)]
    assert (percentile(values, 50), percentile(values, 99)) == (51.0, 100.0)


def test_a_timed_program_reports_its_seconds() -> None:
    assert 0 <= seconds_of(program("sum(range(10))")) < 60
