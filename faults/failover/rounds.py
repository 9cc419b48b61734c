"""Rounds of failover: a fault while all families send, the time until each is acknowledged again, and then the pair is
made whole. At the end everything that was acknowledged must be readable, exactly once where that is promised, and both
copies must be the same bytes.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.console import PromiseBroken, report
from faults.failover.load import Family
from faults.failover.members import Member, Pair
from faults.failover.network import Network
from metaq.formats.frames import HEADER_BYTES, unpack_header

ACKNOWLEDGED_S_MAX: Final = 60.0
"""A family that is not acknowledged for this long after a fault has failed."""

CALM_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` does it to the pair with this master; ``heal`` undoes it, once all families are acknowledged again."""

    name: str
    strike: Callable[[Rounds, Member], None]
    heal: Callable[[Rounds, Member], None]
    needs_network: bool = False


class Rounds:
    """Runs rounds on one pair. ``network`` is ``None`` where there are no namespaces."""

    def __init__(
        self,
        folder: Path,
        pair: Pair,
        families: Sequence[Family],
        network: Network | None,
        zookeeper: str,
        seed: int,
        only: str = "",
    ) -> None:
        self.folder, self.pair, self.families, self.network = folder, pair, families, network
        self.zookeeper, self._only = zookeeper, only
        self._random = random.Random(seed)
        self.times_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        """(fault, family) -> seconds from the fault to the first acknowledged message."""
        self.counts: dict[str, int] = defaultdict(int)

    def run(self, rounds: int) -> None:
        """Run ``rounds``, then check. Raises ``PromiseBroken``, ``BrokerTrouble``."""
        usable = [each for each in FAULTS if self.network is not None or not each.needs_network]
        usable = [each for each in usable if self._only in each.name]
        for number in range(rounds):
            fault = usable[number % len(usable)] if number < len(usable) else self._random.choice(usable)
            self._round(number, fault)
        for family in self.families:
            family.stop()
        self.pair.wait_whole()
        self._check()

    def _round(self, number: int, fault: Fault) -> None:
        master = self.pair.wait_whole()
        self._wait_acknowledged(time.monotonic())
        time.sleep(CALM_S * self._random.random())
        struck_s = time.monotonic()
        fault.strike(self, master)
        waited = self._wait_acknowledged(struck_s)
        for family, seconds in waited.items():
            self.times_s[fault.name, family].append(seconds)
        self.counts[fault.name] += 1
        fault.heal(self, master)
        slowest = max(waited, key=lambda name: waited[name])
        report(f"round {number + 1}: {fault.name}: acknowledged again after {waited[slowest]:.2f} s ({slowest})")

    def _wait_acknowledged(self, since_s: float) -> dict[str, float]:
        """Return how long each family took until it was acknowledged."""
        end = since_s + ACKNOWLEDGED_S_MAX
        while True:
            found = {each.name: each.first_after(since_s) for each in self.families}
            missing = [name for name, seconds in found.items() if seconds is None]
            if not missing:
                return {name: seconds for name, seconds in found.items() if seconds is not None}
            if time.monotonic() > end:
                errors = [f"{each.name}: {each.errors[-1]}" for each in self.families if each.errors]
                tails = [line for each in self.pair.members for line in (f"-- {each.name}", *each.log_tail(20))]
                waited = f"{', '.join(missing)}: nothing was acknowledged within {ACKNOWLEDGED_S_MAX:g} s"
                raise PromiseBroken(self.folder, [waited, *errors, *tails])
            time.sleep(0.005)

    def _check(self) -> None:
        findings = []
        for family in self.families:
            stored = family.stored()
            lost = sorted(set(family.acknowledged) - set(stored))
            doubled = len(stored) - len(set(stored))
            if lost:
                findings.append(f"{family.name}: {len(lost)} acknowledged messages are lost: {lost[:10]}")
            if doubled and family.exactly_once:
                findings.append(f"{family.name}: {doubled} messages are there twice")
            report(
                f"{family.name}: {len(family.acknowledged)} acknowledged, {len(lost)} lost, {doubled} stored twice, "
                f"{len(family.errors)} errors"
            )
        self.pair.wait_equal()
        report("both copies are the same bytes")
        if findings:
            raise PromiseBroken(self.folder, findings)

    def table(self) -> list[str]:
        """Return the lines of the table of times: rows are faults, columns are families."""
        names = [each.name for each in self.families]
        lines = [f"| fault | rounds | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
        for fault, count in self.counts.items():
            cells = [_percentiles(self.times_s[fault, name]) for name in names]
            lines.append(f"| {fault} | {count} | {' | '.join(cells)} |")
        return lines


def _percentiles(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} / {ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]:.2f}"


