"""How many examples a property test tries, and how many cases a test of all cases.

All of them in `make test-long`, fewer in `make test`, a few in `make test-fast`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
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
PARAMETERS: Final = type(pytest.param())


def examples(count: int) -> int:
    """``count`` in `make test-long`, else no more than ``EXAMPLES``, or outside of `make test-fast` a quarter."""
    return count if LONG else max(min(count, EXAMPLES), 0 if FAST else count // 4)


def spread(cases: Sequence[Case]) -> Sequence[Case]:
    """All of them in `make test-long`, else at most ``SPREAD`` of them, evenly spread; the last is among them."""
    return cases if LONG else cases[:: -(len(cases) // SPREAD + 1)][::-1]


def in_one_test(names: str, cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Like ``pytest.mark.parametrize``, of a function or a class, for many cases that take less time than pytest spends
    on a test: all are one test, with one set of fixtures. The case that fails is noted.
    """
    given, named = [name.strip() for name in names.split(",")], list(cases)

    def together(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            for case in named:
                values = case.values if isinstance(case, PARAMETERS) else case if len(given) > 1 else (case,)
                try:
                    test(*arguments, **fixtures, **dict(zip(given, values, strict=True)))
                except BaseException as error:
                    error.add_note(f"{names} = {getattr(case, 'id', None) or values!r}")
                    raise

        left = [each for name, each in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    def of_each_method(tests: Any) -> Any:
        for name, test in list(vars(tests).items()):
            if name.startswith("test_"):
                setattr(tests, name, together(test))
        return tests

    assert named
    return lambda of: of_each_method(of) if isinstance(of, type) else together(of)


def rarely(*cases: object) -> list[Any]:
    """Cases of a parametrised test that only `make test-long` tries; a tuple has the values of several parameters."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def histories(count: int, *, steps: int) -> settings:
    """The settings of a state machine that lives through ``examples(count)`` histories of at most ``steps`` steps."""
    return settings(
        max_examples=examples(count),
        stateful_step_count=steps,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
