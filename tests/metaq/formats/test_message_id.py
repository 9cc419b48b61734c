"""Message ids: their bits, their order whatever the clock does, and the ids of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.formats.message_id import EPOCH_MS, IDS_PER_MS, IdRange, IdWorker, timestamp_ms

NOW = 1_700_000_000_000


def test_the_bits_of_an_id() -> None:
    message_id = IdWorker(0b1010101010).next_id(NOW)
    assert message_id >> 22 == NOW - EPOCH_MS
    assert message_id >> 12 & 0x3FF == 0b1010101010
    assert message_id & 0xFFF == 0
    assert timestamp_ms(message_id) == NOW


@pytest.mark.parametrize("message_id", [-5468928973104730112, -0x4BE5256B30000000, -1])
def test_ids_of_a_java_broker_say_nothing_about_time(message_id: int) -> None:
    assert timestamp_ms(message_id) is None


def test_the_sequence_counts_within_a_millisecond() -> None:
    worker = IdWorker(3)
    ids = [worker.next_id(NOW) for _ in range(3)] + [worker.next_id(NOW + 1)]
    assert [message_id & 0xFFF for message_id in ids] == [0, 1, 2, 0]
    assert [timestamp_ms(message_id) for message_id in ids] == [NOW, NOW, NOW, NOW + 1]


def test_more_ids_than_a_millisecond_has_run_ahead_of_the_clock() -> None:
    worker = IdWorker(1023)
    ids = [worker.next_id(NOW) for _ in range(2 * IDS_PER_MS + 1)]
    assert ids == sorted(set(ids))
    assert timestamp_ms(ids[-1]) == NOW + 2
    assert worker.next_id(NOW + 1) > ids[-1]
    assert timestamp_ms(worker.next_id(NOW + 50)) == NOW + 50


def test_a_clock_that_goes_back_changes_nothing() -> None:
    worker = IdWorker(0)
    first = worker.next_id(NOW)
    second = worker.next_id(NOW - 3_600_000)
    assert second == first + 1
    assert worker.next_id(0) == second + 1


@given(st.lists(st.tuples(st.integers(0, 2**41), st.integers(1, 3 * IDS_PER_MS))), st.integers(0, 1023))
def test_ids_only_grow_and_belong_to_the_broker(steps: list[tuple[int, int]], broker_id: int) -> None:
    worker, last = IdWorker(broker_id), -(2**63)
    for now_ms, count in steps:
        ids = worker.reserve(count, now_ms)
        assert last < ids.first <= ids.at(count - 1)
        last = ids.at(count - 1)
        assert last >> 12 & 0x3FF == broker_id
        assert last < 2**63


def test_a_reserved_range_is_what_single_ids_would_have_been() -> None:
    one_by_one, at_once = IdWorker(5), IdWorker(5)
    for worker in (one_by_one, at_once):
        worker.next_id(NOW)
    ids = at_once.reserve(10_000, NOW)
    assert list(ids) == [one_by_one.next_id(NOW) for _ in range(10_000)]
    assert (len(ids), ids.first, ids.at(9_999)) == (10_000, next(iter(ids)), list(ids)[-1])
    assert (ids.first_ms, ids.first_sequence, ids.count, ids.broker_id) == (NOW, 1, 10_000, 5)
    assert at_once.next_id(NOW) == one_by_one.next_id(NOW)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 20))
def test_a_range_is_known_from_its_first_id(message_id: int, count: int) -> None:
    ids = IdRange.starting_at(message_id, count)
    assert ids.first == message_id
    assert ids.count == len(list(ids)) == count


@pytest.mark.parametrize("index", [-1, 3, 4096])
def test_a_range_has_an_end(index: int) -> None:
    with pytest.raises(IndexError, match="range of 3"):
        IdWorker(0).reserve(3, NOW).at(index)


@pytest.mark.parametrize("broker_id", [-1, 1024])
def test_broker_ids_have_ten_bits(broker_id: int) -> None:
    with pytest.raises(ValueError, match=r"0\.\.1023"):
        IdWorker(broker_id)


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_cannot_be_reserved(count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        IdWorker(0).reserve(count, NOW)


def test_ids_start_above_a_stored_one_whatever_the_clock_says() -> None:
    stored = IdWorker(7).reserve(5000, NOW + 3_600_000)
    worker = IdWorker(7)
    worker.start_above(-1)
    worker.start_above(stored.at(4999))
    worker.start_above(stored.first)  # less: nothing changes
    first = worker.next_id(NOW)
    assert first > stored.at(4999)
    assert worker.next_id(NOW) > first
    assert timestamp_ms(worker.next_id(NOW + 7_200_000)) == NOW + 7_200_000
