"""Frame boundaries and times, with the broker's index and without it."""

from __future__ import annotations

import struct

import pytest
from fix_client import ADDRESS, memory_session, offset_session
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.metaq.boundaries import WINDOW_BYTES_MAX, first_at_time, frame_boundary
from metaq.errors import BrokerError, CorruptFrame, ExtensionMissing, ProtocolError
from metaq.formats.frames import encode_frame
from metaq.protocols.text.commands import Get
from metaq.testing.memory import MemoryBroker

JAVA: frozenset[str] = frozenset()


def broker_with(
    sizes: list[int], segment_bytes_max: int = 1 << 30, extensions: frozenset[str] = JAVA
) -> tuple[MemoryBroker, list[int]]:
    """A broker with frames of these body sizes, and all its boundaries."""
    broker = MemoryBroker({"t": 1}, segment_bytes_max=segment_bytes_max, extensions=extensions)
    partition = broker.partition("t", 0)
    boundaries = [partition.append(encode_frame(0, 0, bytes(size))) for size in sizes]
    return broker, [*boundaries, partition.end]


@pytest.mark.parametrize("extensions", [JAVA, frozenset({"boundary"})])
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    segment_bytes_max=st.integers(1, 500),
    data=st.data(),
)
def test_the_boundary_is_the_last_frame_start_at_or_below(
    extensions: frozenset[str], sizes: list[int], segment_bytes_max: int, data: st.DataObject
) -> None:
    broker, boundaries = broker_with(sizes, segment_bytes_max, extensions)
    offset = data.draw(st.integers(0, boundaries[-1] + 50))
    below = [boundary for boundary in boundaries if boundary <= offset]
    floor = data.draw(st.sampled_from([None, *below]))
    assert frame_boundary(memory_session(broker), "t", 0, offset, floor) == below[-1]


@pytest.mark.parametrize("extensions", [JAVA, frozenset({"boundary"})])
def test_an_offset_below_the_first_segment_gives_its_start(extensions: frozenset[str]) -> None:
    broker, boundaries = broker_with([80] * 6, 200, extensions)
    broker.partition("t", 0).drop_segments(1)
    assert frame_boundary(memory_session(broker), "t", 0, 150, floor=100) == boundaries[2] == 200


def test_a_floor_behind_the_segment_start_saves_the_walk() -> None:
    broker, _ = broker_with([80] * 1000)
    assert frame_boundary(memory_session(broker), "t", 0, 99_950, floor=99_800) == 99_900
    assert [(get.offset, get.max_bytes) for get in broker.commands if isinstance(get, Get)] == [
        (99_800, 150),
        (99_900, 50),
    ]


def test_a_floor_above_the_offset_is_not_believed() -> None:
    broker, _ = broker_with([80] * 10)
    assert frame_boundary(memory_session(broker), "t", 0, 250, floor=900) == 200


def test_small_frames_are_read_in_growing_windows() -> None:
    broker, _ = broker_with([80] * 30_000)
    assert frame_boundary(memory_session(broker), "t", 0, 2_999_999) == 2_999_900
    windows = [get.max_bytes for get in broker.commands if isinstance(get, Get)]
    assert windows[:4] == [16 << 10, 64 << 10, 256 << 10, 1 << 20]
    assert len(windows) <= 8
    assert max(windows) == WINDOW_BYTES_MAX


def test_bodies_of_large_frames_are_not_transferred() -> None:
    broker, boundaries = broker_with([1_000_000] * 50 + [80] * 100)
    assert frame_boundary(memory_session(broker), "t", 0, boundaries[40] + 1) == boundaries[40]
    assert sum(get.max_bytes for get in broker.commands if isinstance(get, Get)) < 20_000
    assert frame_boundary(memory_session(broker), "t", 0, boundaries[-1] - 1) == boundaries[-2]


def test_damage_on_the_way_is_named() -> None:
    broker, _ = broker_with([80])
    broker.partition("t", 0).append(struct.pack(">i", -5) + bytes(96))
    with pytest.raises(CorruptFrame, match=f"t partition 0 of broker {ADDRESS} at offset 100: body length -5"):
        frame_boundary(memory_session(broker), "t", 0, 150)


@pytest.mark.parametrize("extensions", [JAVA, frozenset({"boundary"})])
def test_a_partition_without_store_is_the_brokers_error(extensions: frozenset[str]) -> None:
    with pytest.raises(BrokerError, match="lookup of offset 5 in t partition 0 with 404"):
        frame_boundary(memory_session(MemoryBroker({"t": 1}, extensions=extensions)), "t", 0, 5)


def test_a_time_is_looked_up_by_the_broker() -> None:
    session, transport = offset_session("timestamp", "t metaq-spark 0 1700000000000 2 timestamp", "4711")
    assert first_at_time(session, "t", 0, 1_700_000_000_000) == 4711
    assert transport.finished


def test_a_broker_that_keeps_no_times_is_named() -> None:
    with pytest.raises(
        ExtensionMissing, match=f"broker {ADDRESS} does not offer 'timestamp', which starting at a time"
    ):
        first_at_time(memory_session(MemoryBroker({"t": 1}, extensions=frozenset())), "t", 0, 0)


def test_an_answer_that_is_no_number_is_malformed() -> None:
    session, _ = offset_session("", "t metaq-spark 0 5 2", "five")
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: the answer to offset is 'five', not a number"):
        frame_boundary(session, "t", 0, 5)
    assert session.closed
