"""How many examples a property test tries, and how many cases a test of all cases.

All of them in `make test-long`, fewer in `make test`, a few in `make test-fast`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

FAST: Final = bool(os.environ.get("METAQ_FAST_TESTS"))
LONG: Final = bool(os.environ.get("METAQ_LONG_TESTS"))
EXAMPLES: Final = 25 if FAST else 40
"""At most so many examples, and where there are many: a quarter of them."""
SPREAD: Final = 12 if FAST else 40
"""At most so many cases."""

Case = TypeVar("Case")


def examples(count: int) -> int:
    """``count`` in `make test-long`, else no more than ``EXAMPLES``, or outside of `make test-fast` a quarter."""
    return count if LONG else max(min(count, EXAMPLES), 0 if FAST else count // 4)


def spread(cases: Sequence[Case]) -> Sequence[Case]:
    """All of them in `make test-long`, else at most ``SPREAD`` of them, evenly spread; the last is among them."""
    return cases if LONG else cases[:: -(len(cases) // SPREAD + 1)][::-1]


def rarely(*cases: object) -> list[Any]:
    """Cases of a parametrised test that only `make test-long` tries; a tuple has the values of several parameters."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def histories(count: int, *, steps: int) -> settings:
    """The settings of a state machine that lives through ``examples(count)`` histories of at most ``steps`` steps."""
    return settings(
        max_examples=examples(count),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
