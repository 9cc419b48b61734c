"""The schedule of kills, which depends only on a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import chain, product
from random import Random
from typing import Final

from faults.exactly_once.steps import Moment, Step


class Delivery(Enum):
    """The sink's option ``delivery``."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Victim(Enum):
    """The process that is killed."""

    DRIVER = "driver"
    """The driver's Python and its JVM, at once. Its Python workers continue until they notice."""
    WORKER = "worker"
    """The one process that sent the request: a task's worker, or the one that runs the sink's commit."""
    BROKER = "broker"
    """The broker that receives the request."""


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """One kill. With a ``step``: at the ``nth`` such request from now on. Without: after ``delay_s`` seconds.

    ``outage_s`` is how long a killed broker stays down, in seconds.
    """

    victim: Victim
    step: Step | None = None
    moment: Moment = Moment.BEFORE
    nth: int = 1
    delay_s: float = 0.0
    outage_s: float = 0.0

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.victim.value} after {self.delay_s:.2f} s"
        return f"{self.victim.value} {self.moment.value} {self.step.value} {self.nth}"

    @property
    def target(self) -> str:
        """The target of the kill in the protocol, for statistics."""
        return "any time" if self.step is None else f"{self.moment.value} {self.step.value}"


STEPS: Final = {
    Delivery.EXACTLY_ONCE: tuple(step for step in Step if step is not Step.ROLLBACK),
    Delivery.AT_LEAST_ONCE: (Step.PUT,),
}
"""Steps that every batch has. ROLLBACK needs something to roll back first."""

ANY_TIME_CHANCE: Final = 0.15
ROLLBACK_CHANCE: Final = 0.05
NTH_MAX: Final = 6
DELAY_S_MAX: Final = 10.0
OUTAGE_S_MAX: Final = 1.5

SHORT: Final = (
    PlannedKill(Victim.WORKER, Step.PREPARE, Moment.UNANSWERED, 2),
    PlannedKill(Victim.BROKER, Step.PREPARE, Moment.AFTER, 3),
    PlannedKill(Victim.WORKER, Step.DECIDE, Moment.UNANSWERED, 1),
    PlannedKill(Victim.BROKER, Step.COMMIT, Moment.AFTER, 1),  # between two commits of a batch that is repeated
    PlannedKill(Victim.DRIVER, Step.RECOVER, Moment.BEFORE, 3),  # committed, and not recorded by Spark
)
"""The five kills of the short test: prepared, decided and not reported, half committed, committed and not recorded."""


def schedule(seed: int, kills: int, delivery: Delivery) -> list[PlannedKill]:
    """Return ``kills`` kills: first every victim at every moment of every step, in random order, then random ones."""
    random = Random(f"fire {seed}")
    rounds = [[_at(random, *target)] for target in product(Victim, STEPS[delivery], Moment)]
    rounds += [[_any_time(random, victim)] for victim in Victim]
    if delivery is Delivery.EXACTLY_ONCE:
        rounds += [_at_rollback(random, *target) for target in product(Victim, Moment)]
    random.shuffle(rounds)
    plan = list(chain.from_iterable(rounds))
    while len(plan) < kills:
        plan += _chance(random, delivery)
    return plan[:kills]


def _chance(random: Random, delivery: Delivery) -> list[PlannedKill]:
    chance, victim, moment = random.random(), random.choice(list(Victim)), random.choice(list(Moment))
    if chance < ANY_TIME_CHANCE:
        return [_any_time(random, victim)]
    if chance < ANY_TIME_CHANCE + ROLLBACK_CHANCE and delivery is Delivery.EXACTLY_ONCE:
        return _at_rollback(random, victim, moment)
    return [_at(random, victim, random.choice(STEPS[delivery]), moment)]


def _at_rollback(random: Random, victim: Victim, moment: Moment) -> list[PlannedKill]:
    """Return a kill that leaves branches for the next decision to roll back, and one during that rollback."""
    first = PlannedKill(Victim.DRIVER, Step.DECIDE, Moment.BEFORE)
    outage_s = random.uniform(0, OUTAGE_S_MAX)
    return [first, PlannedKill(victim, Step.ROLLBACK, moment, random.randint(1, 2), outage_s=outage_s)]


def _at(random: Random, victim: Victim, step: Step, moment: Moment) -> PlannedKill:
    return PlannedKill(victim, step, moment, random.randint(1, NTH_MAX), outage_s=random.uniform(0, OUTAGE_S_MAX))


def _any_time(random: Random, victim: Victim) -> PlannedKill:
    delay_s = random.uniform(0, DELAY_S_MAX)
    return PlannedKill(victim, delay_s=delay_s, outage_s=random.uniform(0, OUTAGE_S_MAX))
