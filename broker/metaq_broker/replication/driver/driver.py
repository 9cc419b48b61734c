"""Runs the core of a pair in the broker: everything that happens becomes an event, every action is carried out.

The core is called on the event loop, one event after the other; an event that happens while another one is handled
waits. Actions that take time (ZooKeeper, the disk, connections) run as tasks; actions of one kind keep their order.

Source: docs/replication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from metaq.errors import MetaqError
from metaq.model import Address, Buffer
from metaq_broker.log.streams.facts import StreamOrigin
from metaq_broker.log.streams.stream import PairStream, PairStreams, StreamRefused
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.followed import FollowedStreams
from metaq_broker.replication.driver.leader_links import LeaderLinks
from metaq_broker.replication.driver.links import IncomingLink, LinkEnd, OpenLink
from metaq_broker.replication.driver.store import Conflict, LiveMember, PairStore, StoreAway, StoreRefused
from metaq_broker.replication.driver.wire import MessageUnreadable, decode_message, encode_message
from metaq_broker.replication.pair import actions, events
from metaq_broker.replication.pair.actions import PairAction, PairRole
from metaq_broker.replication.pair.events import ChangeOutcome, PairEvent
from metaq_broker.replication.pair.member import PairIdentity, PairMember, PairSettings
from metaq_broker.replication.pair.messages import PairWelcome
from metaq_broker.replication.pair.record import PairRecord, PairRecordInvalid

_LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.15

ASK_S: Final = 0.05
ASK_S_MAX: Final = 0.5
"""First and longest pause between two attempts to connect to a master whose connection is lost."""

LOOK_S: Final = 1.0
"""Seconds between two looks at who is alive, without a change that is notified."""

REPORT_S: Final = 0.5
"""Least seconds between two reports of where the streams begin."""

SWITCH_S: Final = 1.0
"""A planned switch is given up after this time: no put waits longer."""

OUTCOME_S: Final = 2.0
"""Longest wait for the end of an election that had begun when the switch was given up."""


class MemberStore(Protocol):
    """The member's file. Every change is durable when it returns; calls block."""

    def promise(self, promised: int, seen: int) -> None:
        """Store both epochs. Raises ``OSError``."""

    def registered(self, boot: str) -> None:
        """Forget the boots before ``boot``. Raises ``OSError``."""


class PairHost(Protocol):
    """The broker, as the driver needs it."""

    async def lead(self) -> None:
        """Recover transactions and state, serve clients, register. Raises ``MetaqError``."""

    def move_gate(self, *, is_open: bool, reason: str, hands_over: bool) -> None:
        """Take puts, or refuse them; ``hands_over``: because the other member is being elected."""

    def member_follows(self) -> None:
        """Note that the other member follows: if it was the master before, it has given way by now."""

    def end_leading(self, reason: str) -> None:
        """Refuse what waits, end all sessions, close everything, and open it again."""


@dataclass(frozen=True, slots=True)
class DriverParts:
    """What a driver works with."""

    config: PairConfig
    identity: PairIdentity
    streams: PairStreams
    store: PairStore
    open_link: OpenLink
    file: MemberStore
    host: PairHost


