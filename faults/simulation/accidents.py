"""What goes wrong in a history. Each accident is chosen and timed by the seed, and ends by itself or when all heals.

Some combinations lose data by what they are, and no pair can help: the only member in sync loses its disk; a disk is
replaced by a copy of the same boot; ZooKeeper is put back to a state whose members know no later one. These are not
tried, and the docstrings of the core say so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from metaq_broker.replication.pair import actions, events
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.pair.record import PairRecord

from faults.simulation.disk import Disk
from faults.simulation.member import SimulatedMember, Surroundings
from faults.simulation.zookeeper import SESSION_US

CHAOS_US = 3_000_000
"""How long accidents happen."""


class Accidents:
    """Of one history."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._all = surroundings
        self._random: Random = surroundings.random
        self._copies: dict[int, list[Disk]] = {}
        self.disks: list[Disk] = [each.disk for each in surroundings.members]
        self.zookeeper_was_put_back = False
        self._disk_was_put_back = False

    def plan(self, count: int) -> None:
        """Choose accidents and their times."""
        kinds = self._random.choices(_KINDS, _WEIGHTS, k=count)
        for kind in kinds:
            self._all.schedule.after(self._random.randint(100_000, CHAOS_US), self._happen, kind)
        for _ in range(3):
            self._all.schedule.after(self._random.randint(0, CHAOS_US // 2), self._copy_disk, self._member())

    def _happen(self, kind: Callable[[Accidents], None]) -> None:
        self._all.checker.accidents += 1
        kind(self)

    def _member(self) -> SimulatedMember:
        return self._random.choice(self._all.members)

    def _master_or_any(self) -> SimulatedMember:
        masters = [each for each in self._all.members if each.core is not None and each.core.role is PairRole.MASTER]
        return self._random.choice(masters) if masters and self._random.random() < 0.6 else self._member()

    def _duration(self) -> int:
        return self._random.choice((50_000, 200_000, 400_000, 800_000, 1_500_000))

    def _note(self, text: str) -> None:
        self._all.note(f"accident   {text}")

    # ---- processes

    def _kill(self) -> None:
        self._kill_member(self._master_or_any(), power=False)

    def _lose_power(self) -> None:
        self._kill_member(self._master_or_any(), power=True)

    def _kill_all(self) -> None:
        power = self._random.random() < 0.5
        for member in self._all.members:
            self._kill_member(member, power=power)

    def _kill_member(self, member: SimulatedMember, *, power: bool, away: int | None = None) -> None:
        member.kill(power=power)
        member.refused_until = 0 if power else self._all.schedule.now + 10_000_000
        if away is None:
            self._start_again(member)
        else:
            self._all.schedule.after(away, member.start)

    def _start_again(self, member: SimulatedMember) -> None:
        self._all.schedule.after(self._random.choice((1_000, 30_000, 300_000, 1_000_000, 2_500_000)), member.start)

    def _kill_at_action(self) -> None:
        member = self._master_or_any()
        member.kill_before = self._random.random() < 0.5
        member.refused_until = self._all.schedule.now + 10_000_000
        if self._random.random() < 0.6:
            member.kill_at = self._random.choice(_KILLED_AT)
            self._note(f"{member.name} is killed at its next {member.kill_at.__name__}")
        else:
            member.actions_until_kill = self._random.choice((1, 2, 3, 5, 8, 20, 50, 100))
            self._note(f"{member.name} is killed at its {member.actions_until_kill}. action from now on")
        for delay in (500_000, 1_500_000, 2_900_000):
            self._all.schedule.after(delay, member.start)

    def _kill_in_a_cut(self) -> None:
        """A master writes on alone; whoever has to cut its streams next is killed on the way."""
        self._isolate()
        for member in self._all.members:
            member.kill_at, member.kill_before = actions.CutStreams, False
            member.refused_until = self._all.schedule.now + 10_000_000
            for delay in (1_500_000, 2_500_000):
                self._all.schedule.after(delay, member.start)

    def _freeze(self) -> None:
        self._master_or_any().freeze(self._duration())

    def _jump(self) -> None:
        member = self._member()
        member.clock_offset += self._random.randint(-5_000_000, 5_000_000)

    # ---- the network

    def _cut(self) -> None:
        one, other = self._random.sample([each.number for each in self._all.members], 2)
        directions = [(one, other), (other, one)] if self._random.random() < 0.5 else [(one, other)]
        duration = self._duration()
        self._note(f"cut {directions} for {duration // 1000} ms")
        for direction in directions:
            self._all.network.cut(*direction)
            self._all.schedule.after(duration, self._all.network.cuts.discard, direction)

    def _isolate(self) -> None:
        """Cut a member from everything; the other members come back first."""
        member, zookeeper, duration = self._master_or_any(), self._all.zookeeper, self._duration()
        self._note(f"{member.name} is alone for {duration // 1000} ms")
        for other in self._all.members:
            if other is not member:
                for direction in ((member.number, other.number), (other.number, member.number)):
                    self._all.network.cut(*direction)
                    self._all.schedule.after(duration, self._all.network.cuts.discard, direction)
        for cut in (zookeeper.cut_to, zookeeper.cut_from):
            cut.add(member.number)
            self._all.schedule.after(duration + self._duration(), cut.discard, member.number)

    def _slow_network(self) -> None:
        self._all.network.slowness = 50
        self._all.schedule.after(self._duration(), setattr, self._all.network, "slowness", 1)

    # ---- ZooKeeper

    def _cut_from_zookeeper(self) -> None:
        member, zookeeper, duration = self._master_or_any(), self._all.zookeeper, self._duration()
        cut = self._random.choice((zookeeper.cut_to, zookeeper.cut_from))
        self._note(f"{member.name} is cut from ZooKeeper for {duration // 1000} ms")
        cut.add(member.number)
        self._all.schedule.after(duration, cut.discard, member.number)

    def _stop_zookeeper(self) -> None:
        duration = self._duration()
        self._note(f"ZooKeeper is away for {duration // 1000} ms")
        self._all.zookeeper.is_down = True
        self._all.schedule.after(duration, setattr, self._all.zookeeper, "is_down", False)

    def _lose_answers(self) -> None:
        self._all.zookeeper.lost_answers = 0.5
        self._all.schedule.after(self._duration(), setattr, self._all.zookeeper, "lost_answers", 0.0)

    def _lose_a_growth(self) -> None:
        """The answer to the next growth of the set is lost, the new member falls behind, and the master dies."""
        members = self._all.members

        def grown(record: PairRecord) -> None:
            master = next((each for each in members if each.disk.file.uuid == record.master), None)
            if master is None:
                return
            self._note(f"the set has grown, {master.name} is not told, and sends nothing any more")
            self._all.network.slowness = 1
            delay = self._random.randint(20_000, 250_000)
            for other in members:
                if other is not master:
                    self._all.network.cut(master.number, other.number, for_good=True)
                    direction = master.number, other.number
                    self._all.schedule.after(delay + 100_000, self._all.network.cuts.discard, direction)
            self._all.schedule.after(delay, partial(self._kill_member, master, power=False, away=1_000_000))

        self._all.zookeeper.on_growth = grown
        self._all.network.slowness = 10
        followers = [each for each in members if each.core is not None and each.core.role is not PairRole.MASTER]
        if followers:
            self._kill_member(self._random.choice(followers), power=False)

    def _end_session(self) -> None:
        member = self._master_or_any()
        self._note(f"the session of {member.name} ends")
        self._all.zookeeper.sessions[member.number] = self._all.schedule.now - SESSION_US

    def _put_zookeeper_back(self) -> None:
        zookeeper = self._all.zookeeper
        if self._disk_was_put_back or zookeeper.stored is None or self.zookeeper_was_put_back:
            return
        seen = {each.disk.file.uuid: each.disk.file.seen for each in self._all.members}
        if self._random.random() < 0.4:
            self.zookeeper_was_put_back = all(seen.values())
            if self.zookeeper_was_put_back:
                zookeeper.put_back(None)
            return
        older = [
            each
            for each in zookeeper.versions
            if all(seen.get(uuid, 0) > each.record.epoch for uuid in each.record.in_sync)
        ]
        if older:
            self.zookeeper_was_put_back = True
            zookeeper.put_back(self._random.choice(older))

    # ---- disks

    def _slow_disk(self) -> None:
        member = self._member()
        member.disk.slowness = 60
        self._all.schedule.after(self._duration(), setattr, member.disk, "slowness", 1)

    def _fill_disk(self) -> None:
        member = self._member()
        member.disk.is_full = True
        self._all.schedule.after(self._duration(), setattr, member.disk, "is_full", False)

    def _fail_syncs(self) -> None:
        member = self._master_or_any()
        self._note(f"syncs of {member.name} fail")
        member.syncs_fail = True

    def _copy_disk(self, member: SimulatedMember) -> None:
        self._copies.setdefault(member.number, []).append(member.disk.copy())

    def _may_lose(self, member: SimulatedMember) -> bool:
        """Whether another member has everything, whichever change of the record is carried out."""
        zookeeper = self._all.zookeeper
        if zookeeper.stored is None or self.zookeeper_was_put_back:
            return False
        others = [each for each in self._all.members if each is not member]
        healthy = {each.disk.file.uuid for each in others if not each.lost_data and not each.disk.is_damaged}
        sets = [zookeeper.stored.record.in_sync, *(each.record.in_sync for each in zookeeper.pending)]
        return all(each & healthy for each in sets)

    def _shorten_file(self) -> None:
        member = self._master_or_any()
        if member.disk.streams and self._may_lose(member):
            member.kill(power=True, reason="one of its files is shortened")
            member.disk.lose_end(self._random)
            member.lost_data = True
            self._disk_was_put_back = True
            self._start_again(member)

    def _damage_record(self) -> None:
        """Damage one acknowledged record that all others have, whoever is in the set."""
        member = self._master_or_any()
        others = [each for each in self._all.members if each is not member]
        if any(each.lost_data or each.disk.is_damaged for each in self._all.members):
            return
        found = [
            (stream, offset)
            for (name, incarnation), records in self._all.checker.acknowledged.items()
            if name.startswith("t-") and (stream := member.disk.streams.get(name)) is not None
            if stream.origin.incarnation == incarnation
            for offset, record in records.items()
            if all(each.disk.has(name, record) for each in (member, *others))
        ]
        if found:
            stream, offset = self._random.choice(found)
            member.kill(power=True, reason=f"its record at {offset} is damaged")
            stream.damaged.add(offset)
            self._start_again(member)

    def _empty_disk(self) -> None:
        member = self._member()
        if self._may_lose(member):
            member.kill(power=True, reason="its disk is replaced by an empty one")
            self._replace(member, Disk(f"u{member.number}.{self._random.getrandbits(16):04x}"))

    def _put_disk_back(self) -> None:
        member, zookeeper = self._master_or_any(), self._all.zookeeper
        copies = self._copies.get(member.number, ())
        if not copies or not self._may_lose(member) or zookeeper.stored is None:
            return
        copy = self._random.choice(copies).copy()
        records = [zookeeper.stored.record, *(each.record for each in zookeeper.pending)]
        may_be_added = self._all.network.is_heard(member.number)
        if all(self._shows(copy, record, may_be_added=may_be_added) for record in records):
            member.kill(power=True, reason=f"its disk is put back to a copy with {copy.file}")
            self._replace(member, copy)

    @staticmethod
    def _shows(copy: Disk, record: PairRecord, *, may_be_added: bool) -> bool:
        """Whether a member with this copy notices that it is none of the disk that the record means.

        ``may_be_added``: its master may still add it to the set, for what it has answered before.
        """
        entry = record.members.get(copy.file.uuid)
        if entry is None or not (may_be_added or copy.file.uuid in record.in_sync):
            return True
        return entry.boot not in copy.file.boots or copy.file.promised < record.epoch

    def _replace(self, member: SimulatedMember, disk: Disk) -> None:
        self._disk_was_put_back = True
        member.replace_disk(disk)
        self.disks.append(disk)
        self._start_again(member)

    # ---- operators

    def _switch(self) -> None:
        for member in self._all.members:
            if member.core is not None and member.core.role is PairRole.MASTER and member.is_alive:
                self._note(f"{member.name} is to hand over")
                member.after(0, member.feed, events.SwitchAsked())
                member.after(600_000, member.feed, events.SwitchExpired())

    def _leave(self) -> None:
        member = self._member()
        if member.core is not None and member.core.role is not PairRole.MASTER and member.is_alive:
            member.has_left = True
            member.after(0, member.feed, events.LeaveAsked())

    def _change_streams(self) -> None:
        for member in self._all.members:
            if member.serving is not None and member.serving.takes_puts and member.is_alive:
                member.after(0, member.change_stream, "t-1")

    def _wrong_hint(self) -> None:
        member = self._member()
        if member.core is not None and member.core.record is not None and member.is_alive:
            member.after(0, member.feed, events.MasterLost(member.core.record.master, "a wrong hint"))


_KILLED_AT: tuple[type, ...] = (
    *(actions.RoleChanged, actions.ChangeRecord, actions.StorePromise, actions.BeginEpoch, actions.CutStreams),
    *(actions.AdoptStreams, actions.WriteRun, actions.MoveReadableEnd, actions.SendToMember, actions.CloseLink),
)
"""Kinds of actions before or after which a member is killed."""

_WEIGHTED: tuple[tuple[Callable[[Accidents], None], int], ...] = (
    (Accidents._kill, 10),
    (Accidents._lose_power, 8),
    (Accidents._kill_all, 4),
    (Accidents._kill_at_action, 10),
    (Accidents._kill_in_a_cut, 6),
    (Accidents._freeze, 10),
    (Accidents._jump, 3),
    (Accidents._cut, 12),
    (Accidents._slow_network, 3),
    (Accidents._isolate, 6),
    (Accidents._lose_a_growth, 8),
    (Accidents._cut_from_zookeeper, 8),
    (Accidents._stop_zookeeper, 3),
    (Accidents._lose_answers, 6),
    (Accidents._end_session, 4),
    (Accidents._put_zookeeper_back, 2),
    (Accidents._slow_disk, 4),
    (Accidents._fill_disk, 2),
    (Accidents._fail_syncs, 4),
    (Accidents._empty_disk, 3),
    (Accidents._shorten_file, 4),
    (Accidents._damage_record, 6),
    (Accidents._put_disk_back, 10),
    (Accidents._switch, 3),
    (Accidents._leave, 1),
    (Accidents._change_streams, 2),
    (Accidents._wrong_hint, 4),
)
_KINDS = [kind for kind, _ in _WEIGHTED]
_WEIGHTS = [weight for _, weight in _WEIGHTED]
