"""Reading a range: whole frames, in order, once, whatever the broker cuts, moves or interrupts."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest
from fix_client import ADDRESS, memory_session
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.metaq.range_reader import lend_range
from metaq.client.consumer import Run, read_range
from metaq.errors import BrokerError, ConnectionFailed, CorruptFrame, DataMissing, OffsetMoved, ProtocolError
from metaq.formats.frames import HEADER_BYTES, encode_frame, walk, whole_bytes
from metaq.model import OffsetRange
from metaq.protocols.text.commands import Command, Get, Reply, Result, Value
from metaq.testing.memory import MemoryBroker
from metaq.testing.memory_partition import MemoryPartition

WHERE = f"t partition 0 of broker {ADDRESS}"


def frames_of(*sizes: int) -> list[bytes]:
    """Frames with bodies of these sizes; the message id is the position in the list."""
    return [encode_frame(number, 0, bytes([number % 251]) * size) for number, size in enumerate(sizes)]


def broker_with(
    frames: Sequence[bytes], segment_bytes_max: int = 1 << 30, transfer_bytes_max: int = 1 << 20
) -> tuple[MemoryBroker, MemoryPartition, list[int]]:
    """A broker that holds ``frames`` in partition 0 of topic t, that partition, and the frames' offsets."""
    broker = MemoryBroker({"t": 1}, segment_bytes_max=segment_bytes_max, transfer_bytes_max=transfer_bytes_max)
    partition = broker.partition("t", 0)
    offsets = [partition.append(frame) for frame in frames]
    return broker, partition, offsets


def gets(broker: MemoryBroker) -> list[tuple[int, int]]:
    """The slices asked for: (offset, max bytes)."""
    return [(get.offset, get.max_bytes) for get in broker.commands if isinstance(get, Get)]


def check_runs(runs: Sequence[Run], start: int) -> bytes:
    """The bytes of ``runs``, which must be whole frames without gaps from ``start`` on."""
    for run in runs:
        assert run.offset == start
        assert run.data
        assert whole_bytes(run.data) == len(run.data)
        start = run.end
    return b"".join(run.data for run in runs)


# ---- what is yielded


@given(
    sizes=st.lists(st.integers(0, 120), min_size=1, max_size=30),
    segment_bytes_max=st.integers(1, 400),
    transfer_bytes_max=st.integers(1, 300),
    fetch_bytes=st.integers(1, 400),
    prefetch=st.integers(1, 5),
    data=st.data(),
)
def test_every_frame_of_the_range_comes_once_in_whole_frames(
    sizes: list[int],
    segment_bytes_max: int,
    transfer_bytes_max: int,
    fetch_bytes: int,
    prefetch: int,
    data: st.DataObject,
) -> None:
    frames = frames_of(*sizes)
    broker, partition, offsets = broker_with(frames, segment_bytes_max, transfer_bytes_max)
    broker.shuffle = random.Random(7).shuffle
    first = data.draw(st.integers(0, len(frames) - 1))
    end = data.draw(st.integers(offsets[first], partition.end))  # not aligned: a frame belongs to its first byte
    session = memory_session(broker)
    runs = list(read_range(session, "t", 0, OffsetRange(offsets[first], end), fetch_bytes, prefetch))
    wanted = [frame for frame, offset in zip(frames, offsets, strict=True) if offsets[first] <= offset < end]
    assert check_runs(runs, offsets[first]) == b"".join(wanted)
    assert session.quiet


@pytest.mark.parametrize(("start", "end"), [(0, 0), (25, 25), (50, 25)])
def test_an_empty_range_asks_nothing(start: int, end: int) -> None:
    broker, _, _ = broker_with(frames_of(5, 5))
    assert list(read_range(memory_session(broker), "t", 0, OffsetRange(start, end))) == []
    assert broker.commands == []


def test_no_byte_behind_the_last_frame_is_asked_for() -> None:
    broker, _, _ = broker_with(frames_of(80, 80, 80))
    list(read_range(memory_session(broker), "t", 0, OffsetRange(0, 101), 100))
    assert max(offset + count for offset, count in gets(broker)) == 200


