"""A short `python -m faults.exactly_once`: five kills, and a driver that comes back from the dead, in one query."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.exactly_once.fault_run import FaultRun
from faults.exactly_once.planned_kills import SHORT, Delivery
from faults.exactly_once.steps import Step
from faults.exactly_once.zombie import Return, bring_back

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

SEED = 20


def test_five_kills_and_a_zombie_leave_every_message_exactly_once(tmp_path: Path) -> None:
    described: list[str] = []
    fault_run = FaultRun(tmp_path, SEED, Delivery.EXACTLY_ONCE, described.append)

    def zombie(fault_run: FaultRun) -> None:
        fault_run.drain()
        described.append(bring_back(fault_run, Return(Step.DECIDE)))

    fault_run.run(SHORT, zombie)
    assert fault_run.figures.missed == []
    assert fault_run.figures.kills.total() == len(SHORT)
    assert fault_run.figures.copies == fault_run.figures.messages > 0
    assert "too late" in described[-1]
