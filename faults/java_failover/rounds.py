"""Rounds of failover while Java's own clients send and consume.

A round ends when every producer was acknowledged by the new master. At the end every acknowledged message must have
been consumed, and both copies must be the same bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerTrouble
from faults.console import PromiseBroken, report
from faults.failover.members import Member, Pair
from faults.java_failover.clients import Clients, Program

ACKNOWLEDGED_S_MAX: Final = 120.0
"""A producer that is not acknowledged for this long after a fault has failed."""

CONSUMED_S_MAX: Final = 240.0
"""A consumer has failed that does not have everything this long after the last message."""

FREEZE_S: Final = 5.0
SWITCH_S: Final = 30.0
CALM_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` does it to the master, ``heal`` undoes it at the end of the round.

    ``freezes``: the master stays frozen until then.
    """

    name: str
    strike: Callable[[Member], None]
    heal: Callable[[Member], None]
    freezes: bool = False


def switch(master: Member) -> None:
    """Hand over as operators do; a pair that is too busy refuses, and is asked again. Raises ``BrokerTrouble``."""
    command = [sys.executable, "-m", "metaq_broker.cli", "ctl", "--data", str(master.data), "switch"]
    end = time.monotonic() + SWITCH_S
    while (done := subprocess.run(command, capture_output=True, text=True, timeout=SWITCH_S)).returncode:
        if time.monotonic() > end:
            raise BrokerTrouble(f"ctl switch: {done.stdout}{done.stderr}")
        time.sleep(CALM_S)


def freeze_for_a_while(master: Member) -> None:
    master.freeze()
    time.sleep(FREEZE_S)
    master.thaw()


def _nothing(master: Member) -> None: ...


FAULTS: Final = (
    Fault("kill -9 of the master", Member.kill, Member.start),
    Fault("master frozen", Member.freeze, Member.thaw, freezes=True),
    Fault("switch by an operator", switch, _nothing),
    Fault(f"master frozen for {FREEZE_S:g} s", freeze_for_a_while, _nothing),
)


class Rounds:
    """Runs rounds on one pair with these programs."""

    def __init__(self, folder: Path, pair: Pair, programs: Sequence[Program]) -> None:
        self.folder, self.pair, self.programs = folder, pair, programs
        self.clients: list[Clients] = [each for program in programs for each in program.clients]
        self.times_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        """(fault, client) -> seconds without an acknowledged message."""
        self.counts: dict[str, int] = defaultdict(int)

    def run(self, rounds: int) -> None:
        """Run ``rounds``, then check. Raises ``PromiseBroken``, ``BrokerTrouble``."""
        for number in range(rounds):
            self._round(number, FAULTS[number % len(FAULTS)])
        for program in self.programs:
            program.stop_sending()
        self.pair.wait_whole()
        self._check()

    def _round(self, number: int, fault: Fault) -> None:
        master = self.pair.wait_whole()
        self._wait_acknowledged(self.clients, time.time())
        time.sleep(CALM_S)
        struck_s = time.time()
        fault.strike(master)
        elected_s = self._wait_elected(master)
        able = [each for each in self.clients if not (fault.freezes and each.stays_with_frozen)]
        self._wait_acknowledged(able, elected_s)
        fault.heal(master)
        self._wait_acknowledged(self.clients, elected_s)
        waited = {each.name: each.pause_s(struck_s, elected_s) for each in self.clients}
        for name, seconds in waited.items():
            self.times_s[fault.name, name].append(seconds)
        self.counts[fault.name] += 1
        slowest = max(waited, key=lambda name: waited[name])
        elected = f"elected after {elected_s - struck_s:.2f} s"
        report(f"round {number + 1}: {fault.name}: {elected}, longest pause {waited[slowest]:.2f} s ({slowest})")

    def _wait_elected(self, former: Member) -> float:
        """Return when the other member was seen to be the master."""
        other, end = self.pair.other(former), time.monotonic() + ACKNOWLEDGED_S_MAX
        while other.stats().get("role") != "master":
            if time.monotonic() > end:
                raise PromiseBroken(self.folder, ["the other member was not elected", *self._tails()])
            time.sleep(0.01)
        return time.time()

    def _wait_acknowledged(self, clients: Sequence[Clients], since_s: float) -> None:
        end = time.monotonic() + ACKNOWLEDGED_S_MAX
        while missing := [each for each in clients if not each.has_acknowledged_after(since_s)]:
            if time.monotonic() > end:
                waited = f"nothing was acknowledged within {ACKNOWLEDGED_S_MAX:g} s: "
                lines = [f"{each.name}: {each.errors}" for each in missing]
                raise PromiseBroken(self.folder, [waited, *lines, *self._tails()])
            time.sleep(0.01)

    def _tails(self) -> list[str]:
        return [line for each in self.pair.members for line in (f"-- {each.name}", *each.log_tail(20))]

    def _check(self) -> None:
        end = time.monotonic() + CONSUMED_S_MAX
        while any(each.missing for each in self.clients) and time.monotonic() < end:
            time.sleep(0.1)
        findings = []
        for each in self.clients:
            missing, again = each.missing, sum(count - 1 for count in each.consumed.values())
            if missing:
                findings.append(f"{each.name}: {len(missing)} acknowledged and not consumed: {missing[:10]}")
            report(
                f"{each.name}: {len(each.acknowledged)} acknowledged, {len(missing)} not consumed, "
                f"{again} consumed again, {each.error_count} errors"
            )
        self.pair.wait_equal()
        report("both copies are the same bytes")
        if findings:
            raise PromiseBroken(self.folder, [*findings, *self._tails()])

    def table(self) -> list[str]:
        """Return the lines of the table of times: rows are clients, columns are faults."""
        faults = list(self.counts)
        lines = [f"| client | {' | '.join(f'{each} ({self.counts[each]})' for each in faults)} |"]
        lines.append(f"|---|{'---|' * len(faults)}")
        for each in self.clients:
            cells = [_median_and_most(self.times_s[fault, each.name]) for fault in faults]
            lines.append(f"| {each.name} | {' | '.join(cells)} |")
        return lines


def _median_and_most(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} / {ordered[-1]:.2f}"
