"""When syncs run on the event loop: where they are quick, and not for long where they are not."""

from __future__ import annotations

from metaq_broker.log.sync.sync_times import LIKELY_S, PAUSE_S, QUICK_ALONE_S, QUICK_S, RECENT, ROUND_S, SyncTimes

MANY = 10 * RECENT


def likely() -> SyncTimes:
    """A disk on which many syncs in threads were not slow."""
    times = SyncTimes()
    for _ in range(MANY):
        times.took(LIKELY_S / 2)
    return times


def test_nothing_is_quick_before_many_syncs_are_known() -> None:
    times = SyncTimes()
    for _ in range(RECENT):
        assert not times.are_quick(1, 0.0)
        times.took(0.0001)
    for _ in range(MANY):
        times.took(0.0001)
    assert times.are_quick(1, 0.0)


def test_a_disk_that_is_slow_in_threads_is_never_tried() -> None:
    times = SyncTimes()
    for _ in range(MANY):
        times.took(2 * LIKELY_S)
        assert not times.are_quick(1, 0.0)


def test_now_and_then_a_slow_one_in_a_thread_does_no_harm() -> None:
    times = likely()
    for number in range(MANY):
        times.took(1.0 if number % 50 == 0 else LIKELY_S / 2)
    assert times.are_quick(1, 0.0)


def test_syncs_that_fail_in_threads_are_not_quick() -> None:
    times = likely()
    for _ in range(RECENT):
        times.took(0.0001, failed=True)
    assert not times.are_quick(1, 0.0)


def test_a_round_is_of_as_many_as_fit() -> None:
    times = likely()
    for _ in range(MANY):
        times.took_on_loop(QUICK_S / 2, 0.0)
    fit = int(ROUND_S / (QUICK_S / 2))
    assert times.are_quick(fit - 1, 0.0)
    assert not times.are_quick(fit + 1, 0.0)


def test_one_alone_may_take_longer_than_each_of_several() -> None:
    times = likely()
    for _ in range(MANY):
        times.took_on_loop((QUICK_S + QUICK_ALONE_S) / 2, 0.0)
    assert times.are_quick(1, 0.0)
    assert not times.are_quick(2, 0.0)
    for _ in range(MANY):
        times.took_on_loop(QUICK_ALONE_S * 1.1, 0.0)
        if not times.are_quick(1, 0.0):
            break
    assert not times.are_quick(1, 0.0)


def test_syncs_that_are_not_quick_on_average_end_it_for_a_while() -> None:
    times = likely()
    count = 0
    while times.are_quick(1, 100.0):
        times.took_on_loop(3 * QUICK_S, 100.0)
        count += 1
    assert 1 < count < RECENT
    assert not times.are_quick(1, 100.0 + PAUSE_S / 2)
    assert times.are_quick(1, 100.0 + PAUSE_S)


def test_one_that_takes_long_ends_it_at_once_and_so_does_a_failure() -> None:
    for seconds, failed in ((0.05, False), (0.0001, True)):
        times = likely()
        for _ in range(MANY):
            times.took_on_loop(QUICK_S / 4, 100.0)
        times.took_on_loop(seconds, 100.0, failed=failed)
        assert not times.are_quick(1, 100.0)
