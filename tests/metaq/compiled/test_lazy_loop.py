"""A compiled loop is loaded once it is worth it, and used only if it does what the plain code does."""

from __future__ import annotations

import pytest

from metaq.compiled.lazy_loop import LazyLoop


def test_it_is_loaded_when_plain_code_has_handled_enough() -> None:
    loop = LazyLoop("numbers", lambda: 5, lambda made: made == 5, 10)
    for expected in (False, True):
        loop.went_without(6)
        assert loop.loading is expected
    loop.join()
    assert (loop.loop, loop.compiled) == (5, True)


def test_one_that_gives_wrong_results_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    loop = LazyLoop("numbers", lambda: 4, lambda made: made == 5, 0)
    loop.load()
    assert (loop.loop, loop.compiled) == (None, False)
    assert "wrong results" in caplog.text


def test_one_that_cannot_be_made_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> int:
        raise ImportError("numba is not installed")

    caplog.set_level("INFO")
    loop = LazyLoop("numbers", make, lambda made: True, 0)
    loop.load()
    assert not loop.compiled
    assert "numbers without compiled code" in caplog.text
