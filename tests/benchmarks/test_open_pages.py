"""The benchmark of open pages measures what it says: a short run with a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_pages import Settings, measure, percentile


def test_percentiles() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([3.0], 0.5) == 3.0


@pytest.mark.process
def test_a_short_run(tmp_path: Path) -> None:
    found, answers = measure(Settings(rounds=1, seconds=3, rate=50, pages=2, every_s=0.2, topics=3), tmp_path)
    assert (len(found.quiet[0]), len(found.busy[0])) == (150, 150)
    assert answers >= 2
