"""One history: built from a seed, run, healed, and judged."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from metaq_broker.replication.pair import events
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.pair.member import PairMember, PairSettings

from faults.simulation.accidents import CHAOS_US, Accidents
from faults.simulation.broker import Serving
from faults.simulation.checker import Checker, Violation
from faults.simulation.clients import Client, Producer, Query, Reader
from faults.simulation.disk import Disk
from faults.simulation.events import Schedule
from faults.simulation.member import SimulatedMember, Surroundings
from faults.simulation.network import Network
from faults.simulation.zookeeper import ZooKeeper

HEAL_US = 8_000_000
"""Within this time after the last accident, all members must be in sync."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a history is made of; a planted mistake replaces one."""

    core: type[PairMember] = PairMember
    serving: type[Serving] = Serving
    member: type[SimulatedMember] = SimulatedMember
    disk: type[Disk] = Disk


@dataclass(frozen=True, slots=True)
class Outcome:
    """``violation`` is ``None`` if every invariant holds; ``lines`` are the history, if it was asked for."""

    seed: int
    violation: Violation | None
    promotions: int
    puts: int
    accidents: int
    lines: tuple[str, ...] = ()


class History:
    def __init__(self, seed: int, parts: Parts, *, has_trace: bool) -> None:
        self.seed = seed
        random = self._random = Random(seed)
        self.lines: list[str] = []
        self._schedule = Schedule()
        note = self._note if has_trace else _ignore
        zookeeper = ZooKeeper(self._schedule, random, note)
        network = Network(self._schedule, random)
        size = random.choice((2, 2, 3))
        settings = PairSettings(min_in_sync=random.choice((1, 1, 2)), members_max=size)
        self._all = Surroundings(
            self._schedule, random, zookeeper, network, Checker(), settings, note,
            core=parts.core, serving=parts.serving, has_trace=has_trace,
        )  # fmt: skip
        self._members = self._all.members
        for number in range(size):
            member = parts.member(number, self._all, parts.disk(f"u{number}"))
            member.clock_offset = random.randint(-2_000_000, 2_000_000)
            self._members.append(member)
            self._all.checker.member_is(member.disk.file.uuid, member)
            zookeeper.watchers[number] = member.watch
        network.receive = lambda member, link, message: self._members[member].receive(link, message)
        network.lost = lambda member, link, reason: self._members[member].lost_link(link, reason)
        zookeeper.on_store = self._all.checker.stored
        self.accidents = Accidents(self._all)
        self._clients: list[Client] = []

    def _note(self, text: str) -> None:
        self.lines.append(f"{self._schedule.now / 1000:10.3f}  {text}")

    def run(self) -> None:
        """Run it.

        Raises:
            Violation: An invariant does not hold.
        """
        random, schedule = self._random, self._schedule
        for member in self._members:
            schedule.after(random.randint(0, 50_000), member.start)
        size_max = random.choice((100, 1 << 31))
        self._clients = [
            *(Producer(self._all, random.choice((20_000, 60_000, 120_000)), size_max) for _ in range(2)),
            Reader(self._all, 60_000),
            *(Query(self._all, number, 80_000) for number in range(random.choice((0, 1, 2, 2)))),
        ]
        self.accidents.plan(random.choice((1, 2, 3, 4, 6, 8)))
        schedule.run_until(CHAOS_US)
        self._heal()
        end = schedule.now + HEAL_US
        schedule.run_until(end, self._is_healed)
        if not self._is_healed():
            states = "; ".join(_state(member) for member in self._members)
            raise Violation(
                7, f"not all members are in sync {HEAL_US // 1_000_000} s after the last accident: {states}"
            )
        for client in self._clients:
            client.is_over = True
        schedule.run_until(schedule.now + 700_000)
        end = schedule.now + HEAL_US
        schedule.run_until(end, self._is_quiet)
        if not self._is_quiet():
            raise Violation(7, "a message is not confirmed although every member is in sync")
        self._all.checker.healed(self._members)
        self._all.checker.tails_are_kept(self.accidents.disks)
        self._all.checker.elections()

    def _heal(self) -> None:
        """End all accidents; an operator repairs what only an operator can."""
        self._all.note("everything heals")
        zookeeper = self._all.zookeeper
        self._all.network.cuts.clear()
        self._all.network.slowness = 1
        zookeeper.cut_to.clear()
        zookeeper.cut_from.clear()
        zookeeper.is_down, zookeeper.lost_answers, zookeeper.on_growth = False, 0.0, None
        for member in self._members:
            member.actions_until_kill, member.kill_at = -1, None
            member.disk.is_full, member.disk.slowness = False, 1
            member.has_left = False
            if self.accidents.zookeeper_was_put_back:
                member.kill(reason="stopped by the operator")
            if member.is_frozen:
                member._thaw(member.run)
        if self.accidents.zookeeper_was_put_back:
            latest = max(zookeeper.versions, key=lambda each: (each.record.epoch, each.version))
            zookeeper.put_back(None)
            zookeeper.store(latest.record, 0)
        for member in self._members:
            member.start()
            member.after(0, member.feed, events.JoinAsked())

    def _master(self) -> SimulatedMember | None:
        masters = [each for each in self._members if each.core is not None and each.core.role is PairRole.MASTER]
        return max(masters, key=lambda each: each.core.epoch if each.core else 0, default=None)

    def _is_healed(self) -> bool:
        master = self._master()
        if master is None or master.core is None or master.serving is None or not master.serving.gate_is_open:
            return False
        is_whole = len(master.core.in_sync) == len(self._members)
        return is_whole and not any(member.disk.is_damaged for member in self._members)

    def _is_quiet(self) -> bool:
        master = self._master()
        if master is None or master.serving is None or not self._is_healed():
            return False
        streams = master.disk.streams
        everywhere = all(
            {name: each.durable_end for name, each in member.disk.streams.items()}
            == {name: each.end for name, each in streams.items()}
            for member in self._members
        )
        return everywhere and all(master.serving.readable_end(name) == each.end for name, each in streams.items())


def _ignore(text: str) -> None:
    """Nobody reads this history."""


def _state(member: SimulatedMember) -> str:
    core = member.core
    if core is None:
        return f"{member.name} is not running"
    return f"{member.name} is {core.role.value} of epoch {core.epoch} ({core.trouble}), in sync {sorted(core.in_sync)}"


def run_history(seed: int, parts: Parts | None = None, *, has_trace: bool = False) -> Outcome:
    """Run the history of a seed; the same seed and parts give the same history."""
    history = History(seed, parts or Parts(), has_trace=has_trace)
    violation = None
    try:
        history.run()
    except Violation as found:
        violation = found
    except Exception as error:
        if not has_trace:
            violation = Violation(0, f"{type(error).__name__}: {error}")
        else:
            history.lines.append(f"{type(error).__name__}: {error}")
            violation = Violation(0, f"{type(error).__name__}: {error}")
    checker = history._all.checker
    return Outcome(seed, violation, checker.promotions, checker.puts, checker.accidents, tuple(history.lines))
