"""Delay levels as text."""

from __future__ import annotations

import pytest
from metaq_broker.rocketmq.delays.levels import DelayLevels


def test_the_usual_table() -> None:
    levels = DelayLevels.parse()
    assert levels.count == 18
    assert [levels.delay_ms(level) for level in (1, 4, 5, 18)] == [1_000, 30_000, 60_000, 7_200_000]


def test_levels_above_the_highest_mean_the_highest() -> None:
    levels = DelayLevels.parse("1s 2m 3d")
    assert [levels.nearest(level) for level in (-1, 0, 1, 3, 4, 99)] == [0, 0, 1, 3, 3, 3]
    assert levels.delay_ms(3) == 3 * 86_400_000


@pytest.mark.parametrize("text", ["", "1", "1x", "0s", "-1s", "1s,2s", "1.5s", " ".join(["1s"] * 65)])
def test_other_texts_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        DelayLevels.parse(text)
