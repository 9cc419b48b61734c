"""Schedules of kills: made from the seed alone, every place of the protocol before any is met twice."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from faults.exactly_once.planned_kills import SHORT, STEPS, Delivery, PlannedKill, Victim, schedule
from faults.exactly_once.steps import Moment, Step


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kills", [1, 5, 100, 500])
def test_a_seed_gives_its_schedule_again(delivery: Delivery, kills: int) -> None:
    plan = schedule(7, kills, delivery)
    assert len(plan) == kills
    assert plan == schedule(7, kills, delivery)
    assert plan != schedule(8, kills, delivery)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_hundred_kills_meet_every_victim_at_every_moment_of_every_step(delivery: Delivery) -> None:
    met = Counter((planned.victim, planned.step, planned.moment) for planned in schedule(3, 100, delivery))
    assert met.keys() >= set(product(Victim, STEPS[delivery], Moment))
    if delivery is Delivery.EXACTLY_ONCE:
        assert met.keys() >= set(product(Victim, [Step.ROLLBACK], Moment))
    assert all(met[victim, None, Moment.BEFORE] for victim in Victim)


def test_a_rollback_is_a_target_only_behind_a_kill_that_leaves_one() -> None:
    plan = schedule(3, 1000, Delivery.EXACTLY_ONCE)
    rollbacks = [number for number, planned in enumerate(plan) if planned.step is Step.ROLLBACK]
    assert rollbacks
    assert {(plan[n - 1].victim, plan[n - 1].step) for n in rollbacks} == {(Victim.DRIVER, Step.DECIDE)}


def test_at_least_once_has_only_puts() -> None:
    assert {planned.step for planned in schedule(3, 200, Delivery.AT_LEAST_ONCE)} == {Step.PUT, None}


def test_the_short_schedule_has_every_victim() -> None:
    assert {planned.victim for planned in SHORT} == set(Victim)


@pytest.mark.parametrize(
    ("planned", "text"),
    [
        (PlannedKill(Victim.DRIVER, Step.DECIDE, Moment.UNANSWERED, 2), "driver unanswered decide 2"),
        (PlannedKill(Victim.BROKER, delay_s=1.25), "broker after 1.25 s"),
    ],
)
def test_a_shot_in_words(planned: PlannedKill, text: str) -> None:
    assert str(planned) == text