class PairDriver:
    """One for each opening of a broker: ``start`` when all logs are durable, ``stop`` before they are closed."""

    def __init__(self, parts: DriverParts) -> None:
        self._parts = parts
        settings = PairSettings(min_in_sync=parts.config.min_in_sync)
        self.member = PairMember(parts.identity, parts.streams.facts(), settings)
        self._waiting: deque[PairEvent] = deque()
        self._is_handling = self._has_ended = self._is_stopped = self._leads = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, asyncio.Queue[Callable[[], Awaitable[None]]]] = {}
        self._incoming: dict[int, IncomingLink] = {}
        self._last_link = 0
        self._followed = FollowedStreams(parts.streams, self._feed)
        self._links = LeaderLinks(parts.config, parts.streams, parts.open_link, self._heard, self._next_link)
        self._has_changed = asyncio.Event()
        self._is_without_link = asyncio.Event()
        self._is_without_link.set()
        self.live: Mapping[str, LiveMember] = {}
        self.store_trouble: str | None = "ZooKeeper was not asked yet"
        self._noted_trouble: str | None = None
        self.elections = 0
        self._without_master_since_s: float | None = asyncio.get_running_loop().time()
        self._without_master_s = 0.0
        self._is_replaced = asyncio.Event()
        self._successor: str | None = None
        self._registered_boot: str | None = None
        self._starts: dict[str, StreamOrigin] = {}
        self._starts_reported_s = 0.0
        self._carry_out: dict[type, Callable[[Any], None]] = {
            actions.RoleChanged: self._role_changed,
            actions.GateMoved: self._gate_moved,
            actions.MoveReadableEnd: self._move_readable_end,
            actions.ReadRecord: lambda _: self._one_by_one("store", self._read_record),
            actions.ChangeRecord: lambda action: self._one_by_one("store", lambda: self._change_record(action)),
            actions.SendToMember: self._send,
            actions.SendRun: lambda action: self._links.send_run(action),
            actions.CloseLink: self._close_link,
            actions.StorePromise: lambda action: self._one_by_one("promise", lambda: self._store_promise(action)),
            actions.BeginEpoch: lambda action: self._one_by_one("epoch", lambda: self._begin_epoch(action.epoch)),
            actions.CutStreams: self._followed.cut,
            actions.AdoptStreams: self._followed.adopt,
            actions.WriteRun: self._followed.write,
            actions.TrimStream: self._followed.trim,
        }

    # ---- start and stop

    def start(self) -> None:
        self._parts.store.watch(self._store_changed)
        self._one_by_one("store", self._announce_first)  # a recorded master must be alive for the other member
        self._spawn(self._look(), "pair: who is alive")
        self._spawn(self._ticks(), "pair: ticks")
        self._spawn(self._ask_master(), "pair: is the master there")
        self._perform(self.member.start())

    async def stop(self) -> None:
        """Stop after the operations of the disk that are in progress; nothing is acknowledged any more."""
        if self._is_stopped:
            return
        self._has_ended = self._is_stopped = True
        self._links.close()
        for link in self._incoming.values():
            link.close()
        self._incoming.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._followed.stop()
        self._parts.streams.end("the broker is stopping")
        await self._parts.store.close()

    # ---- events and actions

    def _feed(self, event: PairEvent) -> None:
        if self._has_ended:
            return
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting and not self._has_ended:
                self._perform(self.member.handle(self._waiting.popleft()))
        finally:
            self._is_handling = False
        self._note_trouble()

    def _note_trouble(self) -> None:
        """Log why this member cannot do its part, when that has changed."""
        before, self._noted_trouble = self._noted_trouble, self.member.trouble
        if self._noted_trouble not in (None, before):
            _LOG.warning("trouble in the pair", extra={"fields": {"reason": self._noted_trouble}})

    def _heard(self, event: PairEvent) -> None:
        """Take an event of this master's connection to the other member."""
        self._feed(event)
        if isinstance(event, events.MessageArrived) and isinstance(event.message, PairWelcome):
            self._parts.host.member_follows()

    def _perform(self, found: list[PairAction]) -> None:
        for action in found:
            self._carry_out[type(action)](action)

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as defect:  # the member must not go on with half of its parts
            _LOG.exception("bug in a member of a pair")
            self._feed(events.DiskFailed(f"{type(defect).__name__}: {defect}"))

    def _one_by_one(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` after earlier work of the same ``name``."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = asyncio.Queue()
            self._spawn(self._run_queue(queue), f"pair: {name}")
        queue.put_nowait(work)

    @staticmethod
    async def _run_queue(queue: asyncio.Queue[Callable[[], Awaitable[None]]]) -> None:
        while True:
            await (await queue.get())()

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._check_master()
            self._report_starts()
            self._feed(events.Tick())

    def _report_starts(self) -> None:
        """Report what retention has deleted on a master, about once a second: members do not need it any more."""
        now_s = asyncio.get_running_loop().time()
        if not self._leads or now_s - self._starts_reported_s < REPORT_S:
            return
        self._starts_reported_s = now_s
        for stream in self._parts.streams.all():
            origin = stream.origin
            if origin is not None and origin.start and origin != self._starts.get(origin.name):
                self._starts[origin.name] = origin
                self._feed(events.StreamTrimmed(origin.name, origin.start, origin.ordinal))

    # ---- roles

    def _role_changed(self, action: actions.RoleChanged) -> None:
        fields = {"epoch": action.epoch, "master": self._address_of(action.master), "reason": action.reason}
        _LOG.warning("role in the pair: %s", action.role.value, extra={"fields": fields})
        self._note_master(action.master if action.role is not PairRole.CANDIDATE else None)
        if action.role is PairRole.MASTER:
            self.elections += 1
            if not self._leads:
                self._leads = True
                self._links.start()
                self._spawn(self._lead(), "pair: begin to serve")
        elif action.role is PairRole.FENCED:
            self._has_ended = True
            if self._leads and action.master is not None:
                self._successor = action.master
                self._is_replaced.set()
            self._parts.host.end_leading(action.reason)  # first: sessions end without an answer
            self._parts.streams.fence(action.reason)

    async def _lead(self) -> None:
        try:
            await self._parts.host.lead()
        except MetaqError as error:
            _LOG.error("elected, but clients cannot be served", extra={"fields": {"reason": str(error)}})
            self._feed(events.DiskFailed(str(error)))

    def _gate_moved(self, action: actions.GateMoved) -> None:
        if not action.open and not action.keeps_waiting:
            self._parts.streams.refuse_waiting(action.reason)
        self._parts.host.move_gate(is_open=action.open, reason=action.reason, hands_over=action.keeps_waiting)

    def _move_readable_end(self, action: actions.MoveReadableEnd) -> None:
        stream = self._parts.streams.get(action.stream)
        if stream is not None:
            stream.confirm(action.end)

    def _address_of(self, uuid: str | None) -> str:
        record = self.member.record
        entry = None if record is None or uuid is None else record.members.get(uuid)
        return "-" if entry is None else entry.address

    @property
    def master_address(self) -> str:
        """The address of the recorded master, or of the one that has replaced this one; ``-`` if there is none."""
        record = self.member.record
        return "-" if record is None else self._address_of(self._successor or record.master)

    # ---- the record

    async def _read_record(self) -> None:
        try:
            found = await self._parts.store.read()
            record = None if found is None else PairRecord.from_json(found.content)
        except (StoreAway, StoreRefused) as error:
            self._store_failed(str(error))
            self._feed(events.RecordUnreadable(str(error)))
        except PairRecordInvalid as error:
            self._store_failed(f"the record of the pair in ZooKeeper cannot be used: {error}")
            self._feed(events.RecordUnreadable(str(error)))
        else:
            self.store_trouble = None
            self._feed(events.RecordRead(record, -1 if found is None else found.version))
            await self._note_boot()

    async def _note_boot(self) -> None:
        """Forget the boots before the recorded one: the record has the boot of this start now."""
        boot = self.member.registered_boot
        if boot is not None and boot != self._registered_boot:
            self._registered_boot = boot
            try:
                await asyncio.to_thread(self._parts.file.registered, boot)
            except OSError as error:  # the file only gets longer
                _LOG.warning("old boots are not forgotten", extra={"fields": {"reason": str(error)}})

    async def _change_record(self, action: actions.ChangeRecord) -> None:
        try:
            found = await self._parts.store.compare_and_set(action.version, action.record.to_json())
        except (StoreAway, StoreRefused) as error:
            self._store_failed(str(error))
            self._feed(events.ChangeAnswered(action.ticket, ChangeOutcome.UNKNOWN))
            return
        if found is Conflict.CONFLICT:
            self._feed(events.ChangeAnswered(action.ticket, ChangeOutcome.CONFLICT))
        else:
            self._feed(events.ChangeAnswered(action.ticket, ChangeOutcome.CHANGED, found))

    def _store_failed(self, reason: str) -> None:
        if reason != self.store_trouble:
            _LOG.warning("the record of the pair cannot be read or changed", extra={"fields": {"reason": reason}})
        self.store_trouble = reason

    def _store_changed(self) -> None:
        self._has_changed.set()
        self._feed(events.RecordChanged())

    # ---- who is alive

    async def _announce_first(self) -> None:
        """Announce this member; if that fails, ``_look`` tries again."""
        with contextlib.suppress(StoreAway, StoreRefused):
            await self._announce()

    async def _announce(self) -> None:
        identity = self._parts.identity
        await self._parts.store.announce(identity.uuid, LiveMember(identity.address, identity.blank))

    async def _look(self) -> None:
        """Announce this member, and look who else is alive, whenever that may have changed."""
        identity, store = self._parts.identity, self._parts.store
        is_announced = False
        while True:
            self._has_changed.clear()
            try:
                if not is_announced:
                    await self._announce()
                self.live = await store.alive()
                is_announced = identity.uuid in self.live  # not if somebody has deleted its node
            except (StoreAway, StoreRefused):
                self.live = {}
                self._live_is_known = False
            else:
                self._live_is_known = True
                for uuid, each in self.live.items():
                    if uuid != identity.uuid:
                        self._feed(events.MemberSeen(uuid, each.blank))
                self._check_master()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._has_changed.wait()
            except TimeoutError:
                pass

    _live_is_known = False

    def _check_master(self) -> None:
        """Report a master whose session has ended."""
        record = self.member.record
        if record is None or not self._live_is_known or self._leads:
            return
        if record.master != self._parts.identity.uuid and record.master not in self.live:
            self._feed(events.MasterLost(record.master, "its session in ZooKeeper has ended"))

    def _note_master(self, master: str | None) -> None:
        loop_s = asyncio.get_running_loop().time()
        if master is None:
            self._without_master_since_s = self._without_master_since_s or loop_s
        elif self._without_master_since_s is not None:
            self._without_master_s += loop_s - self._without_master_since_s
            self._without_master_since_s = None

    @property
    def seconds_without_master(self) -> float:
        """How long the pair had no master since this member was opened, as far as it knows."""
        since_s = self._without_master_since_s
        now = 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s
        return self._without_master_s + now

    # ---- messages

    def _next_link(self) -> int:
        self._last_link += 1
        return self._last_link

    def opened(self, link: IncomingLink) -> LinkEnd:
        """Take a connection of the other member."""
        number = self._next_link()
        self._incoming[number] = link
        return _IncomingEnd(self, number)

    def received(self, number: int, content: Buffer) -> None:
        """Take a message of an incoming link; its memory is used for others when this returns."""
        if number not in self._incoming:
            return
        try:
            message = decode_message(content)
        except MessageUnreadable as error:
            _LOG.warning("a message of the other member cannot be read", extra={"fields": {"reason": str(error)}})
            self._incoming.pop(number).close()
            self._feed(events.LinkDown(number, str(error)))
        else:
            self._feed(events.MessageArrived(number, message))

    def lost(self, number: int) -> None:
        """An incoming link has ended."""
        if self._incoming.pop(number, None) is not None:
            self._feed(events.LinkDown(number, "the connection is lost"))
            self._is_without_link.set()

    async def _ask_master(self) -> None:
        """While there is no link, ask whether the master's host refuses connections; silence says nothing.

        A process that is being killed may accept connections for a moment after others were closed.
        """
        while True:
            await self._is_without_link.wait()
            record, pause_s = self.member.record, ASK_S
            while not self._incoming and not self._leads:
                record = self.member.record
                if record is not None and record.master != self._parts.identity.uuid:
                    entry = record.members.get(record.master)  # none if another member has taken its address
                    is_refused = entry is not None and await self._links.is_refused(Address.parse(entry.address))
                    if is_refused and not self._incoming:  # it may have connected meanwhile
                        self._feed(events.MasterLost(record.master, "it refuses connections"))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, ASK_S_MAX)
            self._is_without_link.clear()

    def _send(self, action: actions.SendToMember) -> None:
        link = self._incoming.get(action.link)
        if link is not None:
            link.send(b"".join(encode_message(action.message)))
        else:
            self._links.send(action.link, action.message)

    def _close_link(self, action: actions.CloseLink) -> None:
        _LOG.info("connection between the members closed", extra={"fields": {"reason": action.reason}})
        link = self._incoming.pop(action.link, None)
        if link is not None:
            link.close()
        else:
            self._links.close_link(action.link)

    # ---- the disk

    async def _store_promise(self, action: actions.StorePromise) -> None:
        try:
            await asyncio.to_thread(self._parts.file.promise, action.promised, action.seen)
        except (OSError, MetaqError) as error:
            self._feed(events.DiskFailed(f"the promise of epoch {action.promised} cannot be stored: {error}"))
        else:
            self._feed(events.DiskDone(action.number))

    async def _begin_epoch(self, epoch: int) -> None:
        streams = self._parts.streams
        try:
            if not self._leads:
                streams.lead(_Leader(self._feed, streams))
            starts = await streams.begin_epoch(epoch)
        except StreamRefused as refused:
            self._feed(events.DiskFailed(f"epoch {epoch} cannot begin: {refused}"))
        else:
            self._feed(events.EpochBegun(epoch, starts))
            for name in starts.keys() - self.member.stream_names:  # they got their incarnation with this epoch
                if (stream := streams.get(name)) is not None and (facts := streams.facts_of(stream)) is not None:
                    self._feed(events.StreamAdded(facts))

    # ---- operators

    @property
    def links_trouble(self) -> str | None:
        """Why there is no connection to the other member."""
        return self._links.trouble

    async def switch(self) -> bool:
        """Hand over to the other member; return whether that happened. After ``SWITCH_S``, puts are taken again; an
        election that has begun by then may be won for ``OUTCOME_S`` more.
        """
        if await self.hand_over():
            return True
        self._feed(events.SwitchExpired())
        return await self._is_replaced_within(OUTCOME_S)

    async def hand_over(self) -> bool:
        """Hand over, and take no more puts; return whether the other member was elected within ``SWITCH_S``."""
        self._feed(events.SwitchAsked())
        return await self._is_replaced_within(SWITCH_S)

    async def _is_replaced_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_replaced.wait()
        return self._is_replaced.is_set()

    def leave(self) -> None:
        """Leave the set in sync, and stay outside until ``join``, or until the broker is restarted."""
        self._feed(events.LeaveAsked())
        self._end_links("this member leaves")

    def join(self) -> None:
        self._feed(events.JoinAsked())
        self._end_links("this member joins again")

    def _end_links(self, reason: str) -> None:
        """End the master's connections: the next welcome says whether this member joins."""
        for number, link in list(self._incoming.items()):
            del self._incoming[number]
            link.close()
            self._feed(events.LinkDown(number, reason))


@dataclass(frozen=True, slots=True)
class _IncomingEnd:
    """Implements ``LinkEnd``."""

    driver: PairDriver
    number: int

    def received(self, content: Buffer) -> None:
        self.driver.received(self.number, content)

    def lost(self) -> None:
        self.driver.lost(self.number)


@dataclass(frozen=True, slots=True)
class _Leader:
    """Implements ``Leader``: what the streams of a master report becomes events."""

    feed: Callable[[PairEvent], None]
    streams: PairStreams

    def stream_added(self, stream: PairStream) -> None:
        if (facts := self.streams.facts_of(stream)) is not None:
            self.feed(events.StreamAdded(facts))

    def stream_removed(self, name: str) -> None:
        self.feed(events.StreamRemoved(name))

    def written(self, name: str, end: int) -> None:
        self.feed(events.BytesWritten(name, end))

    def synced(self, name: str, end: int) -> None:
        self.feed(events.BytesSynced(name, end))
