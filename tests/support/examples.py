"""How many examples a property test tries, and how many cases a test of all cases: fewer in `make test-fast`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

FAST: Final = bool(os.environ.get("METAQ_FAST_TESTS"))
FEW: Final = 25
SPREAD: Final = 12

Case = TypeVar("Case")


def examples(count: int) -> int:
    """``count``, or in `make test-fast` no more than a few."""
    return min(count, FEW) if FAST else count


def spread(cases: Sequence[Case]) -> Sequence[Case]:
    """All of them, or in `make test-fast` a dozen at most, evenly spread; the last is among them."""
    return cases[:: -(len(cases) // SPREAD + 1)][::-1] if FAST else cases


def histories(count: int, *, steps: int) -> settings:
    """The settings of a state machine that lives through ``examples(count)`` histories of at most ``steps`` steps."""
    return settings(
        max_examples=examples(count),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