def test_a_frame_larger_than_any_reply_is_put_together() -> None:
    frames = frames_of(10, 5_000_000, 10)
    broker, partition, _ = broker_with(frames)
    runs = list(read_range(memory_session(broker), "t", 0, OffsetRange(0, partition.end)))
    assert check_runs(runs, 0) == b"".join(frames)
    assert [frame.message_id for run in runs for frame in walk(run.data)] == [0, 1, 2]


def test_a_capped_broker_is_soon_asked_for_no_more_than_it_sends() -> None:
    broker, partition, _ = broker_with(frames_of(*[980] * 100), transfer_bytes_max=10_000)
    list(read_range(memory_session(broker), "t", 0, OffsetRange(0, partition.end), fetch_bytes=40_000, prefetch=1))
    assert gets(broker)[:3] == [(0, 40_000), (10_000, 40_000), (20_000, 10_000)]
    assert len(gets(broker)) == 10


# ---- lending


def test_lent_runs_share_a_few_buffers_and_are_right_while_they_are_lent() -> None:
    frames = frames_of(*[80] * 50)
    broker, partition, _ = broker_with(frames)
    runs = lend_range(memory_session(broker), "t", 0, OffsetRange(0, partition.end), fetch_bytes=300, prefetch=2)
    content, buffers = b"", []
    for run in runs:
        content += bytes(run.data)
        if not any(run.data.obj is buffer for buffer in buffers):
            buffers.append(run.data.obj)
    assert content == b"".join(frames)
    assert len(buffers) == 3, "two under way and one with the caller"


# ---- prefetching


def test_the_next_requests_are_under_way_while_the_caller_works() -> None:
    broker, _, _ = broker_with(frames_of(*[80] * 10))
    session = memory_session(broker)
    runs = read_range(session, "t", 0, OffsetRange(0, 1000), fetch_bytes=100, prefetch=3)
    assert next(runs).offset == 0
    assert gets(broker) == [(0, 100), (100, 100), (200, 100), (300, 100)]
    assert session.outstanding == 3


def test_a_short_reply_leaves_a_gap_that_is_asked_for_next() -> None:
    broker, _, _ = broker_with(frames_of(*[30] * 8), segment_bytes_max=150)
    runs = list(read_range(memory_session(broker), "t", 0, OffsetRange(0, 400), fetch_bytes=200, prefetch=2))
    assert [(run.offset, run.end) for run in runs] == [(0, 150), (150, 200), (200, 300), (300, 400)]
    assert gets(broker) == [(0, 200), (200, 200), (150, 50), (300, 100)]


def test_a_caller_that_stops_early_leaves_no_reply_for_the_next_one() -> None:
    broker, _, _ = broker_with(frames_of(*[80] * 10))
    session = memory_session(broker)
    runs = read_range(session, "t", 0, OffsetRange(0, 1000), fetch_bytes=100)
    next(runs)
    runs.close()  # type: ignore[attr-defined]
    again = list(read_range(session, "t", 0, OffsetRange(0, 300), fetch_bytes=100))
    assert check_runs(again, 0) == b"".join(frames_of(*[80] * 3))
    assert session.outstanding == 0


def test_a_measure_of_the_callers_own_is_used() -> None:
    measured: list[int] = []

    def measure(run: memoryview) -> int:
        measured.append(len(run))
        return whole_bytes(run)

    broker, _, _ = broker_with(frames_of(*[80] * 3))
    list(read_range(memory_session(broker), "t", 0, OffsetRange(0, 300), fetch_bytes=150, measure=measure))
    assert measured == [150, 100]


# ---- when the broker goes away in the middle


@given(
    sizes=st.lists(st.integers(0, 90), min_size=5, max_size=20),
    fetch_bytes=st.integers(20, 200),
    prefetch=st.integers(1, 4),
    kills=st.sets(st.integers(1, 12), max_size=4),
)
def test_a_broker_that_restarts_in_the_middle_costs_no_byte(
    sizes: list[int], fetch_bytes: int, prefetch: int, kills: set[int]
) -> None:
    frames = frames_of(*sizes)
    broker, partition, _ = broker_with(frames)

    def restart_at(command: Command) -> None:
        if len(broker.commands) in kills:
            broker.kill()
            broker.start()

    broker.before_command = restart_at
    session = memory_session(broker)
    runs = list(read_range(session, "t", 0, OffsetRange(0, partition.end), fetch_bytes, prefetch))
    assert check_runs(runs, 0) == b"".join(frames)


