"""The benchmarks of pages measure what they say: short runs with real brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_pages import PAGES, Latencies, Ratio, Settings, fill, measure, percentile, running_broker
from page_times import FIRST, SCREENS
from page_times import measure as measure_times


def test_percentiles() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([3.0], 0.5) == 3.0


def test_the_interval_of_a_ratio_is_as_wide_as_its_rounds_differ() -> None:
    same = Latencies([[2.0] * 100, [2.0] * 100])
    found = Ratio.of(same, Latencies([[1.0] * 100, [1.0] * 100]))
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    found = Ratio.of(same, Latencies([[1.0] * 100, [4.0] * 100]))
    assert (found.value, found.low, found.high) == (0.5, 0.5, 2.0)
    assert str(found) == "0.500 (0.500 to 2.000)"


@pytest.mark.process
def test_a_short_run(tmp_path: Path) -> None:
    found, answers = measure(Settings(rounds=1, seconds=1, rate=50, pages=2, every_s=0.2, topics=3), tmp_path)
    assert [len(kind.all) for kind in (found.quiet, found.again, found.busy)] == [50, 50, 50]
    assert found.busy.effort.broker_s > 0
    assert found.busy.effort.broker_waits_s > 0
    assert answers >= 2


@pytest.mark.long
@pytest.mark.process
def test_each_screen_is_timed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as (broker, _, _):
        fill(broker, 3)
        found = measure_times(broker, str(broker), starts=1, times=1, pause_s=0.0)
    assert list(found.first) == list(FIRST)
    assert list(found.later) == list(SCREENS)
    assert found.puts


def test_pages_are_screens_of_the_dashboard() -> None:
    from metaq_console.pages.routes import SCREENS as KNOWN

    paths = {path.partition("?")[0] for path in (*PAGES, *SCREENS)}
    assert paths <= {*KNOWN, "/topic/live/stream"}
