"""Schedules of kills: made from the seed alone, every place of the protocol before any is met twice."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from faults.fire.shots import SHORT, STEPS, Delivery, Shot, Victim, schedule
from faults.fire.steps import Moment, Step


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kills", [1, 5, 100, 500])
def test_a_seed_gives_its_schedule_again(delivery: Delivery, kills: int) -> None:
    shots = schedule(7, kills, delivery)
    assert len(shots) == kills
    assert shots == schedule(7, kills, delivery)
    assert shots != schedule(8, kills, delivery)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_hundred_kills_meet_every_victim_at_every_moment_of_every_step(delivery: Delivery) -> None:
    met = Counter((shot.victim, shot.step, shot.moment) for shot in schedule(3, 100, delivery))
    assert met.keys() >= set(product(Victim, STEPS[delivery], Moment))
    if delivery is Delivery.EXACTLY_ONCE:
        assert met.keys() >= set(product(Victim, [Step.ROLLBACK], Moment))
    assert all(met[victim, None, Moment.BEFORE] for victim in Victim)


def test_a_rollback_is_shot_at_only_behind_a_kill_that_leaves_something_to_roll_back() -> None:
    shots = schedule(3, 1000, Delivery.EXACTLY_ONCE)
    rollbacks = [number for number, shot in enumerate(shots) if shot.step is Step.ROLLBACK]
    assert rollbacks
    assert {(shots[n - 1].victim, shots[n - 1].step) for n in rollbacks} == {(Victim.DRIVER, Step.DECIDE)}


def test_at_least_once_has_only_puts() -> None:
    assert {shot.step for shot in schedule(3, 200, Delivery.AT_LEAST_ONCE)} == {Step.PUT, None}


def test_the_short_schedule_has_every_victim() -> None:
    assert {shot.victim for shot in SHORT} == set(Victim)


@pytest.mark.parametrize(
    ("shot", "text"),
    [
        (Shot(Victim.DRIVER, Step.DECIDE, Moment.UNANSWERED, 2), "driver unanswered decide 2"),
        (Shot(Victim.BROKER, delay_s=1.25), "broker after 1.25 s"),
    ],
)
def test_a_shot_in_words(shot: Shot, text: str) -> None:
    assert str(shot) == text
