"""One run: a query copies messages while its processes are killed, one after another, by a schedule.

Input is put in portions, so that the query is always busy when the next kill is due. After all kills, a last portion is
copied without disturbance, and the output is checked.
"""

from __future__ import annotations

import queue
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from faults.console import PromiseBroken
from faults.exactly_once.broker_pair import PORTION, BrokerPair, partition_of
from faults.exactly_once.checker import check
from faults.exactly_once.driver import Drained, Ended, Failed, Job, SparkDriver
from faults.exactly_once.injector import FaultInjector, KillDone, Record
from faults.exactly_once.planned_kills import Delivery, PlannedKill, Victim
from faults.exactly_once.processes import port_owner, signal_all
from faults.exactly_once.proxy import ObservedStep

PATIENCE_S: Final = 240.0
"""Longest wait for any event, in seconds."""

WORKER_PATIENCE_S: Final = 30.0
"""How long workers may outlive a driver, and how long the harness looks for a victim, in seconds."""

PORTIONS_MAX: Final = 4
"""After this many portions without the moment of a kill, the kill counts as missed."""

EXCUSES_MAX: Final = 2
"""Failures of queries that the last kills may have caused: two kills may come before the first failure is reported."""

SHOWN_MAX: Final = 20
_POLL_S: Final = 0.1


class RunTrouble(Exception):
    """The query failed although no process was killed, or makes no progress."""


@dataclass(slots=True)
class Figures:
    """Figures of a run. ``missed`` are kills whose moment was not reached; ``failures`` the errors of queries."""

    kills: Counter[tuple[Victim, str]] = field(default_factory=Counter)
    missed: list[PlannedKill] = field(default_factory=list)
    drivers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    messages: int = 0
    copies: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        by_partition: dict[str, Counter[Victim]] = {}
        for (victim, partition_key), count in sorted(self.kills.items(), key=lambda item: item[0][1]):
            by_partition.setdefault(partition_key, Counter())[victim] += count
        lines = [f"  {partition_key:19} {_by_victim(victims)}" for partition_key, victims in by_partition.items()]
        lines += [f"  not reached: {planned}" for planned in self.missed]
        lines += [f"  a query failed, {count} times: {reason}" for reason, count in self.failures.most_common()]
        victims = Counter(victim for (victim, _), count in self.kills.items() for _ in range(count))
        return [
            *lines,
            f"{self.kills.total()} kills ({_by_victim(victims)}), {self.drivers} runs of the driver, {self.batches:,} "
            f"micro-batches, {self.messages:,} messages, {self.copies:,} copies found, {self.seconds:.0f} s",
        ]


def _by_victim(victims: Mapping[Victim, int]) -> str:
    return ", ".join(f"{victim.value} {count}" for victim, count in victims.items())


