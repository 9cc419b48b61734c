"""A numba that finds no folder for its cache."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


def refuse_to_cache(monkeypatch: pytest.MonkeyPatch, numba: ModuleType) -> list[bool]:
    """Let ``numba.njit`` fail at its first call as without a folder; whether a cache was asked for, call by call."""
    asked: list[bool] = []

    def njit(*_signature: str, cache: bool, nogil: bool = False) -> Callable[[object], str]:
        asked.append(cache)
        if len(asked) == 1:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: "compiled"

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    return asked
