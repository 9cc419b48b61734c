"""A short version of ``python -m faults.groups``: each start and each fault once."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.groups.rounds import FAULTS, run

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_rounds_lose_nothing_and_repeat_little(tmp_path: Path) -> None:
    described: list[str] = []
    figures = run(tmp_path, len(FAULTS), 7, described.append)
    assert sum("all is handled" in line for line in described) == len(FAULTS)
    assert set(figures.rounds) == set(FAULTS)
    assert figures.sent > 100