class FaultRun:
    """One query on one pair of brokers. ``tell`` gets a line for every kill."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        delivery: Delivery,
        report: Callable[[str], None],
        sink: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.delivery = folder, delivery
        self.record = Record(folder / "steps.log")
        self.events: queue.Queue[object] = queue.Queue()
        self.injector = FaultInjector(self.record, self._kill, self.events.put)
        self.broker_pair = BrokerPair(folder, seed, self.injector)
        self.job = Job(self.broker_pair.addresses, folder, delivery, sink or {})
        self.figures = Figures()
        self.drivers: list[SparkDriver] = []
        self._report = report
        self._random = Random(f"aim {seed}")
        self.idle = False
        self._excuses = 0
        self._began = time.monotonic()

    def run(self, plan: Sequence[PlannedKill], then: Callable[[FaultRun], None] = lambda fault_run: None) -> None:
        """Run the plan, call ``then``, let the query finish, and check the output.

        Raises:
            PromiseBroken: The output is wrong, or something was left behind.
            RunTrouble, BrokerTrouble, MetaqError: It could not be carried out.
        """
        try:
            self.broker_pair.start()
            self.broker_pair.feed()
            self.launch()
            for number, planned in enumerate(plan, 1):
                self._carry_out(f"{number}/{len(plan)}", planned)
            then(self)
            self.finish()
            self.check()
        finally:
            self.close()

    def close(self) -> None:
        self.injector.disarm()
        for driver in self.drivers:
            driver.kill()
            driver.sweep(0.0)
        self.broker_pair.close()
        self.record.close()

    @property
    def driver(self) -> SparkDriver:
        """The current or last driver."""
        return self.drivers[-1]

    def launch(self) -> SparkDriver:
        self.idle = False
        self.drivers.append(SparkDriver(self.job, len(self.drivers), self.events))
        self.record.write(f"## driver {self.driver.number} starts")
        self.figures.drivers += 1
        return self.driver

    def _carry_out(self, number: str, planned: PlannedKill) -> None:
        began = time.monotonic()
        hit = self._in_time(planned) if planned.step is None else self._at_step(planned)
        if hit:
            self.figures.kills[planned.victim, planned.target] += 1
            self._excuses = min(EXCUSES_MAX, self._excuses + 1)
            if planned.victim is Victim.DRIVER:
                self.launch()
            elif planned.victim is Victim.BROKER:
                time.sleep(planned.outage_s)
                self._start_brokers()
        else:
            self.figures.missed.append(planned)
        self._report(f"{number} {planned}: {'hit' if hit else 'not reached'} after {time.monotonic() - began:.1f} s")

    def _at_step(self, planned: PlannedKill) -> bool:
        """Wait until the injector has killed; return whether it has."""
        self.injector.arm(planned)
        for _ in range(PORTIONS_MAX):
            self.go_on()
            while not self.idle:
                if isinstance(self.next_event(PATIENCE_S), KillDone):
                    return True
        if self.injector.disarm():
            return False
        while not isinstance(self.next_event(PATIENCE_S), KillDone):
            pass
        return True

    def _in_time(self, planned: PlannedKill) -> bool:
        """Kill after the planned delay, at any step; return whether there was a victim."""
        end = time.monotonic() + planned.delay_s
        patience_end = end + WORKER_PATIENCE_S
        while time.monotonic() < patience_end:
            self.go_on()
            self.next_event(max(_POLL_S, end - time.monotonic()), must_come=False)
            if time.monotonic() >= end and self._kill_any(planned):
                self.record.write(f"## killed: {planned}")
                return True
        return False

    def go_on(self, count: int = PORTION) -> None:
        """Put ``count`` messages into each input partition for an idle driver, unless one was just killed."""
        if not self.idle:
            return
        with self.injector.ceasefire():
            if any(not broker.alive for broker in self.broker_pair.brokers.values()):
                return  # its event is in the queue
            self.broker_pair.feed(count)
        self.idle = False
        self.driver.again()

    def next_event(self, timeout_s: float, *, must_come: bool = True) -> object:
        """Return the next event, after its handling.

        Raises:
            RunTrouble: There was none in ``timeout_s`` although it ``must_come``; or a query failed or a driver ended
                without a kill as the cause.
        """
        try:
            event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            if must_come:
                raise RunTrouble(f"nothing for {timeout_s:g} s; the driver's log ends:\n{self._tail()}") from None
            return None
        if isinstance(event, Drained) and event.number == self.driver.number:
            self.idle = True
        elif isinstance(event, Failed) and event.number == self.driver.number:
            self._forgive(event.reason)
            self.driver.again()
        elif isinstance(event, Ended) and event.number == self.driver.number and event.status >= 0:
            self._forgive(f"the driver ended with status {event.status}")
            self.driver.kill()  # its JVM
            self.launch()
        return event

    def _forgive(self, reason: str) -> None:
        """Accept a failure after a kill, and start the query again."""
        self.figures.failures[reason] += 1
        self.record.write(f"## failed: {reason}")
        if not self._excuses:
            raise RunTrouble(f"the query failed and nobody was killed: {reason}\n{self._tail()}")
        self._excuses -= 1

    def _tail(self) -> str:
        return self.driver.log_tail()

    def drain(self) -> None:
        """Wait until the driver has copied all input."""
        while not self.idle:
            self.next_event(PATIENCE_S)

    def finish(self) -> None:
        """Copy a last portion without kills, and let the driver end.

        Raises:
            RunTrouble: The driver does not end, or not with status 0.
        """
        self.injector.disarm()
        for driver in self.drivers[:-1]:
            driver.sweep(WORKER_PATIENCE_S)
        self._start_brokers()
        self.drain()
        self.go_on()
        self.drain()
        self.driver.finish()
        status = self._status_of_last()
        if status != 0:
            raise RunTrouble(f"the driver ended with status {status}:\n{self._tail()}")

    def _status_of_last(self) -> int:
        while True:
            try:
                event = self.events.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise RunTrouble(f"the driver does not end; its log ends:\n{self._tail()}") from None
            if isinstance(event, Ended) and event.number == self.driver.number:
                return event.status

    def check(self) -> None:
        """Check the output and what was left behind.

        Raises:
            PromiseBroken: There are findings.
        """
        output = self.broker_pair.output()
        figures = self.figures
        figures.batches, figures.messages = self.job.batches, self.broker_pair.sent.total()
        figures.copies = sum(map(len, output.values()))
        figures.seconds = time.monotonic() - self._began
        repeats_allowed = self.delivery is Delivery.AT_LEAST_ONCE
        anomalies = check(self.broker_pair.sent, output, partition_of, repeats_allowed=repeats_allowed)
        report = [str(anomaly) for anomaly in anomalies[:SHOWN_MAX]]
        if len(anomalies) > SHOWN_MAX:
            counts = Counter(anomaly.kind.value for anomaly in anomalies)
            report.append(f"... {len(anomalies)} in all: {dict(counts)}")
        report += self.broker_pair.leftovers()
        if report:
            raise PromiseBroken(self.folder, report)

    def _start_brokers(self) -> None:
        for broker in self.broker_pair.brokers.values():
            if not broker.alive:
                broker.start()

    def _kill(self, planned: PlannedKill, sighting: ObservedStep) -> bool:
        match planned.victim:
            case Victim.DRIVER:
                self.driver.kill()
            case Victim.BROKER:
                self.broker_pair.brokers[sighting.broker_id].kill()
            case Victim.WORKER:
                worker = port_owner(sighting.peer_port, self.driver.workers())
                signal_all([worker] if worker is not None else [], signal.SIGKILL)
                return worker is not None
        return True

    def _kill_any(self, planned: PlannedKill) -> bool:
        match planned.victim:
            case Victim.DRIVER:
                self.driver.kill()
            case Victim.BROKER:
                self._random.choice(list(self.broker_pair.brokers.values())).kill()
            case Victim.WORKER:
                workers = self.driver.workers()
                signal_all([self._random.choice(workers)] if workers else [], signal.SIGKILL)
                return bool(workers)
        return True
