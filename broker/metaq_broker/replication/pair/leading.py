"""The master's side: what is sent to whom, what is confirmed, and who should be in the set in sync.

A byte is confirmed when it is durable here and at every other member of ``known`` and ``proposed``: the set that was
read last, and all sets that may have been stored since. So whichever of these sets is the one in ZooKeeper, each of its
members has every confirmed byte, and may lead.

A member that lacks little is waited for before it is proposed. Otherwise, while clients put, it would never have every
confirmed byte: the last ones are always on their way to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq_broker.log.streams.facts import EpochStart, StreamFacts
from metaq_broker.replication.pair.actions import CloseLink, GateMoved, MoveReadableEnd, SendRun
from metaq_broker.replication.pair.messages import (
    BeginStreams,
    ElectYourself,
    EndsMoved,
    PairHello,
    PairWelcome,
    RemoveStreams,
    RunStored,
    StreamEnds,
    StreamsBegun,
    StreamStart,
)
from metaq_broker.replication.pair.outbox import Outbox
from metaq_broker.replication.pair.record import PairRecord
from metaq_broker.replication.pair.streams import StreamState, agreed_end

JOIN_BYTES: Final = 4 << 20
"""A member outside the set that lacks no more bytes than these is waited for, so that it can join."""


@dataclass(slots=True)
class _Copy:
    """Another member, on one link: what it has durably, and what was sent, by stream.

    ``asked``: the incarnations in each ``BeginStreams`` without an answer; ``begun`` once the first one is answered.
    ``has_stored``: its disk works; ``is_awaited``: it lacked little at some time; ``knows_ends``: it got all ends.
    """

    link: int
    uuid: str | None = None
    boot: str = ""
    joins: bool = False
    begun: bool = False
    has_stored: bool = False
    is_awaited: bool = False
    knows_ends: bool = False
    asked: deque[dict[str, str]] = field(default_factory=deque)
    stored: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)


class Leading:
    """From the beginning of ``epoch`` on. ``known`` is the set in ZooKeeper as it was read last."""

    def __init__(self, uuid: str, epoch: int, logs: dict[str, StreamState], outbox: Outbox, min_in_sync: int) -> None:
        self._uuid, self._logs, self._outbox = uuid, logs, outbox
        self._min_in_sync = min_in_sync
        self.epoch = epoch
        self.known: frozenset[str] = frozenset({uuid})
        self.proposed: frozenset[str] = frozenset()
        self.switching_to: str | None = None
        self._was_asked_to_elect = False
        self._ends_to_wait_for: dict[str, int] = {}
        self._gate: GateMoved | None = None
        self._links: dict[int, _Copy] = {}
        self._members: dict[str, _Copy] = {}
        self._reported: dict[str, StreamEnds] = {}

    def begin(self, epoch: int, starts: Mapping[str, int]) -> None:
        """The epoch's entries are durable, and this member alone is in the set: what is durable is confirmed."""
        self.epoch = epoch
        for name, log in self._logs.items():
            log.epochs = (*log.epochs, EpochStart(epoch, starts.get(name, log.written)))
        self.set_known(frozenset({self._uuid}))

    # ---- the set

    def set_known(self, in_sync: frozenset[str]) -> None:
        """The record was read in a later version: no older proposal can be stored any more."""
        self.known, self.proposed = in_sync, frozenset()
        self._move_gate()
        self._advance_all()

    def wanted(self, record: PairRecord, heard: int | None) -> frozenset[str]:
        """Return who should be in the set: this member, and whoever has everything that is confirmed.

        ``heard``: the link whose message has just arrived.
        """
        found = {self._uuid}
        for uuid, copy in self._members.items():
            is_fit = self._has_lost_nothing(copy) if uuid in self.known else self._may_join(copy, record, heard)
            if copy.begun and copy.joins and is_fit:
                found.add(uuid)
        return frozenset(found)

    def may_grow(self, link: int) -> bool:
        """Whether that member is not in the set yet."""
        copy = self._links.get(link)
        return copy is not None and copy.begun and copy.uuid not in self.known

    def propose(self, in_sync: frozenset[str]) -> None:
        """Wait for the members of a set that is about to be stored, until a later version of the record is read."""
        self.proposed |= in_sync

    def _may_join(self, copy: _Copy, record: PairRecord, heard: int | None) -> bool:
        """Who is waited for has what is confirmed, dead or alive: then it must just have said so."""
        entry = record.members.get(copy.uuid or "")
        is_registered = entry is not None and entry.boot == copy.boot
        if copy.is_awaited and copy.link != heard:
            return is_registered and all(copy.stored.get(name, -1) >= log.durable for name, log in self._logs.items())
        return is_registered and all(self._has(copy, name, -1) for name in self._logs)

    def _has_lost_nothing(self, copy: _Copy) -> bool:
        """Of a member of the set. A stream that it does not have yet was added since, so nothing of it is confirmed."""
        return all(self._has(copy, name, log.confirmed) for name, log in self._logs.items())

    def _has(self, copy: _Copy, name: str, otherwise: int) -> bool:
        return copy.stored.get(name, otherwise) >= self._logs[name].confirmed

    def await_the_near(self) -> None:
        """Wait for members that may join and lack little, until they have joined or their connections end."""
        for uuid, copy in self._members.items():
            may_join = copy.begun and copy.joins and copy.has_stored and uuid not in self.known
            if may_join and not copy.is_awaited and self._missing_bytes(copy) <= JOIN_BYTES:
                copy.is_awaited = True

    def _missing_bytes(self, copy: _Copy) -> int:
        return sum(log.written - copy.stored.get(name, log.origin.start) for name, log in self._logs.items())

    def _waits_for(self) -> frozenset[str]:
        awaited = {uuid for uuid, copy in self._members.items() if copy.is_awaited}
        return (self.known | self.proposed | awaited) - {self._uuid}

    def _advance_all(self) -> None:
        for name in self._logs:
            self._advance(name)

    def _advance(self, name: str) -> None:
        log = self._logs[name]
        end = log.durable
        for uuid in self._waits_for():
            copy = self._members.get(uuid)
            end = min(end, -1 if copy is None else copy.stored.get(name, -1))
        if end > log.confirmed:
            log.confirmed = end
            self._outbox.add(MoveReadableEnd(name, end))

    def _move_gate(self) -> None:
        if len(self.known) < self._min_in_sync:
            reason = f"{len(self.known)} of {self._min_in_sync} required members are in sync"
            gate = GateMoved(False, reason)
        elif self.switching_to is not None:
            gate = GateMoved(False, "another member takes over", keeps_waiting=True)
        else:
            gate = GateMoved(True, "in sync")
        if gate != self._gate:
            self._gate = gate
            self._outbox.add(gate)

    # ---- this member's log

    def written(self, name: str, end: int, *, durable: bool) -> None:
        log = self._logs.get(name)
        if log is None:
            return
        log.note(end, durable=durable)
        for copy in self._links.values():
            self._send_missing(copy, name, log)
        if durable:
            self._advance(name)
            self._check_switch()

    def added(self, facts: StreamFacts) -> None:
        name = facts.origin.name
        self._logs[name] = log = StreamState.of(facts, facts.origin.start)
        self._advance(name)
        for copy in self._links.values():
            if copy.uuid is not None:
                start = StreamStart(log.origin, log.epochs, None)
                copy.asked.append({name: log.origin.incarnation})
                self._outbox.send(copy.link, BeginStreams(self.epoch, {name: start}, complete=False))

    def removed(self, name: str) -> None:
        if self._logs.pop(name, None) is not None:
            for copy in self._links.values():
                copy.stored.pop(name, None)
                copy.sent.pop(name, None)
                if copy.uuid is not None:
                    self._outbox.send(copy.link, RemoveStreams(self.epoch, (name,)))

    # ---- the other members

    def link_up(self, link: int, record: PairRecord, version: int) -> None:
        self._links[link] = _Copy(link)
        self._outbox.send(link, PairHello(self.epoch, self._uuid, record, version))

    def link_down(self, link: int) -> None:
        copy = self._links.pop(link, None)
        if copy is not None and copy.uuid is not None and self._members.get(copy.uuid) is copy:
            del self._members[copy.uuid]
            if copy.is_awaited:
                self._advance_all()

    def close_links(self, reason: str) -> None:
        for link in list(self._links):
            self._outbox.add(CloseLink(link, reason))
            self.link_down(link)

    def welcomed(self, link: int, message: PairWelcome) -> None:
        """Compare a member's copies with the streams here, and say what it has to keep of each."""
        copy = self._links.get(link)
        if copy is None or message.epoch != self.epoch or copy.uuid is not None:
            return
        older = self._members.get(message.uuid)
        if older is not None:
            self._outbox.add(CloseLink(older.link, "the member has another connection"))
            self.link_down(older.link)
        copy.uuid, copy.boot, copy.joins = message.uuid, message.boot, message.joins
        self._members[message.uuid] = copy
        starts = {}
        for name, log in self._logs.items():
            there = message.streams.get(name)
            keep_to = None if there is None else agreed_end(log.facts(), there)
            starts[name] = StreamStart(log.origin, log.epochs, keep_to)
        copy.asked.append({name: log.origin.incarnation for name, log in self._logs.items()})
        self._outbox.send(link, BeginStreams(self.epoch, starts, complete=True))

    def begun(self, link: int, message: StreamsBegun) -> None:
        """Take the ends of a member's copies, except of streams that were deleted and created again meanwhile."""
        copy = self._links.get(link)
        if copy is None or message.epoch != self.epoch or not copy.asked:
            return
        copy.begun, asked = True, copy.asked.popleft()
        for name, end in message.ends.items():
            if (log := self._logs.get(name)) is not None and log.origin.incarnation == asked.get(name):
                copy.stored[name] = copy.sent[name] = end
                self._send_missing(copy, name, log)
                self._advance(name)
        self._check_switch()

    def stored(self, link: int, message: RunStored) -> None:
        copy = self._links.get(link)
        if copy is None or message.epoch != self.epoch or message.stream not in copy.stored:
            return
        copy.has_stored = True
        copy.stored[message.stream] = max(copy.stored[message.stream], message.end)
        if message.stream in self._logs:
            self._advance(message.stream)
            self._check_switch()

    def report_ends(self) -> None:
        """Send the ends that have moved since the last call; all of them on a new connection."""
        ends = {name: StreamEnds(log.origin.start, log.confirmed) for name, log in self._logs.items()}
        moved = {name: each for name, each in ends.items() if self._reported.get(name) != each}
        self._reported = ends
        for copy in self._members.values():
            news = moved if copy.knows_ends else ends
            if copy.begun and news:
                copy.knows_ends = True
                self._outbox.send(copy.link, EndsMoved(self.epoch, news))

    def _send_missing(self, copy: _Copy, name: str, log: StreamState) -> None:
        sent = copy.sent.get(name)
        if sent is not None and sent < log.written:
            self._outbox.add(SendRun(copy.link, self.epoch, name, sent, log.written))
            copy.sent[name] = log.written

    # ---- a planned switch

    def switch(self, to: str | None) -> None:
        """Take no puts, and let that member elect itself once it has what was written by now; ``None``: go on as the
        master.

        Offsets of groups and the journal are written meanwhile, and the end of the journal need not be synced here.
        """
        asked = self._members.get(self.switching_to or "")
        if asked is not None and self._was_asked_to_elect:
            self._outbox.send(asked.link, ElectYourself(self.epoch, withdrawn=True))
        self.switching_to, self._was_asked_to_elect = to, False
        self._ends_to_wait_for = {name: log.written for name, log in self._logs.items()}
        self._move_gate()
        self._check_switch()

    def others_in_sync(self) -> Iterable[str]:
        return sorted(uuid for uuid in self.known if uuid in self._members and self._members[uuid].begun)

    def _check_switch(self) -> None:
        if self.switching_to is None or self._was_asked_to_elect:
            return
        copy = self._members.get(self.switching_to)
        ends = [(name, end) for name, end in self._ends_to_wait_for.items() if name in self._logs]
        if copy is not None and all(copy.stored.get(name, -1) >= end for name, end in ends):
            self._was_asked_to_elect = True
            self._outbox.send(copy.link, ElectYourself(self.epoch))