def test_an_absent_broker_is_given_up_after_growing_pauses() -> None:
    broker, _, _ = broker_with(frames_of(*[80] * 4))
    session = memory_session(broker)
    runs = read_range(session, "t", 0, OffsetRange(0, 400), 100, 1, retries=3, retry_interval_s=0.5)
    assert next(runs).offset == 0
    broker.kill()
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        next(runs)
    assert session.clock.slept_s == [0.5, 1.0, 2.0]  # type: ignore[attr-defined]


def test_the_retries_count_anew_after_each_success() -> None:
    broker, _, _ = broker_with(frames_of(*[80] * 6))
    session = memory_session(broker)
    runs = read_range(session, "t", 0, OffsetRange(0, 600), 100, 1, retries=1, retry_interval_s=0.5)
    seen = [next(runs)]
    for _ in range(5):
        broker.kill()
        broker.start()
        seen.append(next(runs))
    assert check_runs(seen, 0) == b"".join(frames_of(*[80] * 6))
    assert session.clock.slept_s == [0.5] * 5  # type: ignore[attr-defined]


def test_without_retries_a_lost_connection_is_an_error_at_once() -> None:
    broker, _, _ = broker_with(frames_of(80))
    broker.before_command = lambda command: broker.kill()
    session = memory_session(broker)
    with pytest.raises(ConnectionFailed):
        list(read_range(session, "t", 0, OffsetRange(0, 100), retries=0))
    assert session.clock.slept_s == []  # type: ignore[attr-defined]


class Answering(MemoryBroker):
    """A broker that gives canned replies to its first gets."""

    def __init__(self, *canned: Reply | None) -> None:
        super().__init__({"t": 1})
        self.canned = list(canned)

    def _get(self, get: Get) -> Reply:
        reply = self.canned.pop(0) if self.canned else None
        return super()._get(get) if reply is None else reply._replace(opaque=get.opaque)


def test_a_busy_broker_is_asked_again_on_the_same_connection() -> None:
    broker = Answering(None, Result(503, "no thread", 0))
    broker.partition("t", 0).append(b"".join(frames_of(80, 80, 80)))
    session = memory_session(broker)
    runs = list(read_range(session, "t", 0, OffsetRange(0, 300), 100, 2))
    assert check_runs(runs, 0) == b"".join(frames_of(80, 80, 80))
    assert session.clock.slept_s == [0.2]  # type: ignore[attr-defined]


# ---- when the bytes are not there


def test_bytes_that_retention_removed_are_a_moved_offset_with_both_ends() -> None:
    broker, partition, _ = broker_with(frames_of(*[80] * 6), segment_bytes_max=200)
    partition.drop_segments(1)
    with pytest.raises(OffsetMoved) as moved:
        list(read_range(memory_session(broker), "t", 0, OffsetRange(100, 600)))
    assert str(moved.value) == f"{WHERE} has nothing at offset 100: the broker moved on to offset 200"
    assert (moved.value.asked, moved.value.to) == (100, 200)


def test_runs_before_a_moved_offset_are_yielded_first() -> None:
    broker = Answering(None, Result(301, "500", 0))
    broker.partition("t", 0).append(b"".join(frames_of(*[80] * 6)))
    runs = read_range(memory_session(broker), "t", 0, OffsetRange(0, 600), fetch_bytes=150, prefetch=2)
    assert next(runs).end == 100
    with pytest.raises(OffsetMoved) as moved:
        next(runs)
    assert (moved.value.asked, moved.value.to) == (100, 500)


