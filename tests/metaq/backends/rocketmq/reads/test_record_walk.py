"""Which records of an answer are wanted, and which cannot be: as a table of damages to two good records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.rocketmq.reads.record_walk import MeasuredRecords, WantedRecords, measure_records, store_times
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.records import Record, encode_record

V4, V6 = host_bytes("127.0.0.1", 1), host_bytes("::1", 1)


def record(offset: int, topic: str = "orders", queue_id: int = 2, body: bytes = b"tea", host: bytes = V4) -> bytes:
    return encode_record(
        Record(topic=topic, queue_id=queue_id, queue_offset=offset, body=body, store_timestamp=1000 + offset,
               born_host=host, store_host=host, properties=b"TAGS\x01a")
    )  # fmt: skip


def measured(data: bytes, start: int = 0, end: int = 100) -> MeasuredRecords:
    return measure_records(memoryview(data), WantedRecords(b"orders", 2, start, end))


def test_records_outside_the_range_are_left_out() -> None:
    parts = [record(offset, body=b"x" * offset) for offset in range(10)]
    data = b"".join(parts)
    before, wanted = len(b"".join(parts[:3])), len(b"".join(parts[3:7]))
    assert measured(data, 3, 7) == MeasuredRecords(before, before + wanted, 4, 3, 6)
    assert measured(data) == MeasuredRecords(0, len(data), 10, 0, 9)
    assert measured(data, 20) == MeasuredRecords(len(data), len(data), 0, -1, 9)
    assert measured(b"") == MeasuredRecords(0, 0, 0, -1, -1)


def test_gaps_are_no_problem_of_a_record() -> None:
    data = record(1) + record(5) + record(9)
    assert measured(data) == MeasuredRecords(0, len(data), 3, 1, 9)


def test_hosts_of_either_kind_and_long_topics() -> None:
    assert measured(record(0) + record(1, host=V6)).records == 2
    topic = "t" * 200
    data = memoryview(record(0, topic=topic))
    assert measure_records(data, WantedRecords(topic.encode(), 2, 0, 9)).records == 1
    assert list(store_times(record(0, host=V6) + record(7))) == [(0, 1000), (7, 1007)]


def _patched(at: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:-1], "it is cut after"),
        (lambda data: data[:-8] + b"\x00\x07" + data[-6:], "its properties of 7 bytes do not fit"),
        (lambda data: data[:-8] + b"\xff\xff" + data[-6:], "its properties of -1 bytes do not fit"),
        (lambda data: data[:40], "it is cut after 40 bytes"),
        (_patched(0, b"\x00\x00\x00\x00"), "its length is 0"),
        (_patched(0, b"\x80\x00\x00\x00"), "its length is -2147483648"),
        (_patched(0, b"\x7f\xff\xff\xff"), "of 2147483647 bytes"),
        (_patched(4, b"\xcb\xd4\x31\x94"), "its magic is cbd43194"),
        (_patched(12, b"\x00\x00\x00\x03"), "it is of queue 3"),
        (_patched(20, bytes(8)), "its offset 0 follows 0"),
        (_patched(36, b"\x00\x00\x00\x80"), "it holds a batch of messages"),
        (_patched(36, b"\x00\x00\x00\x30"), "its hosts do not fit"),
        (_patched(84, b"\xff\xff\xff\xff"), "its body of -1 bytes does not fit"),
        (_patched(84, b"\x00\x10\x00\x00"), "its body of 1048576 bytes does not fit"),
        (_patched(91, b"\x7f"), "its topic of 127 bytes does not fit"),
        (_patched(92, b"others"), "it is of topic 'others'"),
        (_patched(91, b"\x05"), "it is of topic 'order'"),
    ],
)
def test_the_first_wrong_record_is_named(damage: Callable[[bytes], bytes], problem: str) -> None:
    first = record(0)
    found = measured(first + damage(record(1)))
    assert (found.begin, found.stop, found.records) == (0, len(first), 1)
    assert found.problem is not None
    assert problem in found.problem


@given(st.binary(max_size=300), st.integers(0, 3))
def test_no_bytes_make_it_fail_or_read_beyond(noise: bytes, good: int) -> None:
    data = b"".join(record(offset) for offset in range(good))
    found = measured(data + noise)
    assert 0 <= found.begin <= found.stop <= len(data + noise)
    assert found.records >= good
