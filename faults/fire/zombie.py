"""A driver that is taken for dead, replaced, and goes on later: nothing of what it then does may be seen.

It is stopped in the middle of a step, its request still on the wire. A second driver takes over the checkpoint and
writes that batch again; most times several more. Then the request is delivered, and the first driver runs again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from faults.fire.arena import PORTION
from faults.fire.driver import Drained, Ended, Failed
from faults.fire.fight import PATIENCE_S, WORKER_PATIENCE_S, Fight, FireTrouble, PromiseBroken
from faults.fire.hold import Held, Hold
from faults.fire.steps import Step, told
from metaq.protocols.text.commands import Result


class Return(NamedTuple):
    """When a zombie is stopped, and whether the second driver is ``ahead``: has decided batches behind that one."""

    step: Step
    ahead: bool = True

    def __str__(self) -> str:
        return f"{self.step.value}, {'long after' if self.ahead else 'in the batch that was written again'}"


RETURNS: Final = (
    *(Return(step) for step in Step if step is not Step.ROLLBACK),
    Return(Step.PREPARE, ahead=False),
    Return(Step.DECIDE, ahead=False),
    Return(Step.COMMIT, ahead=False),
)
LATE_S: Final = 30.0
"""Longest wait for the answer to the late request."""


def bring_back(fight: Fight, at: Return) -> str:
    """Let the driver of ``fight``, which is drained, come back from the dead; return what became of it, in a sentence.

    Afterwards the second driver is the fight's, drained and idle.

    Raises:
        PromiseBroken: Something of the zombie can be seen, or was accepted.
        FireTrouble, BrokerTrouble, MetaqError: It could not be carried out.
    """
    hold = Hold(at.step, 1, lambda held: _caught(fight, held))
    fight.gunner.hold = hold
    try:
        fight.go_on(PORTION if at.ahead else 1)
        _wait_until_held(fight)
        zombie = fight.driver
        fight.launch()
        fight.drain()
        if at.ahead:
            fight.go_on()
            fight.drain()
        before = fight.arena.output()
        if not hold.release(LATE_S):
            raise FireTrouble(f"the late {at.step.value} was not answered in {LATE_S:g} s")
        zombie.resume()
        reason = _end_of(fight, zombie.life)
        zombie.kill()
        zombie.sweep(WORKER_PATIENCE_S)
    finally:
        hold.release(0.0)
        fight.gunner.hold = None
    _judge(fight, at, hold, changed=fight.arena.output() != before)
    return f"a driver that came back at {at} ended: {reason}"


def _caught(fight: Fight, held: Held) -> None:
    fight.driver.suspend()
    fight.record.write(f"## held, and its driver stopped: {told(held.sighting.command)}")
    fight.events.put(held)


def _wait_until_held(fight: Fight) -> None:
    while not isinstance(fight.next_event(PATIENCE_S), Held):
        if fight.idle:
            raise FireTrouble("a batch went by without the request that was to be held")


def _end_of(fight: Fight, life: int) -> str:
    """Wait until the query of a driver fails; return what with."""
    while True:
        event = fight.next_event(PATIENCE_S)
        if isinstance(event, Failed) and event.life == life:
            return event.reason
        if isinstance(event, Drained | Ended) and event.life == life:
            raise PromiseBroken(fight.folder, ["a driver that had been replaced went on as if nothing had happened"])


def _judge(fight: Fight, at: Return, hold: Hold, *, changed: bool) -> None:
    told_yes = [
        f"a driver that had been replaced was told yes: {told(sighting.command)}"
        for sighting, reply in hold.heard
        if sighting.step is Step.DECIDE and isinstance(reply, Result) and reply.code == 200
    ]
    # Within the batch itself the answer is yes: it names the branches of the second driver, as for any replay.
    report = told_yes if at.ahead else []
    if changed:
        report.append(f"a driver that had been replaced came back at {at} and the output topic changed")
    if report:
        raise PromiseBroken(fight.folder, report)