# ---- the faults


def _nothing(rounds: Rounds, master: Member) -> None: ...


def _start(rounds: Rounds, master: Member) -> None:
    for member in rounds.pair.members:
        if not member.runs:
            member.start()


def _kill_slave(rounds: Rounds, master: Member) -> None:
    rounds.pair.other(master).kill()


def _kill_both(rounds: Rounds, master: Member) -> None:
    for member in rounds.pair.members:
        member.kill()
        member.start()


def _heal_network(rounds: Rounds, master: Member) -> None:
    assert rounds.network is not None
    rounds.network.heal()


def _cut(*, towards_master: bool, towards_slave: bool) -> Callable[[Rounds, Member], None]:
    def strike(rounds: Rounds, master: Member) -> None:
        assert rounds.network is not None
        slave = rounds.pair.other(master)
        if towards_slave:
            rounds.network.cut(_host(rounds.network, master), slave.address.host)
        if towards_master:
            rounds.network.cut(_host(rounds.network, slave), master.address.host)

    return strike


def _cut_from_zookeeper(rounds: Rounds, master: Member) -> None:
    assert rounds.network is not None
    rounds.network.cut(_host(rounds.network, master), rounds.zookeeper)


def _host(network: Network, member: Member):  # type: ignore[no-untyped-def]
    return network.hosts[member.name]


def _empty_slave(rounds: Rounds, master: Member) -> None:
    slave = rounds.pair.other(master)
    slave.kill()
    shutil.rmtree(slave.data)
    slave.start()


def _shorten_slave(rounds: Rounds, master: Member) -> None:
    """Shorten the newest segment of the slave, as a disk that loses its end does."""
    slave = rounds.pair.other(master)
    slave.kill()
    for partition in sorted(slave.data.glob("*-[0-9]")):
        newest = max(partition.glob("*.meta"))
        with open(newest, "r+b") as file:
            file.truncate(newest.stat().st_size * 2 // 3)
    slave.start()


def _flip_bit_of_slave(rounds: Rounds, master: Member) -> None:
    """In a body, which has a checksum; the message id in a MetaQ header has none, and a bit of it may go unnoticed."""
    slave = rounds.pair.other(master)
    slave.kill()
    for partition in sorted(slave.data.glob("*-[0-9]")):
        newest = max(partition.glob("*.meta"))
        content = bytearray(newest.read_bytes())
        at = 0
        while at + HEADER_BYTES < len(content):
            end = at + HEADER_BYTES + unpack_header(content, at)[0]
            if end > len(content) // 2:
                content[at + HEADER_BYTES] ^= 0x10
                newest.write_bytes(content)
                break
            at = end
    slave.start()


FAULTS: Final = (
    Fault("kill -9 of the master", lambda rounds, master: master.kill(), _start),
    Fault("kill -9 of the slave", _kill_slave, _start),
    Fault("master frozen", lambda rounds, master: master.freeze(), lambda rounds, master: master.thaw()),
    Fault("kill -9 of both", _kill_both, _nothing),
    Fault("cut between the members", _cut(towards_master=True, towards_slave=True), _heal_network, True),
    Fault("cut from the master to the slave", _cut(towards_master=False, towards_slave=True), _heal_network, True),
    Fault("cut from the slave to the master", _cut(towards_master=True, towards_slave=False), _heal_network, True),
    Fault("master cut from ZooKeeper", _cut_from_zookeeper, _heal_network, True),
    Fault("slave emptied", _empty_slave, _nothing),
    Fault("slave's files shortened", _shorten_slave, _nothing),
    Fault("a bit of the slave's files flipped", _flip_bit_of_slave, _nothing),
)
