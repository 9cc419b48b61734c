"""Counters of the broker: what counts as what, per topic and over all, and when they are cleared."""

from __future__ import annotations

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.statistics import RESET_INTERVAL_S, Rates, RealtimeCount, Statistics


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def statistics(clock: ManualClock) -> Statistics:
    return Statistics(clock.monotonic, lambda topic: topic == "tracked")


def test_totals_and_realtime_figures(statistics: Statistics) -> None:
    statistics.puts("tracked", 3, 30)
    statistics.puts("other", 1, 5)
    statistics.puts_failed("tracked", 2)
    assert (statistics.commands["put"], statistics.commands["put_failed"]) == (4, 2)
    assert statistics.realtime("message_size") == RealtimeCount(4, 35)
    assert statistics.topic_realtime("message_size", "tracked") == RealtimeCount(3, 30)
    assert statistics.topic_realtime("put", "other") is None
    assert statistics.any_topic_counted("put")
    assert not statistics.any_topic_counted("get")


def test_reset_clears_realtime_figures_only(statistics: Statistics, clock: ManualClock) -> None:
    statistics.get("tracked")
    clock.advance(5000)
    statistics.reset()
    clock.advance(2000)
    assert (statistics.realtime("get"), statistics.topic_realtime("get", "tracked")) == (None, None)
    assert (statistics.commands["get"], statistics.uptime_s, statistics.realtime_s) == (1, 7, 2)


def test_realtime_figures_are_cleared_every_half_hour(statistics: Statistics, clock: ManualClock) -> None:
    statistics.offset("tracked")
    clock.advance(RESET_INTERVAL_S * 1000 - 1)
    assert statistics.realtime("offset") == RealtimeCount(1, 1)
    clock.advance(1)
    assert statistics.realtime("offset") is None
    statistics.offset("tracked")
    assert statistics.realtime("offset") == RealtimeCount(1, 1)


def test_the_last_minute(statistics: Statistics, clock: ManualClock) -> None:
    statistics.stored("orders", 10, 500)
    statistics.sent("orders", 300)
    statistics.get("orders")
    clock.advance(4000)
    assert statistics.last_minute() == Rates(4, 10, 1, 300)
    assert statistics.topic_last_minute("orders") == Rates(4, 10, 0, 300)
    assert statistics.topic_last_minute("bills") == Rates(4, 0, 0, 0)
    clock.advance(50_000)
    statistics.stored("orders", 5, 50)
    statistics.stored("bills", 1, 50)
    assert statistics.last_minute() == Rates(54, 16, 1, 300)
    clock.advance(7000)  # the first slot is older than a minute
    assert statistics.last_minute() == Rates(56, 6, 0, 0)
    assert statistics.topic_last_minute("orders") == Rates(56, 5, 0, 0)
    clock.advance(3_600_000)
    assert statistics.last_minute() == Rates(56, 0, 0, 0)
    assert statistics.traffic["orders"].messages_in == 15
