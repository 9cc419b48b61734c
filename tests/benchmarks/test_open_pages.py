"""The benchmark of open pages measures what it says: a short run with a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_pages import Latencies, Ratio, Settings, measure, percentile


def test_percentiles() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([3.0], 0.5) == 3.0


def test_ratios_are_of_all_puts_and_of_the_rounds_beside_each_other() -> None:
    found = Ratio.of(Latencies([[2.0], [6.0], [9.0]]), Latencies([[1.0], [2.0], [9.0]]))
    assert (found.whole, found.median) == (1.0, 2.0)
    assert str(found) == "1.000 of all puts, 2.000 the median of the rounds"


@pytest.mark.process
def test_a_short_run(tmp_path: Path) -> None:
    found, answers = measure(Settings(rounds=1, seconds=3, rate=50, pages=2, every_s=0.2, topics=3), tmp_path)
    assert [len(kind.all) for kind in (found.quiet, found.again, found.busy)] == [150, 150, 150]
    assert found.busy.cpu_s > 0
    assert answers >= 2
