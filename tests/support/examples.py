"""How many examples a property test tries: fewer in `make test-fast`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

FAST: Final = bool(os.environ.get("METAQ_FAST_TESTS"))
FEW: Final = 25


def examples(count: int) -> int:
    """``count``, or in `make test-fast` no more than a few."""
    return min(count, FEW) if FAST else count


def histories(count: int, *, steps: int) -> settings:
    """The settings of a state machine that lives through ``examples(count)`` histories of at most ``steps`` steps."""
    return settings(
        max_examples=examples(count),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
