"""Times on a line without jumps, and how long a clock that has jumped is doubted: also over restarts."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest
from examples import in_one_test
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.id_clock import SETTLE_S, IdClock
from metaq_broker.log.engine.steady_time import DAY_MS, DOUBT_MS, FILE_NAME, KEPT_MS, SteadyTime
from metaq_broker.log.files.files import Files

NOW = 1_790_000_000_000
YEAR_MS, HOUR_MS, SETTLE_MS = 365 * DAY_MS, 3_600_000, int(SETTLE_S * 1000)
AWAY = [10 * YEAR_MS, 2 * DAY_MS, HOUR_MS, -HOUR_MS, -5 * YEAR_MS]


def started(clock: ManualClock, steady: SteadyTime | None = None, last_used_ms: int | None = None) -> IdClock:
    ids = IdClock(clock)
    if steady is not None:
        ids.steady = steady
    if last_used_ms is not None:
        ids.expect(last_used_ms)
    ids.time_ms()
    return ids


def jump(clock: ManualClock, ids: IdClock, away_ms: int) -> None:
    """Set the clock, and let it go on until it is trusted."""
    clock.set_now_ms(clock.now_ms() + away_ms)
    assert not ids.is_trusted()
    assert ids.doubt() is not None
    clock.advance(SETTLE_MS)
    assert ids.is_trusted()


@pytest.mark.parametrize("away_ms", AWAY)
def test_a_clock_that_is_trusted_after_a_jump_is_doubted_for_a_day(
    away_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    assert ids.doubt() is None
    jump(clock, ids, away_ms)
    assert ids.steady_ms() == NOW + SETTLE_MS
    clock.advance(DOUBT_MS - 1)
    assert ids.doubt() is not None
    assert caplog.messages.count("nothing is deleted by age, the clock is not sure") == 1
    clock.advance(1)
    assert ids.doubt() is None
    assert caplog.messages.count("messages are deleted by age again, the clock is sure") == 1
    assert ids.steady_ms() == NOW + SETTLE_MS + DOUBT_MS


@pytest.mark.parametrize("away_ms", AWAY)
def test_a_clock_that_is_back_is_sure(away_ms: int) -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    jump(clock, ids, away_ms)
    jump(clock, ids, -away_ms)
    assert ids.doubt() is None
    assert ids.steady_ms() == NOW + 2 * SETTLE_MS
    for _ in range(3):
        jump(clock, ids, away_ms)
        assert ids.doubt() is not None
        jump(clock, ids, -away_ms)
    assert ids.doubt() is None


def test_an_operator_accepts_a_clock() -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    assert not ids.accept(), "there is nothing to accept"
    jump(clock, ids, 10 * YEAR_MS)
    assert ids.accept()
    assert ids.doubt() is None
    clock.set_now_ms(clock.now_ms() + HOUR_MS)
    assert not ids.is_trusted()
    assert ids.accept(), "at once"
    assert ids.is_trusted()
    assert ids.doubt() is None
    assert ids.steady_ms() == NOW + SETTLE_MS
    clock.set_now_ms(4_070_908_800_000)
    assert not ids.accept(), "ids cannot hold it"
    assert not ids.is_trusted()


@in_one_test("seed", range(20))
def test_times_of_stored_messages_are_found_again(seed: int) -> None:
    random, clock = Random(seed), ManualClock(NOW)
    ids = started(clock)
    stored = []
    for away_ms in random.sample([10 * YEAR_MS, -3 * YEAR_MS, 40 * DAY_MS, -7 * DAY_MS, 2 * HOUR_MS], 3):
        for _ in range(5):
            clock.advance(random.randint(1, HOUR_MS // 5))
            stored.append((clock.now_ms(), ids.steady_ms()))
        jump(clock, ids, away_ms)
    stored.append((clock.now_ms(), ids.steady_ms()))
    assert [ids.steady.of(wall_ms) for wall_ms, _ in stored] == [steady_ms for _, steady_ms in stored]


def test_of_two_epochs_that_a_time_may_be_of_the_later_counts() -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    jump(clock, ids, -HOUR_MS)
    clock.advance(2 * HOUR_MS)
    ids.time_ms()
    assert ids.steady.of(NOW - 60_000) == NOW - 60_000 + HOUR_MS, "nothing is due too early"


# ---- at a start


@pytest.mark.parametrize("away_ms", [10 * YEAR_MS, -DAY_MS])
def test_a_start_with_a_wrong_clock(away_ms: int) -> None:
    clock = ManualClock(NOW + away_ms)
    ids = started(clock, last_used_ms=NOW - 5000)
    assert (ids.is_trusted(), ids.steady_ms()) == (False, NOW - 5000)
    clock.advance(SETTLE_MS)
    assert (ids.is_trusted(), ids.steady_ms()) == (True, NOW - 5000 + SETTLE_MS)
    assert ids.doubt() is not None
    clock.advance(DOUBT_MS)
    assert ids.doubt() is None


def test_a_start_after_a_rest() -> None:
    """Whether the broker rested for so long, or the clock is wrong, cannot be told: messages may be put."""
    for rested_ms, doubted in ((HOUR_MS, False), (40 * HOUR_MS, False), (3 * DAY_MS, True), (300 * DAY_MS, True)):
        clock = ManualClock(NOW + rested_ms)
        ids = started(clock, last_used_ms=NOW)
        assert (ids.is_trusted(), ids.doubt() is not None) == (True, doubted)
        assert ids.steady_ms() == NOW + rested_ms
        clock.advance(DOUBT_MS)
        assert ids.doubt() is None


def again(ids: IdClock, folder: Path) -> SteadyTime:
    """What the next start reads."""
    Files().write_atomic(folder / FILE_NAME, ids.steady.content())
    return SteadyTime.read(Files(), folder)


def test_a_restart_does_not_end_the_doubt(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    jump(clock, ids, 10 * YEAR_MS)
    for _ in range(3):
        used_ms = clock.now_ms()
        clock.advance(6 * HOUR_MS)
        ids = started(clock, again(ids, tmp_path), used_ms)
        assert ids.is_trusted()
        assert ids.doubt() is not None
    assert ids.steady_ms() == NOW + SETTLE_MS + 18 * HOUR_MS
    clock.advance(7 * HOUR_MS)
    assert ids.doubt() is None
    used_ms = clock.now_ms()
    clock.advance(HOUR_MS)
    ids = started(clock, again(ids, tmp_path), used_ms)
    assert ids.doubt() is None


def test_a_clock_that_was_put_right_while_the_broker_was_down(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    jump(clock, ids, 10 * YEAR_MS)
    wrong_ms = clock.now_ms()
    steady = again(ids, tmp_path)
    clock.advance(HOUR_MS)
    clock.set_now_ms(clock.now_ms() - 10 * YEAR_MS)
    ids = started(clock, steady, wrong_ms)
    assert ids.is_trusted()
    assert ids.doubt() is None
    assert ids.steady_ms() == NOW + SETTLE_MS + HOUR_MS
    assert ids.steady.of(wrong_ms) == NOW + SETTLE_MS


def test_old_jumps_are_forgotten_at_a_start(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    ids = started(clock)
    jump(clock, ids, HOUR_MS)
    clock.advance(KEPT_MS + 1)
    ids = started(clock, again(ids, tmp_path), clock.now_ms())
    assert (ids.steady.shift_ms, ids.steady_ms()) == (0, clock.now_ms())


@pytest.mark.parametrize("content", [b"", b"x", b"metaq-clock-jumps 1\ndoubt -\ncrc32 00000000\n"])
def test_a_damaged_file_says_nothing(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert SteadyTime.read(Files(), tmp_path).shift_ms == 0
    assert "file of clock jumps is not used" in caplog.messages