def test_a_partition_that_ends_too_early_has_lost_data() -> None:
    broker, _, _ = broker_with(frames_of(80, 80))
    runs = read_range(memory_session(broker), "t", 0, OffsetRange(0, 300), fetch_bytes=100)
    assert [next(runs).end, next(runs).end] == [100, 200]
    with pytest.raises(DataMissing) as missing:
        next(runs)
    assert str(missing.value) == (
        f"{WHERE} has no data at offset 200, expected up to 300: Could not find message at position 200"
    )


def test_a_partition_without_store_has_lost_data() -> None:
    with pytest.raises(DataMissing, match="is not exists"):
        list(read_range(memory_session(MemoryBroker({"t": 1})), "t", 0, OffsetRange(0, 300)))


def test_a_closed_partition_is_the_brokers_error() -> None:
    with pytest.raises(BrokerError, match=r"refused get of t partition 0 at offset 0 with 403: closed"):
        list(read_range(memory_session(Answering(Result(403, "closed", 0))), "t", 0, OffsetRange(0, 300)))


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (Result(301, "soon", 0), "moved .301. to 'soon', which is not an offset"),
        (Result(200, "fine", 0), "a get was answered with 200 and a text"),
        (Value(b"x" * 301, 0), "301 bytes in reply to a get of 300"),
    ],
)
def test_replies_that_no_broker_gives_close_the_session(reply: Reply, what: str) -> None:
    session = memory_session(Answering(reply))
    with pytest.raises(ProtocolError, match=f"^broker {ADDRESS}: {what}"):
        list(read_range(session, "t", 0, OffsetRange(0, 300)))
    assert session.closed


def test_an_empty_value_is_the_end() -> None:
    with pytest.raises(DataMissing, match="an empty value"):
        list(read_range(memory_session(Answering(Value(b"", 0))), "t", 0, OffsetRange(0, 300)))


# ---- damage


@pytest.mark.parametrize(("length", "text"), [(-1, "body length -1"), (2**31 - 1, "body length 2147483647")])
@pytest.mark.parametrize("fetch_bytes", [30, 100, 1 << 20])
def test_an_impossible_length_is_named_with_its_position(length: int, text: str, fetch_bytes: int) -> None:
    good = b"".join(frames_of(80, 80))
    broker, _, _ = broker_with([good + struct.pack(">i", length) + bytes(96)])
    runs = read_range(memory_session(broker), "t", 0, OffsetRange(0, 300), fetch_bytes)
    seen: list[Run] = []
    with pytest.raises(CorruptFrame) as corrupt:
        seen.extend(runs)
    assert (corrupt.value.where, corrupt.value.offset) == (WHERE, 200)
    assert text in str(corrupt.value)
    assert check_runs(seen, 0) == good


def test_a_frame_that_reaches_past_the_partition_is_corrupt() -> None:
    good = b"".join(frames_of(80))
    broker, _, _ = broker_with([good + struct.pack(">i", 1000) + bytes(96)])
    with pytest.raises(CorruptFrame, match="reaches past the end of the partition") as corrupt:
        list(read_range(memory_session(broker), "t", 0, OffsetRange(0, 200)))
    assert corrupt.value.offset == len(good)


def test_a_header_cut_at_the_very_end_is_corrupt() -> None:
    broker, _, _ = broker_with([b"".join(frames_of(80)), bytes(HEADER_BYTES - 1)])
    with pytest.raises(CorruptFrame, match="reaches past the end of the partition"):
        list(read_range(memory_session(broker), "t", 0, OffsetRange(0, 110)))


# ---- parameters


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ({"fetch_bytes": 0}, "fetch_bytes=0"),
        ({"fetch_bytes": 1 << 30}, "fetch_bytes=1073741824"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"retries": -1}, "retries=-1"),
        ({"retry_interval_s": 0}, "retry_interval_s=0"),
        ({"retry_interval_s": 11}, "retry_interval_s=11"),
    ],
)
def test_parameters_out_of_range_are_refused_before_the_first_request(parameters: dict[str, int], what: str) -> None:
    broker = MemoryBroker({"t": 1})
    with pytest.raises(ValueError, match=what):
        read_range(memory_session(broker), "t", 0, OffsetRange(0, 300), **parameters)  # type: ignore[arg-type]
    assert broker.commands == []
