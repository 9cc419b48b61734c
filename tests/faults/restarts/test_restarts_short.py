"""A short `python -m faults.restarts`: a broker that is stopped and killed in mid-batch of one query of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.restarts.rounds import Rounds

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

ROUNDS = 2
SEED = 18
"""With it a broker is killed and stopped, and stays away for three seconds and more."""


@pytest.mark.parametrize(("format_name", "delivery"), [("metaq", "at_least_once"), ("rocketmq", "exactly_once")])
def test_restarts_end_no_query(tmp_path: Path, format_name: str, delivery: str) -> None:
    rounds = Rounds(tmp_path / "rounds", format_name, delivery, SEED, fed=800)
    assert rounds.run(ROUNDS, lambda line: None).startswith(f"{ROUNDS} restarts, ")
