"""A driver that is believed dead, replaced, and continues later: nothing that it then does may have an effect.

It is suspended in the middle of a step, with its request in transit. A second driver takes over the checkpoint and
writes that batch again, and usually several more. Then the request is delivered, and the first driver runs again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from faults.console import PromiseBroken
from faults.exactly_once.broker_pair import PORTION
from faults.exactly_once.driver import Drained, Ended, Failed
from faults.exactly_once.fault_run import PATIENCE_S, WORKER_PATIENCE_S, FaultRun, RunTrouble
from faults.exactly_once.hold import DelayedRequest, Hold
from faults.exactly_once.steps import Step, described
from metaq.protocols.text.commands import Result


class Return(NamedTuple):
    """When the zombie is suspended; ``ahead``: the second driver has decided later batches before it returns."""

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
"""Longest wait for the answer to the late request, in seconds."""


def bring_back(fault_run: FaultRun, at: Return) -> str:
    """Let the driver of ``fault_run``, which is drained, return as a zombie; describe the outcome in a sentence.

    Afterwards the second driver is the run's current one, drained and idle.

    Raises:
        PromiseBroken: The output shows effects of the zombie, or its request was accepted.
        RunTrouble, BrokerTrouble, MetaqError: It could not be carried out.
    """
    hold = Hold(at.step, 1, lambda held: _caught(fault_run, held))
    fault_run.injector.hold = hold
    try:
        fault_run.go_on(PORTION if at.ahead else 1)
        _wait_until_delayed(fault_run)
        zombie = fault_run.driver
        fault_run.launch()
        fault_run.drain()
        if at.ahead:
            fault_run.go_on()
            fault_run.drain()
        before = fault_run.broker_pair.output()
        if not hold.release(LATE_S):
            raise RunTrouble(f"the late {at.step.value} was not answered in {LATE_S:g} s")
        zombie.resume()
        reason = _end_of(fault_run, zombie.number)
        zombie.kill()
        zombie.sweep(WORKER_PATIENCE_S)
    finally:
        hold.release(0.0)
        fault_run.injector.hold = None
    _check(fault_run, at, hold, changed=fault_run.broker_pair.output() != before)
    return f"a driver that came back at {at} ended: {reason}"


def _caught(fault_run: FaultRun, held: DelayedRequest) -> None:
    fault_run.driver.suspend()
    fault_run.record.write(f"## delayed, and its driver stopped: {described(held.sighting.command)}")
    fault_run.events.put(held)


def _wait_until_delayed(fault_run: FaultRun) -> None:
    while not isinstance(fault_run.next_event(PATIENCE_S), DelayedRequest):
        if fault_run.idle:
            raise RunTrouble("a batch went by without the request that was to be delayed")


def _end_of(fault_run: FaultRun, number: int) -> str:
    """Wait until the query of a driver fails; return its error."""
    while True:
        event = fault_run.next_event(PATIENCE_S)
        if isinstance(event, Failed) and event.number == number:
            return event.reason
        if isinstance(event, Drained | Ended) and event.number == number:
            raise PromiseBroken(
                fault_run.folder, ["a driver that had been replaced went on as if nothing had happened"]
            )


def _check(fault_run: FaultRun, at: Return, hold: Hold, *, changed: bool) -> None:
    confirmed = [
        f"a driver that had been replaced got the answer yes: {described(sighting.command)}"
        for sighting, reply in hold.heard
        if sighting.step is Step.DECIDE and isinstance(reply, Result) and reply.code == 200
    ]
    # For the batch itself the request succeeds, and the reply names the branches of the second driver, as for any
    # replay.
    report = confirmed if at.ahead else []
    if changed:
        report.append(f"a driver that had been replaced came back at {at} and the output topic changed")
    if report:
        raise PromiseBroken(fault_run.folder, report)
