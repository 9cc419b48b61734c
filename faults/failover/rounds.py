"""Rounds of failover: a fault while all clients work, the time until each family is acknowledged again, and then the
pair is made whole. At the end everything that was acknowledged must be readable and have been consumed, exactly once
where that is promised, the copies of Spark's queries must have the rows of what they read, and both members the same
bytes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.console import PromiseBroken, report
from faults.failover.consumers import GroupMember
from faults.failover.copies import SparkCopies
from faults.failover.kinds import FAULTS, FULL_S, Fault, Stage
from faults.failover.load import Family
from faults.groups import verdict
from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import MetaqError
from metaq.net.clock import wall_clock_ms

PATIENCE_S: Final = 60.0
"""A family that is not acknowledged for this long after a fault has failed; a consumer that has not caught up, too."""

CALM_S: Final = 0.5
REOPENED_SHARE: Final = 0.25
"""The share of rounds in which a consumer leaves its group and another one continues."""

LONGER_S: Final = 2.0
"""A cut lasts up to the session's time and this."""

POLL_S: Final = 0.005


class Rounds:
    """Runs rounds on one stage. ``copies`` are Spark's; ``None``: without Spark."""

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        families: Sequence[Family],
        consumers: Sequence[GroupMember] = (),
        copies: SparkCopies | None = None,
        only: str = "",
    ) -> None:
        self.folder, self.stage, self.families, self.consumers = folder, stage, families, consumers
        self._copies, self._only = copies, only
        self.times_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        """(fault, client) -> longest seconds without an acknowledgement, or a message, from the fault until all clients
        had one again.
        """
        self.counts: dict[str, int] = defaultdict(int)
        self._struck: list[verdict.Fault] = []
        self._positions: dict[tuple[str, str], int] = {}
        self._newcomers_s: dict[str, list[float]] = defaultdict(list)
        """Family -> seconds until the only message of a new client was acknowledged, while a fault was there."""
        self._findings: list[str] = []

    def run(self, rounds: int) -> None:
        """Run ``rounds``, print the table of times, then check. Raises ``PromiseBroken``, ``BrokerTrouble``."""
        usable = [each for each in FAULTS if each.possible(self.stage) and self._only in each.name]
        for number in range(rounds):
            fault = usable[number] if number < len(usable) else self.stage.random.choice(usable)
            self._round(number, fault)
        self.stage.pair.wait_whole()
        self._calm()
        for family in self.families:
            family.stop()
        report("seconds without an acknowledgement, from the fault on, median / 99th percentile:")
        for line in self.table():
            report(line)
        self._check()

    def _calm(self) -> None:
        """Wait until all clients work, and compare the positions of groups with earlier ones."""
        self._wait_acknowledged(time.monotonic())
        self._wait_consumed()
        for each in self.consumers:
            self._compare_positions(each)

    def _wait_consumed(self, fault: Fault | None = None) -> None:
        """Wait until the consumers that ``fault`` does not stop have handled what was acknowledged so far."""
        families = [(each, self._family(each.topic)) for each in self.consumers]
        hides = fault is not None and fault.hides
        expected = [
            (each, list(family.acknowledged)) for each, family in families if not (hides and family.needs_zookeeper)
        ]
        end_s = time.monotonic() + PATIENCE_S
        while waiting := [each for each, numbers in expected if not each.has(numbers)]:
            if time.monotonic() > end_s:
                late = [(each.name, set(numbers) - each.numbers) for each, numbers in expected if each in waiting]
                lines = [f"{name}: {len(rest)} acknowledged messages are not consumed" for name, rest in late]
                raise self._broken([*lines, *(f"{each.name}: {each.ended[-3:]}" for each in waiting)])
            time.sleep(POLL_S)

    def _compare_positions(self, consumer: GroupMember) -> None:
        try:
            found = consumer.positions()
        except MetaqError as error:
            self._findings.append(f"{consumer.name}: its positions cannot be read: {error}")
            return
        for partition, position in found.items():
            before = self._positions.get((consumer.name, partition), 0)
            if position < before:
                self._findings.append(f"{consumer.name}: its position in {partition} went from {before} to {position}")
            self._positions[consumer.name, partition] = position

    def _family(self, topic: str) -> Family:
        return next(each for each in self.families if each.name == topic)

    def _round(self, number: int, fault: Fault) -> None:
        stage = self.stage
        stage.pair.wait_whole()
        self._calm()
        master = stage.pair.wait_whole()  # sessions that ended during the last fault may have changed it
        self._end_fault()
        time.sleep(CALM_S * stage.random.random())
        began_ms, struck_s = wall_clock_ms(), time.monotonic()
        self._struck.append(verdict.Fault(fault.name, began_ms, began_ms, True))
        fault.strike(stage, master)
        if fault.stops:
            time.sleep(FULL_S)
            struck_s = time.monotonic()
            fault.heal(stage, master)
        elif fault.lasts:
            time.sleep(stage.random.uniform(0.0, stage.session_s + LONGER_S))
        self._wait_acknowledged(time.monotonic())
        self._wait_consumed(fault)
        clients: list[Family | GroupMember] = [*self.families, *self.consumers]
        waited = {each.name: each.longest_pause_s(struck_s) for each in clients}
        for name, seconds in waited.items():
            self.times_s[fault.name, name].append(seconds)
        self.counts[fault.name] += 1
        self._let_others_come(number, fault)
        self._wait_consumed(fault)
        if not fault.stops:
            fault.heal(stage, master)
        slowest = max(waited, key=lambda name: waited[name])
        report(f"round {number + 1}: {fault.name}: longest pause {waited[slowest]:.2f} s ({slowest})")

    def _let_others_come(self, number: int, fault: Fault) -> None:
        """Let new clients send a message each, and new consumers continue, while the fault is still there."""
        for family in self.families:
            if fault.hides and family.needs_zookeeper:
                continue
            began_s = time.monotonic()
            try:
                family.another().send_alone(-1 - number)
            except MetaqError as error:
                self._findings.append(f"round {number + 1}: a new client of {family.name}: {error}")
            else:
                family.acknowledged.append(-1 - number)
                self._newcomers_s[family.name].append(time.monotonic() - began_s)
        for consumer in self.consumers:
            if self.stage.random.random() < REOPENED_SHARE:
                consumer.reopen()

    def _end_fault(self) -> None:
        if self._struck:
            self._struck[-1] = self._struck[-1]._replace(ended_ms=wall_clock_ms())

    def _wait_acknowledged(self, since_s: float) -> None:
        """Return when each family was acknowledged something that it has sent after a moment."""
        while missing := [each.name for each in self.families if not each.has_sent_since(since_s)]:
            if time.monotonic() > since_s + PATIENCE_S:
                raise self._broken([f"{', '.join(missing)}: nothing was acknowledged within {PATIENCE_S:g} s"])
            time.sleep(POLL_S)

    def _broken(self, lines: Sequence[str]) -> PromiseBroken:
        errors = [f"{each.name}: {each.errors[-1]}" for each in self.families if each.errors]
        tails = [line for each in self.stage.pair.members for line in (f"-- {each.name}", *each.log_tail(20))]
        return PromiseBroken(self.folder, [*lines, *errors, *tails])

    # ---- at the end

    def _check(self) -> None:
        for family in self.families:
            self._check_family(family)
        self._end_fault()
        for consumer in self.consumers:
            consumer.stop()
            repeats = consumer.repeats(self._struck)
            self._findings += [f"{consumer.name}: {each}" for each in [*consumer.ended, *repeats[:5]]]
            report(
                f"{consumer.name}: {len(consumer.numbers)} numbers consumed, {len(consumer.handled)} messages, "
                f"{consumer.reopened} times reopened, {len(consumer.ended)} times ended, "
                f"{len(repeats)} repeated without reason"
            )
        if self._copies is not None:
            self._check_copies(self._copies)
        self.stage.pair.wait_equal()
        report("both copies are the same bytes")
        if self._findings:
            raise PromiseBroken(self.folder, self._findings)

    def _check_family(self, family: Family) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while lost := sorted(set(family.acknowledged) - set(stored := family.stored())):
            if not family.comes_late or time.monotonic() > end_s:
                break
            time.sleep(1.0)
        family.end()
        doubled = len(stored) - len(set(stored))
        if lost:
            self._findings.append(f"{family.name}: {len(lost)} acknowledged messages are lost: {lost[:10]}")
        if doubled and family.exactly_once:
            self._findings.append(f"{family.name}: {doubled} messages are there twice")
        report(
            f"{family.name}: {len(family.acknowledged)} acknowledged, {len(lost)} lost, {doubled} stored twice, "
            f"{len(family.errors)} errors"
        )
        for text, count in Counter(family.errors).most_common(5):
            report(f"    {count} x {text[:200]}")

    def _check_copies(self, copies: SparkCopies) -> None:
        copies.drain()
        batches = copies.batches()
        pair = self.stage.pair
        brokers = ",".join(str(each.address) for each in pair.members)
        name_servers = ";".join(str(each.rocketmq) for each in pair.members)
        with MetaQ(brokers) as metaq, RocketMQ(name_servers) as rocketmq:
            for copy in copies.copies:
                rows, differences = copy.difference(metaq, rocketmq)
                self._findings += [f"query {copy.name}: {each}" for each in differences]
                verdict_text = "; ".join(differences) or "each is there once"
                report(f"query {copy.name}: {rows} rows in {batches[copy.name]} micro-batches: {verdict_text}")
        report(f"queries ended {len(copies.ended)} times")
        self._findings += [f"a query ended: {each}" for each in copies.ended]

    # ---- times

    def table(self) -> list[str]:
        """Return the lines of the table of times: rows are faults, columns are families."""
        names = [*(each.name for each in self.families), *(each.name for each in self.consumers)]
        lines = [f"| fault | rounds | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
        for fault in FAULTS:
            if count := self.counts.get(fault.name):
                cells = [percentiles(self.times_s[fault.name, name]) for name in names]
                lines.append(f"| {fault.name} | {count} | {' | '.join(cells)} |")
        cells = [percentiles(self._newcomers_s[name]) for name in names]
        lines.append(f"| *a new client, meanwhile* | {sum(self.counts.values())} | {' | '.join(cells)} |")
        return lines

    def late(self) -> list[str]:
        """Return a sentence for each fault and family whose 99th percentile is above the limit."""
        return [
            f"{fault.name}, {family.name}: {found:.2f} s at the 99th percentile, limit {limit:g} s"
            for fault in FAULTS
            for family in self.families
            if (seconds := self.times_s.get((fault.name, family.name)))
            and (found := percentile(seconds, 99)) > (limit := fault.limit.seconds(self.stage.session_s))
        ]


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return the smallest value that ``percent`` of all do not exceed."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def percentiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{percentile(seconds, 50):.2f} / {percentile(seconds, 99):.2f}"
