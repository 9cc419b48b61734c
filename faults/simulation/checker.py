"""The eight invariants, checked while a history runs and at its end.

1. Every acknowledged put is readable at its offset.
2. Bytes at an offset never differ between any two reads anywhere.
3. Epochs rise; one acknowledger per epoch.
4. Every exactly-once batch is there once; one decision per batch.
5. The readable end never goes back.
6. Copies that have healed are identical; bytes that were cut had never been acknowledged, and are kept aside.
7. At most one election per accident, and a bound on the time without a master.
8. A member that lost data never leads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from metaq_broker.replication.pair import actions
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.pair.member import PairMember
from metaq_broker.replication.pair.record import PairRecord

from faults.simulation.broker import ROWS, Serving
from faults.simulation.disk import Cut, Disk, StoredRecord

StreamName = tuple[str, str]
"""Name and incarnation."""


class Violation(Exception):
    """An invariant does not hold; ``number`` is the invariant's."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        super().__init__(f"invariant {number}: {text}")


class Checked(Protocol):
    """What the checker looks at of a member."""

    name: str
    disk: Disk
    core: PairMember | None
    serving: Serving | None
    lost_data: bool
    has_left: bool


class Checker:
    def __init__(self) -> None:
        self.acknowledged: dict[StreamName, dict[int, StoredRecord]] = {}
        self.seen: dict[StreamName, dict[int, StoredRecord]] = {}
        self.removed: set[StreamName] = set()
        self.answers: dict[int, object] = {}
        self.masters: dict[int, tuple[str, str]] = {}
        self.epochs: set[int] = set()
        self.accidents = 0
        self.puts = self.reads = self.promotions = 0
        self._readable: dict[StreamName, tuple[int, int]] = {}
        self._members_by_uuid: dict[str, Checked] = {}
        self._in_sync: frozenset[str] = frozenset()

    # ---- while it runs

    def acknowledge(self, member: Checked, stream: str, record: StoredRecord) -> None:
        """A master acknowledges a put. (3)"""
        core = member.core
        assert core is not None
        self._is_the_master(core.epoch, member)
        self.puts += 1
        self.acknowledged.setdefault(self._key(member, stream), {})[record.offset] = record
        self._see(member, stream, record)

    def read(self, member: Checked, stream: str, records: Sequence[StoredRecord], readable_end: int) -> None:
        """A client reads from a serving member. (2, 5)"""
        self.reads += 1
        for record in records:
            self._see(member, stream, record)
        self._end_moved(member, stream, readable_end)

    def answer(self, batch: int, choice: object) -> None:
        """A master answers with the decision of a batch. (4)"""
        if self.answers.setdefault(batch, choice) != choice:
            raise Violation(4, f"batch {batch} was answered with {self.answers[batch]}, and now with {choice}")

    def promoted(self, member: Checked) -> None:
        """A member begins to serve. (1, 5, 8)"""
        core = member.core
        assert core is not None
        self.promotions += 1
        self._is_the_master(core.epoch, member)
        if member.lost_data:
            raise Violation(8, f"{member.name} lost data, and leads in epoch {core.epoch}")
        if core.epoch < max(self.masters):
            return  # it was elected, and then froze: nothing that it serves is later than what its successor serves
        self._has_all_acknowledged(member)
        for name, stream in member.disk.streams.items():
            self._end_moved(member, name, stream.durable_end)

    def role_changed(self, member: Checked, action: actions.RoleChanged) -> None:
        if action.role is PairRole.MASTER:
            core = member.core
            assert core is not None
            self._is_the_master(core.epoch, member)

    def cut(self, member: Checked, cut: Cut) -> None:
        """A member is about to cut what is not its master's. (6)"""
        for name, end in cut.ends.items():
            stream = member.disk.streams.get(name)
            if stream is None:
                continue
            key = self._key(member, name)
            acknowledged = self.acknowledged.get(key, {})
            if key in self.removed:
                continue
            for record in stream.records[0 if end is None else stream.count_before(end) :]:
                if acknowledged.get(record.offset) == record and not member.lost_data and end is not None:
                    raise Violation(6, f"{member.name} cuts {name} at {end}, and {record} was acknowledged")

    def ended(self, member: Checked) -> None:
        """A process ends, or closes its broker."""

    def stored(self, record: PairRecord) -> None:
        """ZooKeeper has a new record: who was added to the set by its master, with this disk, has everything again."""
        for uuid in record.in_sync - self._in_sync:
            member = self._members_by_uuid.get(uuid)
            if member is None or uuid == record.master:
                continue
            boot, disk = record.members[uuid].boot, member.disk
            if boot in disk.file.boots and boot != disk.damaged_boot:
                member.lost_data, disk.unfit = False, None
        self._in_sync = record.in_sync
        self.epochs.add(record.epoch)

    def member_is(self, uuid: str, member: Checked) -> None:
        self._members_by_uuid[uuid] = member

    def stream_removed(self, member: Checked, name: str) -> None:
        self.removed.add(self._key(member, name))

    # ---- at the end

    def healed(self, members: Sequence[Checked]) -> None:
        """Every member is in sync with one master, and nothing happens any more. (1, 2, 4, 6)"""
        master = next(each for each in members if each.core is not None and each.core.role is PairRole.MASTER)
        self._has_all_acknowledged(master)
        for name, stream in master.disk.streams.items():
            if stream.lost:
                raise Violation(1, f"{master.name} has lost what another member had in {name}: {sorted(stream.lost)}")
            for record in stream.records:
                self._see(master, name, record)
            ids = [record.message_id for record in stream.records]
            if any(one >= other for one, other in itertools.pairwise(ids)):
                raise Violation(2, f"ids of {name} do not rise: {ids}")
        self._batches_are_there_once(master)
        for member in members:
            self._is_identical(member, master)

    def tails_are_kept(self, disks: Sequence[Disk]) -> None:
        """What was cut is in ``lost+found``. (6)"""
        for disk in disks:
            if missing := set(disk.removed) - set(disk.lost_found):
                raise Violation(6, f"a tail was cut and not kept: {sorted(missing)[:3]}")

    def elections(self) -> None:
        """No election without an accident. (7)"""
        if len(self.epochs) > 1 + 2 * self.accidents:
            raise Violation(7, f"{len(self.epochs)} epochs after {self.accidents} accidents")

    def _batches_are_there_once(self, master: Checked) -> None:
        rows: dict[object, list[object]] = {}
        for record in master.disk.streams[ROWS].records:
            if record.content[0] == "row":
                rows.setdefault(record.content[1], []).append(record.content[2])
        for batch, choices in rows.items():
            if len(choices) > 1:
                raise Violation(4, f"batch {batch} is there {len(choices)} times")
        for batch, choice in self.answers.items():
            if rows.get(batch) != [choice]:
                raise Violation(4, f"batch {batch} was answered with {choice}; its rows are {rows.get(batch)}")

    def _is_identical(self, member: Checked, master: Checked) -> None:
        mine, theirs = member.disk.streams, master.disk.streams
        if mine.keys() != theirs.keys():
            raise Violation(6, f"{member.name} has streams {sorted(mine)}, and its master {sorted(theirs)}")
        for name, stream in mine.items():
            if stream.records != theirs[name].records or stream.origin != theirs[name].origin:
                raise Violation(6, f"{name} of {member.name} differs from {name} of {master.name}")
            if stream.indexed != len(stream.records):
                counted = f"{stream.indexed} messages, and there are {len(stream.records)}"
                raise Violation(6, f"the index of {name} of {member.name} counts {counted}")

    # ---- of all

    def _key(self, member: Checked, stream: str) -> StreamName:
        return stream, member.disk.streams[stream].origin.incarnation

    def _see(self, member: Checked, stream: str, record: StoredRecord) -> None:
        key = self._key(member, stream)
        known = self.seen.setdefault(key, {}).setdefault(record.offset, record)
        if known != record:
            raise Violation(2, f"{member.name} has {record} in {stream}; it was read as {known}")

    def _end_moved(self, member: Checked, stream: str, end: int) -> None:
        core, key = member.core, self._key(member, stream)
        assert core is not None
        epoch, known = self._readable.get(key, (0, 0))
        if core.epoch < epoch or key in self.removed:
            return
        if end < known:
            raise Violation(5, f"{stream} was readable up to {known}, and is up to {end} at {member.name}")
        self._readable[key] = core.epoch, end

    def _is_the_master(self, epoch: int, member: Checked) -> None:
        core = member.core
        assert core is not None
        master = member.disk.file.uuid, member.disk.file.boots[-1]
        if self.masters.setdefault(epoch, master) != master:
            raise Violation(3, f"epoch {epoch} has two masters: {self.masters[epoch]} and {master}")

    def _has_all_acknowledged(self, member: Checked) -> None:
        streams = member.disk.streams
        for (name, incarnation), acknowledged in self.acknowledged.items():
            if (name, incarnation) in self.removed:
                continue
            stream = streams.get(name)
            same = stream is not None and stream.origin.incarnation == incarnation
            stored = {record.offset: record for record in stream.records} if same and stream is not None else {}
            for offset, record in acknowledged.items():
                if stored.get(offset) != record:
                    found = stored.get(offset)
                    raise Violation(1, f"{member.name} leads and has {found} in {name}; acknowledged was {record}")
