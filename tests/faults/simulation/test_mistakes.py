"""Each planted mistake breaks an invariant in one of the first thousand histories: docs/testing.md says in which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.simulation.history import run_history
from faults.simulation.mistakes import MISTAKES, first_failure

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
SEEDS_MAX = 1000


def recorded() -> dict[str, int]:
    """Return the mistakes of the page's table, with the seed at which each failed."""
    rows = re.findall(r"^\| ([a-z0-9' -]+) \|[^|]+\| (\d+) \| \d \|$", PAGE.read_text(), re.MULTILINE)
    return {name: int(seed) for name, seed in rows}


def test_the_table_has_every_mistake() -> None:
    assert recorded().keys() == MISTAKES.keys()
    assert max(recorded().values()) < SEEDS_MAX


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    """At the seed of the table. After a change of the simulator, make the table anew: ``--mistakes``."""
    mistake, seed = MISTAKES[name], recorded()[name]
    outcome = first_failure(mistake, 1, first=seed)
    assert outcome is not None, f"seed {seed} does not fail any more; python -m faults.simulation --mistakes"
    assert run_history(seed).violation is None, "it fails without the mistake"
