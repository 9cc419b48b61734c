"""How long the sampler pauses: by the time of answers, not by that of a broker that hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from metaq_console.cluster.history import History, SeriesKey
from metaq_console.cluster.sampling import PAUSE_SHARE, Sampler
from metaq_console.errors import RequestFailed

from metaq.testing.manual_clock import ManualClock

EVERY_S = 10.0


class TimedCluster:
    """Answers each question after some seconds, or fails then."""

    def __init__(self, clock: ManualClock, took_s: float, *, answers: bool) -> None:
        self._clock, self._took_s, self._answers = clock, took_s, answers

    async def _after(self, answer: Any) -> Any:
        self._clock.advance(self._took_s)
        if not self._answers:
            raise RequestFailed(504, "deadline_exceeded", "no answer", retryable=True)
        return answer

    async def all_topics(self) -> Any:
        return await self._after([])

    async def brokers(self) -> Any:
        return await self._after([])

    async def group_names(self) -> list[str]:
        return [f"group-{number}" for number in range(20)]

    async def lag(self, group: str) -> Any:
        return await self._after([])

    async def members(self, group: str) -> Any:
        return await self._after([])

    def require_all(self) -> None:
        """No broker is left out."""


@pytest.mark.parametrize(
    ("took_s", "answers", "pause_s"),
    [(0.001, True, EVERY_S), (0.5, True, 41 * 0.5 * PAUSE_SHARE), (10.0, False, EVERY_S)],
    ids=["quick", "slow", "hangs"],
)
def test_the_pause_behind_a_round(took_s: float, answers: bool, pause_s: float) -> None:
    clock, history = ManualClock(), History()
    cluster: Any = TimedCluster(clock, took_s, answers=answers)
    sampler = Sampler(cluster, history, EVERY_S, clock)
    assert asyncio.run(sampler.sample()) == pytest.approx(pause_s)
    assert bool(history.points(SeriesKey("cluster", "", "in_per_s")).values) is answers
