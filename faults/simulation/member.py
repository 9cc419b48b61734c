"""One member of a history: a process that runs the core, executes its actions and reports what came of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metaq_broker.log.streams.facts import StreamFacts, StreamOrigin
from metaq_broker.replication.pair import actions, events
from metaq_broker.replication.pair.actions import PairAction, PairRole
from metaq_broker.replication.pair.events import PairEvent
from metaq_broker.replication.pair.member import PairIdentity, PairMember, PairSettings
from metaq_broker.replication.pair.messages import PairMessage, StreamRun

from faults.simulation.broker import JOURNAL, ROWS, Serving
from faults.simulation.checker import Checker
from faults.simulation.disk import Cut, Disk, DiskStream, Run, StoredRecord
from faults.simulation.events import Schedule, between
from faults.simulation.network import Network
from faults.simulation.zookeeper import Proposal, StoredVersion, ZooKeeper

TICK_US = 150_000
REOPEN_US = 40_000
CONNECT_US = 60_000


class Killed(Exception):
    """The process ends here."""


@dataclass
class Surroundings:
    """What the members of a history share."""

    schedule: Schedule
    random: Random
    zookeeper: ZooKeeper
    network: Network
    checker: Checker
    settings: PairSettings
    note: Callable[[str], None]
    members: list[SimulatedMember] = field(default_factory=list)
    core: type[PairMember] = PairMember
    serving: type[Serving] = Serving
    has_trace: bool = False
    serials: int = 0


class SimulatedMember:
    """``run`` counts its processes; what a process has started does not reach the next one."""

    def __init__(self, number: int, surroundings: Surroundings, disk: Disk) -> None:
        self.number, self.disk = number, disk
        self.name = f"m{number}"
        self._all = surroundings
        self._random = surroundings.random
        self.run = 0
        self.is_alive = False
        self.is_frozen = False
        self.lost_data = False
        self.has_left = False
        self.clock_offset = 0
        self.actions_until_kill = -1
        self.kill_before = False
        self.kill_at: type | None = None
        self.syncs_fail = False
        self.refused_until = 0
        self.core: PairMember | None = None
        self.serving: Serving | None = None
        self._deferred: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._links: dict[int, int] = {}
        self._lanes: dict[str | None, int] = {}
        self._appends_wait: list[Callable[[], None]] | None = None
        self._unfinished_cut: Cut | None = None
        self._syncing: set[str] = set()
        self._events: deque[PairEvent] = deque()
        self._is_executing = False

    # ---- a process

    def start(self) -> None:
        """Start the process: recover the disk, raise the boot, run the core."""
        if self.is_alive:
            return
        self.run += 1
        self.is_alive, self.is_frozen = True, False
        self._deferred.clear()
        self._call(self.run, self._open, ())

    def _open(self) -> None:
        disk, file = self.disk, self.disk.file
        self._links, self._lanes, self._appends_wait, self._unfinished_cut = {}, {}, None, None
        self._syncing = set()
        self._events.clear()
        self._is_executing = False
        disk.open()
        kept = file.boots
        if self.core is not None and self.core.registered_boot in kept:
            kept = kept[kept.index(self.core.registered_boot) :]
        boot = f"{len(file.boots) + self.run}-{self._random.getrandbits(32):08x}"
        disk.store_file(boots=(*kept, boot))
        unfit = disk.unfit or ("a record is damaged" if disk.is_damaged else None)
        identity = PairIdentity(
            file.uuid, self.name, disk.file.boots, disk.file.promised, disk.file.seen, disk.is_blank, unfit
        )
        self._stop_serving()
        self.core = self._all.core(identity, disk.facts(), self._all.settings)
        self.note(f"opens as {file.uuid}, boot {boot}, promised {file.promised}, {self._ends()}")
        self._all.zookeeper.report(self.number)
        self._execute(self.core.start())
        if self.has_left:
            self.feed(events.LeaveAsked())
        self.after(self._random.randint(0, TICK_US), self._tick)

    def _ends(self) -> str:
        return " ".join(f"{name}:{each.durable_end}" for name, each in sorted(self.disk.streams.items()))

    def kill(self, *, power: bool = False, reason: str = "killed") -> None:
        """End the process; with ``power``, what it had not synced is lost in part."""
        if not self.is_alive:
            return
        self.note(f"{reason}{', power lost' if power else ''}")
        self._end()
        if self._unfinished_cut is not None:
            self.disk.finish_cut(self._unfinished_cut, self._random.randint(0, 4))
            self._unfinished_cut = None
        if power:
            self.disk.lose_power(self._random)
        self._all.network.break_all(self.number, silent=power)

    def _end(self) -> None:
        self.is_alive = False
        self.run += 1
        self._all.checker.ended(self)
        self._stop_serving()
        self.core = None

    def _stop_serving(self) -> None:
        if self.serving is not None:
            self.serving.end()
        self.serving = None

    def _reopen(self) -> None:
        """Close the broker and open it again in the same process."""
        self.note("closes and opens again")
        self._all.checker.ended(self)
        self._all.network.break_all(self.number, silent=False)
        self.run += 1
        if self.syncs_fail:
            self.syncs_fail = False
            self.disk.lose_power(self._random)
        self._open()

    def freeze(self, duration: int) -> None:
        if self.is_alive and not self.is_frozen:
            self.note(f"frozen for {duration // 1000} ms")
            self.is_frozen = True
            run = self.run
            self._all.schedule.after(duration, self._thaw, run)

    def _thaw(self, run: int) -> None:
        if run == self.run and self.is_frozen:
            self.note("thawed")
            self.is_frozen = False
            deferred, self._deferred = self._deferred, []
            for deferred_run, call, arguments in deferred:
                self._call(deferred_run, call, arguments)

    def after(self, delay: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call something in this process, if it still runs; while it is frozen, that waits."""
        self._all.schedule.after(delay, self._call, self.run, call, arguments)

    def _call(self, run: int, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if run != self.run or not self.is_alive:
            return
        if self.is_frozen:
            self._deferred.append((run, call, arguments))
            return
        try:
            call(*arguments)
        except Killed:
            self.kill(power=self._random.random() < 0.5, reason="killed at an action")

    def note(self, text: str) -> None:
        if self._all.has_trace:
            self._all.note(f"{self.name:9}  {text}")

    # ---- the core

    def feed(self, event: PairEvent) -> None:
        """Let the core handle an event; what arises while its actions are executed is handled afterwards."""
        self._events.append(event)
        if self._is_executing:
            return
        run = self.run
        while run == self.run and self._events:
            event = self._events.popleft()
            if self._all.has_trace and not isinstance(event, events.Tick):
                self.note(f"event   {event}")
            assert self.core is not None
            self._execute(self.core.handle(event))

    def _execute(self, done: list[PairAction]) -> None:
        run, self._is_executing = self.run, True
        for action in done:
            if run != self.run:
                return
            self.actions_until_kill -= 1
            if type(action) is self.kill_at:
                self.actions_until_kill, self.kill_at = 0, None
            if self.actions_until_kill == 0 and self.kill_before:
                raise Killed
            if self._all.has_trace:
                self.note(f"action  {action}")
            _EXECUTE[type(action)](self, action)
            if self.actions_until_kill == 0:
                self.actions_until_kill = -1
                raise Killed
        self._is_executing = False

    def _tick(self) -> None:
        core, zookeeper = self.core, self._all.zookeeper
        assert core is not None
        had_session = zookeeper.has_session(self.number)
        zookeeper.report(self.number)
        if not had_session and zookeeper.has_session(self.number):
            self.feed(events.RecordChanged())
        self.feed(events.Tick())
        record = core.record
        if record is None:
            for other in self._all.members:
                if other is not self and other.is_alive and zookeeper.has_session(other.number):
                    self.feed(events.MemberSeen(other.disk.file.uuid, other.disk.is_blank))
        elif core.role in (PairRole.LEARNER, PairRole.IN_SYNC):
            self._look_for_master(record.master)
        elif core.role is PairRole.MASTER:
            self._connect()
        self.after(TICK_US, self._tick)

    def _look_for_master(self, uuid: str) -> None:
        master = next((each for each in self._all.members if each.disk.file.uuid == uuid), None)
        zookeeper = self._all.zookeeper
        if master is self:
            return
        is_reachable = master is not None and not self._all.network.is_cut(self.number, master.number)
        if (
            master is not None
            and is_reachable
            and not master.is_alive
            and master.refused_until > self._all.schedule.now
        ):
            self.feed(events.MasterLost(uuid, "connection refused"))
        elif zookeeper.has_session(self.number) and (master is None or not zookeeper.has_session(master.number)):
            self.feed(events.MasterLost(uuid, "its session has ended"))

    def _connect(self) -> None:
        for other in self._all.members:
            answers = other.is_alive and not other.is_frozen and not self._all.network.is_cut(self.number, other.number)
            if other is not self and other.number not in self._links.values() and answers:
                link = self._all.network.connect(self.number, other.number)
                self._links[link] = other.number
                self.after(self._random.randint(200, 2_000), self.feed, events.LinkUp(link))

    def receive(self, link: int, message: PairMessage) -> None:
        """Called by the network."""
        self._call(self.run, self.feed, (events.MessageArrived(link, message),))

    def lost_link(self, link: int, reason: str) -> None:
        """Called by the network."""
        self._call(self.run, self._lost_link, (link, reason))

    def _lost_link(self, link: int, reason: str) -> None:
        self._links.pop(link, None)
        self.feed(events.LinkDown(link, reason))
        if self.core is not None and self.core.role is PairRole.MASTER:
            self.after(CONNECT_US, self._connect)
        elif reason == "reset" and self.core is not None and self.core.record is not None:
            self._look_for_master(self.core.record.master)

    # ---- actions: the broker

    def _role_changed(self, action: actions.RoleChanged) -> None:
        self._all.checker.role_changed(self, action)
        if action.role is PairRole.MASTER:
            if self.serving is None:
                self._promote()
            self._connect()
        elif action.role is PairRole.FENCED:
            self._stop_serving()
            self.after(REOPEN_US, self._reopen)

    def _promote(self) -> None:
        self.serving = self._all.serving(self.disk, self.clock, self._append, self.when_ready)
        for name, stream in self.disk.streams.items():
            self.serving.readable[name] = stream.durable_end
        self._all.checker.promoted(self)
        self.after(0, self._recover)

    def _recover(self) -> None:
        if self.serving is not None:
            for name in (JOURNAL, ROWS, "t-1"):
                if name not in self.disk.streams:
                    self.add_stream(name)
            self.serving.recover()

    def add_stream(self, name: str) -> None:
        start = 0
        origin = StreamOrigin(name, f"{self._random.getrandbits(64):016x}", start)
        self.disk.streams[name] = DiskStream(origin)
        self.feed(events.StreamAdded(StreamFacts(origin, start, ())))

    def remove_stream(self, name: str) -> None:
        self._all.checker.stream_removed(self, name)
        del self.disk.streams[name]
        if self.serving is not None:
            self.serving.readable.pop(name, None)
            self.serving.waiting.pop(name, None)
        self.feed(events.StreamRemoved(name))

    def change_stream(self, name: str) -> None:
        """Delete a stream and create it anew."""
        if self.serving is not None and name in self.disk.streams:
            self.remove_stream(name)
            self.when_ready(lambda: self.add_stream(name))

    def replace_disk(self, disk: Disk) -> None:
        """Start from another disk, whatever was on the last one."""
        self.disk, self.lost_data = disk, True
        self.disk.is_full, self.disk.slowness = False, 1
        self._all.checker.member_is(disk.file.uuid, self)

    def clock(self) -> int:
        return self._all.schedule.now + self.clock_offset

    def _append(self, name: str, record: StoredRecord) -> None:
        assert self._appends_wait is None, "an append while the epoch begins"
        stream = self.disk.streams[name]
        stream.append(record)
        if self._random.random() < 0.5:
            self.feed(events.BytesWritten(name, stream.end))
        self._sync(name)

    def _sync(self, name: str) -> None:
        if name not in self._syncing:
            self._syncing.add(name)
            self.after(0, self._start_sync, name)

    def _start_sync(self, name: str) -> None:
        """A sync is under way; what is appended meanwhile goes with the next one."""
        if (stream := self.disk.streams.get(name)) is not None:
            self._after_disk(name, self._synced, name, stream, len(stream.records))
        else:
            self._syncing.discard(name)

    def _synced(self, name: str, stream: DiskStream, count: int) -> None:
        self._syncing.discard(name)
        now = self.disk.streams.get(name)
        if now is not stream:
            if now is not None and len(now.records) > now.durable:  # deleted and created again meanwhile
                self._sync(name)
            return
        if self.syncs_fail:
            self.feed(events.DiskFailed("fsync: EIO"))
            return
        stream.durable = max(stream.durable, count)
        if len(stream.records) > count:
            self._sync(name)
        self.feed(events.BytesSynced(name, stream.durable_end))

    def _gate_moved(self, action: actions.GateMoved) -> None:
        if self.serving is not None:
            self.serving.gate_is_open = action.open
            if not action.open and not action.keeps_waiting:
                self.serving.refuse_waiting()

    def _move_readable_end(self, action: actions.MoveReadableEnd) -> None:
        if self.serving is not None:
            self.serving.move_readable_end(action.stream, action.end)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call at once, or when the epoch has begun for which appends wait."""
        if self._appends_wait is not None:
            self._appends_wait.append(call)
        else:
            call()

    # ---- actions: ZooKeeper

    def _read_record(self, action: actions.ReadRecord) -> None:
        run = self.run

        def answer(stored: StoredVersion | None, could: bool) -> None:
            if not could:
                event: PairEvent = events.RecordUnreadable("connection lost")
            elif stored is None:
                event = events.RecordRead(None, -1)
            else:
                event = events.RecordRead(stored.record, stored.version)
            self._call(run, self.feed, (event,))

        self._all.zookeeper.read(self.number, answer)

    def _change_record(self, action: actions.ChangeRecord) -> None:
        run = self.run

        def answer(outcome: events.ChangeOutcome, version: int) -> None:
            self._call(run, self.feed, (events.ChangeAnswered(action.ticket, outcome, version),))

        self._all.zookeeper.change(self.number, Proposal(action.version, action.record), answer)

    def watch(self) -> None:
        """Called by ZooKeeper."""
        self._call(self.run, self.feed, (events.RecordChanged(),))

    # ---- actions: messages

    def _send(self, action: actions.SendToMember) -> None:
        self._all.network.send(self.number, action.link, action.message)

    def _send_run(self, action: actions.SendRun) -> None:
        stream = self.disk.streams[action.stream]
        records, damaged = stream.between(action.offset, action.end), stream.damaged | stream.lost
        size = between(self._random, 1, 8)
        for first in range(0, len(records), size):
            part = records[first : first + size]
            run = Run(part, frozenset(each.offset for each in part if each.offset in damaged))
            message = StreamRun(action.epoch, action.stream, part[0].offset, part[-1].end, run)
            self._all.network.send(self.number, action.link, message)

    def _close_link(self, action: actions.CloseLink) -> None:
        self._links.pop(action.link, None)
        self._all.network.close(self.number, action.link)
        self.after(CONNECT_US, self._connect_if_master)

    def _connect_if_master(self) -> None:
        if self.core is not None and self.core.role is PairRole.MASTER:
            self._connect()

    # ---- actions: the disk

    def _after_disk(self, lane: str | None, call: Callable[..., None], *arguments: Any) -> None:
        """Call when the disk has done something; what is for all streams waits for everything before it."""
        delay = between(self._random, 100, 3_000) * self.disk.slowness
        before = max(self._lanes.values(), default=0) if lane is None else self._lanes.get(lane, 0)
        at = max(self._all.schedule.now + delay, before, self._lanes.get(None, 0))
        self._lanes[lane] = at
        self.after(at - self._all.schedule.now, call, *arguments)

    def _done(self, number: int, effect: Callable[[], None]) -> None:
        effect()
        self.feed(events.DiskDone(number))

    def _store_promise(self, action: actions.StorePromise) -> None:
        def store() -> None:
            self.disk.store_file(promised=action.promised, seen=action.seen)

        self._after_disk(None, self._done, action.number, store)

    def _begin_epoch(self, action: actions.BeginEpoch) -> None:
        self._appends_wait = []
        if self.serving is None:
            for name, stream in self.disk.streams.items():
                if stream.damaged:  # the core knows it up to the damage
                    self.feed(events.BytesWritten(name, stream.end))
                    self.feed(events.BytesSynced(name, stream.durable_end))
        starts = {name: stream.end for name, stream in self.disk.streams.items()}
        self._after_disk(None, self._epoch_begun, action.epoch, starts)

    def _epoch_begun(self, epoch: int, starts: Mapping[str, int]) -> None:
        self.disk.begin_epoch(epoch, starts)
        waiting, self._appends_wait = self._appends_wait or [], None
        self.feed(events.EpochBegun(epoch, starts))
        for call in waiting:
            self.after(0, call)

    def _cut_streams(self, action: actions.CutStreams) -> None:
        cut = Cut(action.cuts)
        self._unfinished_cut = cut
        opens_again = self._random.random() < 0.5

        def ended() -> None:
            self._all.checker.cut(self, cut)
            self.disk.finish_cut(cut)
            self._unfinished_cut = None
            if opens_again:
                self._reopen()
            else:
                self.feed(events.DiskDone(action.number))

        self._after_disk(None, ended)

    def _adopt_streams(self, action: actions.AdoptStreams) -> None:
        self._after_disk(None, self._done, action.number, lambda: self.disk.adopt(action.streams))

    def _write_run(self, action: actions.WriteRun) -> None:
        stream = self.disk.streams[action.stream]
        assert stream.end == action.offset, "a run in the wrong place"
        if self.disk.is_full:
            self.feed(events.DiskFailed("no space"))
            return
        assert isinstance(action.run, Run)
        for record in action.run.records:
            stream.append(record)
        stream.lost |= action.run.lost
        count = len(stream.records)

        def synced() -> None:
            if self.syncs_fail:
                self.feed(events.DiskFailed("fsync: EIO"))
                return
            stream.durable = max(stream.durable, count)
            self.feed(events.DiskDone(action.number))

        self._after_disk(action.stream, synced)

    def _trim_stream(self, action: actions.TrimStream) -> None:
        """Retention is not part of a history."""


_EXECUTE: dict[type, Callable[[SimulatedMember, Any], None]] = {
    actions.RoleChanged: SimulatedMember._role_changed,
    actions.GateMoved: SimulatedMember._gate_moved,
    actions.MoveReadableEnd: SimulatedMember._move_readable_end,
    actions.ReadRecord: SimulatedMember._read_record,
    actions.ChangeRecord: SimulatedMember._change_record,
    actions.SendToMember: SimulatedMember._send,
    actions.SendRun: SimulatedMember._send_run,
    actions.CloseLink: SimulatedMember._close_link,
    actions.StorePromise: SimulatedMember._store_promise,
    actions.BeginEpoch: SimulatedMember._begin_epoch,
    actions.CutStreams: SimulatedMember._cut_streams,
    actions.AdoptStreams: SimulatedMember._adopt_streams,
    actions.WriteRun: SimulatedMember._write_run,
    actions.TrimStream: SimulatedMember._trim_stream,
}
