"""A wall clock that is wrong for a while: no id gets its time, puts are refused meanwhile, and go on by themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.id_clock import IDLE_MAX_S, SETTLE_S, IdClock
from metaq_broker.log.engine.outcomes import Appended, ClockImplausible, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.statistics import Statistics
from metaq_broker.transactions.outcomes import TransactionRefused
from metaq_broker.transactions.partitions import EngineStore
from stored import put

from metaq.formats.message_id import IdWorker, timestamp_ms

NOW = 1_790_000_000_000
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
WRONG = {
    "2099": 4_070_908_800_000,
    "1975": 157_766_400_000,
    "before 1970": -DAY_MS,
    "ten years ahead": NOW + 10 * YEAR_MS,
    "a day ahead": NOW + DAY_MS,
    "a day behind": NOW - DAY_MS,
    "no date at all": 1 << 62,
}
wrong_clock = pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)


class Harness:
    """An engine whose clock the test moves."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.store = EngineStore(engine)

    def put(self) -> Appended | Refusal:
        return put(self.engine, "t", 0)

    def time_of_put(self) -> int | None:
        """Put a message that must be taken; return the time in its id."""
        outcome = self.put()
        assert isinstance(outcome, Appended), outcome
        return timestamp_ms(outcome.ids.first)

    def refused_everywhere(self) -> str:
        """Put in every way; all must be refused. Return the reason."""
        outcome = self.put()
        assert isinstance(outcome, ClockImplausible)
        assert isinstance(put(self.engine, "t", 0, independent=False), Refusal)
        with pytest.raises(TransactionRefused):
            self.store.check("t", 0)
        assert self.store.check_space([("t", 0)]) is not None
        return outcome.reason


def play(folder: Path, scenario: Callable[[Harness], None], now_ms: int = NOW) -> None:
    async def run() -> None:
        text = system_section(5, 4, maxSegmentSize=4096, maxTransferSize=1024, dataPath=folder)
        config, clock = parse(f"{text}[topic=t]\n".encode()), ManualClock(now_ms)
        stores, commit = TopicStores.open(Files(), clock, config), GroupCommit()
        statistics = Statistics(clock.monotonic, lambda topic: False)
        try:
            scenario(Harness(Engine(config, stores, commit, IdWorker(5), clock, statistics), clock))
            await commit.drain()
        finally:
            commit.stop()
            stores.close(clean=True)

    asyncio.run(run())


@wrong_clock
def test_a_moment_with_a_wrong_clock_costs_that_moment(
    wrong: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.time_of_put() == NOW
        harness.clock.set_now_ms(wrong)
        assert "the clock" in harness.refused_everywhere()
        # What was promised goes on, at the time that it would be.
        assert timestamp_ms(harness.store.next_ids(3).first) == NOW
        harness.clock.set_now_ms(NOW + 1)
        assert harness.time_of_put() == NOW + 1
        assert isinstance(put(harness.engine, "t", 0, independent=False), Appended)
        assert harness.store.check_space([("t", 0)]) is None

    with caplog.at_level(logging.WARNING):
        play(tmp_path, scenario)
    assert [message for message in caplog.messages if "clock" in message] == [
        "puts are refused, the clock is wrong",
        "puts are accepted again, the clock is trusted",
    ]


@pytest.mark.parametrize("wrong", ["2099", "1975", "before 1970", "no date at all"])
def test_a_start_with_an_impossible_clock_waits_for_a_right_one(wrong: str, tmp_path: Path) -> None:
    def scenario(harness: Harness) -> None:
        harness.refused_everywhere()
        assert timestamp_ms(harness.store.next_ids(1).first) is not None
        harness.clock.set_now_ms(NOW)
        assert harness.time_of_put() == NOW

    play(tmp_path, scenario, WRONG[wrong])


@pytest.mark.parametrize("away_ms", [10 * YEAR_MS, -DAY_MS])
def test_a_clock_that_was_set_is_trusted_after_a_while(away_ms: int, tmp_path: Path) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.time_of_put() == NOW
        harness.clock.set_now_ms(NOW + away_ms)
        harness.refused_everywhere()
        harness.clock.advance(int(SETTLE_S * 1000) - 1)
        harness.refused_everywhere()
        harness.clock.advance(1)
        there = NOW + away_ms + int(SETTLE_S * 1000)
        assert harness.time_of_put() == there
        # And back again: the ids do not stay ahead of time.
        harness.clock.set_now_ms(NOW + int(SETTLE_S * 1000))
        harness.refused_everywhere()
        harness.clock.advance(int(SETTLE_S * 1000))
        assert harness.time_of_put() == NOW + 2 * int(SETTLE_S * 1000)

    play(tmp_path, scenario)


@pytest.mark.parametrize("step_ms", [599_000, -599_000, 1000, -1])
def test_small_steps_are_followed_at_once(step_ms: int, tmp_path: Path) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.time_of_put() == NOW
        harness.clock.set_now_ms(NOW + step_ms)
        assert (harness.time_of_put() or 0) >= NOW

    play(tmp_path, scenario)


@pytest.mark.parametrize("away_ms", [10 * YEAR_MS, -DAY_MS, int(IDLE_MAX_S * 1000) + 1])
def test_the_first_reading_is_compared_with_the_last_use(away_ms: int) -> None:
    clock = ManualClock(NOW + away_ms)
    ids = IdClock(clock)
    ids.expect(NOW)
    ids.time_ms()
    assert ids.fault is not None
    clock.set_now_ms(NOW + 5)
    assert (ids.time_ms(), ids.fault) == (NOW + 5, None)


def test_ids_of_the_last_run_are_continued_unless_the_clock_was_corrected() -> None:
    clock, stepped_back = ManualClock(NOW - DAY_MS), list[int]()
    ids = IdClock(clock, lambda: stepped_back.append(clock.now_ms()))
    ids.expect(NOW)
    assert ids.is_ahead(NOW + 30_000)  # the clock is not trusted yet, and time goes on since the last use
    clock.advance(int(SETTLE_S * 1000))
    assert (ids.time_ms(), ids.fault) == (clock.now_ms(), None)
    assert stepped_back == [clock.now_ms()]
    assert not ids.is_ahead(NOW + 30_000)


def test_ids_of_before_a_jump_are_not_continued() -> None:
    clock = ManualClock(NOW + DAY_MS)
    ids = IdClock(clock)
    assert ids.is_ahead(NOW + DAY_MS)
    clock.set_now_ms(NOW)
    assert ids.accept()
    assert not ids.is_ahead(NOW + DAY_MS)
    assert ids.is_ahead(NOW + 30_000)


def test_a_broker_that_rested_for_a_year_starts_at_once() -> None:
    ids = IdClock(ManualClock(NOW + YEAR_MS))
    ids.expect(NOW)
    assert (ids.time_ms(), ids.fault) == (NOW + YEAR_MS, None)


def test_a_time_that_ids_cannot_hold_reserves_nothing() -> None:
    worker = IdWorker(1)
    with pytest.raises(ValueError, match="expected at most"):
        worker.reserve(1, WRONG["2099"])
    assert timestamp_ms(worker.reserve(1, NOW).first) == NOW
