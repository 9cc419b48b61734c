"""One member of a pair: what it may be, and how it becomes the master. The core's one door.

A member leads after three steps, in this order: it promises a new epoch on its disk, so that it acknowledges nothing to
older masters any more; it stores ``{epoch, itself, in sync: itself}`` in ZooKeeper, if the record is still the one that
it has read; it begins the epoch in every stream. The older master cannot acknowledge any more, because this member was
in its set and refuses, and it cannot change its set, because the record has another version. So safety depends on no
clock, and on no session.

Only a member of the recorded set may try, after it has registered its boot there, and only if its disk is the one that
was in the set. A disk that was restored from a copy shows itself: the recorded boot is none of its boots, or the
recorded epoch is later than its promise. A copy that was made during the recorded boot, after the last promise, shows
nothing of that kind, and cannot be told from the disk itself. Its master detects the loss when it connects, and removes
it from the set; if the master is lost before, what was acknowledged after the copy was made is lost with it.

A member that has lost something itself leads only if nobody else is in the set. It hands over as soon as another member
is: that one may have what is lost here, and this one copies it as a follower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from metaq_broker.log.streams.facts import StreamFacts
from metaq_broker.replication.pair import events
from metaq_broker.replication.pair.actions import (
    BeginEpoch,
    ChangeRecord,
    CloseLink,
    PairAction,
    PairRole,
    ReadRecord,
    RoleChanged,
    StorePromise,
)
from metaq_broker.replication.pair.events import ChangeOutcome, PairEvent
from metaq_broker.replication.pair.following import Following
from metaq_broker.replication.pair.leading import Leading
from metaq_broker.replication.pair.messages import (
    BeginStreams,
    ElectYourself,
    EndsMoved,
    PairHello,
    PairRefused,
    PairWelcome,
    RemoveStreams,
    RunStored,
    StreamRun,
    StreamsBegun,
)
from metaq_broker.replication.pair.outbox import Outbox
from metaq_broker.replication.pair.record import PairMemberEntry, PairRecord
from metaq_broker.replication.pair.streams import StreamState

READ_TICKS: Final = 10
"""The record is read again after so many ticks."""

HAND_OVER_TICKS: Final = 7
"""A master that has lost something gives up handing over after so many ticks: no put waits longer."""

HAND_OVER_AGAIN_TICKS: Final = 20
"""It tries again so many ticks after it began."""


@dataclass(frozen=True, slots=True)
class PairIdentity:
    """A member as its disk knows it.

    ``boots``: the boot that the record had last, and every later one; the last is this start's. ``promised`` and
    ``seen``: see ``StorePromise``. ``blank``: it has no data. ``unfit``: what was found to be lost when the data was
    opened; then it leads only if nobody else is in the set.
    """

    uuid: str
    address: str
    boots: tuple[str, ...]
    promised: int = 0
    seen: int = 0
    blank: bool = True
    unfit: str | None = None


@dataclass(frozen=True, slots=True)
class PairSettings:
    """``min_in_sync`` members must be in sync for puts to be taken."""

    min_in_sync: int = 1
    members_max: int = 2


class PairMember:
    """``start``, then ``handle`` for each event; both return what is to be done, in order."""

    def __init__(self, identity: PairIdentity, streams: Mapping[str, StreamFacts], settings: PairSettings) -> None:
        self._identity, self._settings = identity, settings
        self._entry = PairMemberEntry(identity.address, identity.boots[-1])
        self._logs = {name: StreamState.of(facts, facts.origin.start) for name, facts in streams.items()}
        self._outbox = Outbox()
        self._following = Following(self._logs, self._outbox)
        self._leading: Leading | None = None
        self.role = PairRole.LEARNER
        self.epoch = 0
        self.record: PairRecord | None = None
        self.trouble: str | None = None
        self._version = -1
        self._promised = self._promised_durably = identity.promised
        self._seen = identity.seen
        self._promises: dict[int, int] = {}
        self._ticket, self._change_under_way = 0, False
        self._in_doubt, self._pauses = False, False
        self._proposal: PairRecord | None = None
        self._reading, self._must_read = False, False
        self._is_put_back = False
        self._candidacy: int | None = None
        self._has_won = False
        self._unfit = identity.unfit
        """``None`` once this member was outside the set: who adds it again has given it everything."""
        self._handing_over_since: int | None = None
        """The tick at which this master began to hand over."""
        self._lost_master: str | None = None
        self._why = ""
        self._others_blank = False
        self._outvoted_by = 0
        self._leaves = False
        self._early_links: list[int] = []
        self._ticks = 0
        self._hello: tuple[int, PairHello] | None = None
        self._left_link: int | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.RecordRead: self._record_read,
            events.RecordUnreadable: self._record_unreadable,
            events.ChangeAnswered: self._change_answered,
            events.RecordChanged: lambda _: self._read(),
            events.MemberSeen: self._member_seen,
            events.MasterLost: lambda event: self._elect(event.master, event.reason),
            events.LinkUp: self._link_up,
            events.LinkDown: self._link_down,
            events.MessageArrived: self._message_arrived,
            events.DiskDone: self._disk_done,
            events.EpochBegun: self._epoch_begun,
            events.BytesWritten: lambda event: self._written(event.stream, event.end, durable=False),
            events.BytesSynced: lambda event: self._written(event.stream, event.end, durable=True),
            events.StreamAdded: self._stream_added,
            events.StreamRemoved: self._stream_removed,
            events.StreamTrimmed: self._stream_trimmed,
            events.DiskFailed: lambda event: self._fence(event.reason),
            events.Tick: self._tick,
            events.SwitchAsked: self._switch_asked,
            events.SwitchExpired: self._switch_expired,
            events.LeaveAsked: lambda _: self._set_leaves(True),
            events.JoinAsked: lambda _: self._set_leaves(False),
        }

    def start(self) -> list[PairAction]:
        """Return the first actions."""
        self._read()
        return self._outbox.take()

    def handle(self, event: PairEvent) -> list[PairAction]:
        """Take an event; return what follows from it. A fenced member does nothing more."""
        if self.role is not PairRole.FENCED:
            self._handlers[type(event)](event)
        return self._outbox.take()

    # ---- for the operator

    @property
    def in_sync(self) -> frozenset[str]:
        """The set in sync, as it was read last."""
        return self.record.in_sync if self.record is not None else frozenset()

    @property
    def stream_names(self) -> frozenset[str]:
        """The streams that the core follows."""
        return frozenset(self._logs)

    @property
    def registered_boot(self) -> str | None:
        """The boot of this member in the record. Boots before it need not be kept."""
        entry = self.record.members.get(self._identity.uuid) if self.record is not None else None
        return None if entry is None else entry.boot

    # ---- the record

    def _read(self) -> None:
        if self._reading:
            self._must_read = True
        else:
            self._reading, self._must_read = True, False
            self._outbox.add(ReadRecord())

    def _record_read(self, event: events.RecordRead) -> None:
        self._reading, record = False, event.record
        self._is_put_back = self._knows_more if record is None else self._is_older(record)
        if self._is_put_back:
            self._lost_master = None  # what ZooKeeper says about living members may be old, too
        if record is None:
            self._absent()
        else:
            self._take_record(record, event.version)
        if self._must_read:
            self._read()
        else:
            self._decide()

    def _record_unreadable(self, event: events.RecordUnreadable) -> None:
        self._reading, self._must_read = False, True

    @property
    def _knows_more(self) -> bool:
        """Whether there was a record."""
        return self._seen > 0 or self.record is not None

    def _is_older(self, record: PairRecord) -> bool:
        return record.epoch < self._seen or (self.record is not None and record.epoch < self.record.epoch)

    def _absent(self) -> None:
        if self._knows_more:
            self.trouble = f"ZooKeeper has no record of the pair, and this member knows a master of epoch {self._seen}"
        elif self._identity.blank and not self._others_blank:
            self.trouble = "waiting for the other member: a member without data does not begin a pair alone"
        elif self._candidacy is None:
            self._become_candidate(1, "the pair has no record yet")

    def _take_record(self, record: PairRecord, version: int) -> None:
        """Take note of a record that was read, stored, or reported by a master, unless a later version is known."""
        if self._is_older(record):
            seen = f"a master of epoch {self._seen}"
            self.trouble = f"the record in ZooKeeper is of epoch {record.epoch}, and this member knows {seen}"
            return
        if version <= self._version:
            return
        self.record, self._version = record, version
        self._in_doubt = self._pauses = False
        unfitness = self._unfitness(record)
        if unfitness is None and self._is_registered(record):
            self._promise(max(self._promised, record.epoch), max(self._seen, record.epoch))
            if self._identity.uuid not in record.in_sync:
                self._unfit = None
        self.trouble = unfitness
        if unfitness is None and self._unfit is not None:
            self.trouble = f"{self._unfit}; the other member takes over as soon as it is in sync"
        self._apply(record)

    def _is_registered(self, record: PairRecord) -> bool:
        """Whether the record has this start, so that this member was fit for the record that was current then.

        Nothing is promised before: what was read may be older than the record that has this member in its set, and a
        copied disk would seem to know the epoch, also after another start.
        """
        return record.members.get(self._identity.uuid) == self._entry

    def _apply(self, record: PairRecord) -> None:
        """Let the role follow from a new version of the record."""
        uuid = self._identity.uuid
        is_own = record.master == uuid and record.members.get(uuid) == self._entry
        if self._candidacy is not None and record.epoch == self._candidacy and is_own:
            self._win(record)
        elif self._is_master:
            if record.epoch != self.epoch or not is_own or uuid not in record.in_sync:
                self._fence(f"member {record.master} is the master of epoch {record.epoch}", record.master)
            elif self._leading is not None:
                self._leading.set_known(record.in_sync)
        else:
            if record.master != self._lost_master:
                self._lost_master = None
            if self._candidacy is not None and not self._may_elect(record):
                self._candidacy = None
                self._close_left_link()
            self._settle_role(record)
            self._welcome_if_ready()

    def _settle_role(self, record: PairRecord) -> None:
        is_in_sync = self._identity.uuid in record.in_sync and self._unfitness(record) is None
        role = PairRole.IN_SYNC if is_in_sync else PairRole.LEARNER
        if self._candidacy is not None:
            role = PairRole.CANDIDATE
        if role is not self.role or record.epoch != self.epoch:
            self._change_role(role, record.epoch, record.master, self._why or self.trouble or "the record says so")

    def _change_role(self, role: PairRole, epoch: int, master: str | None, reason: str) -> None:
        self.role, self.epoch = role, epoch
        self._outbox.add(RoleChanged(role, epoch, master, reason))

    def _unfitness(self, record: PairRecord) -> str | None:
        """Return why this member, although it is in the set, has not everything that the set must have."""
        uuid = self._identity.uuid
        if uuid not in record.in_sync:
            return None
        if record.members[uuid].boot not in self._identity.boots:
            return (
                f"this data folder is a copy: the record has boot {record.members[uuid].boot}, which it does not know"
            )
        if self._promised < record.epoch:
            return f"this data folder is a copy: it was in the set of epoch {record.epoch}, and knows {self._promised}"
        if record.in_sync == {uuid} or record.members[uuid] == self._entry:
            return None  # with this boot it has left the set, and a master has added it again, with everything
        return self._identity.unfit

    # ---- changing the record

    def _change(self, record: PairRecord) -> None:
        self._ticket += 1
        self._change_under_way, self._proposal = True, record
        self._outbox.add(ChangeRecord(self._ticket, None if self._version < 0 else self._version, record))

    def _change_answered(self, event: events.ChangeAnswered) -> None:
        if event.ticket != self._ticket or not self._change_under_way:
            return
        self._change_under_way = False
        if event.outcome is ChangeOutcome.CHANGED and self._proposal is not None:
            self._take_record(self._proposal, event.version)
            self._decide()
            return
        self._in_doubt = self._in_doubt or event.outcome is ChangeOutcome.UNKNOWN
        self._pauses = True
        self._read()

    def _decide(self, heard: int | None = None) -> None:
        """Change the record if something should be different. One change is under way at a time.

        After one that failed, the next one waits for a later version of the record, or for the next ``Tick``.
        ``heard``: the link whose message has just arrived.
        """
        record = self.record
        if self._change_under_way or self._reading or self._pauses or self.role is PairRole.FENCED:
            return
        if self._candidacy is not None:
            self._try_election()
        elif record is None:
            return
        elif self._leading is not None:
            self._decide_set(record, self._leading, heard)
        elif not self._is_master:
            self._decide_membership(record)

    def _decide_set(self, record: PairRecord, leading: Leading, heard: int | None) -> None:
        if self._outvoted_by > self.epoch and leading.switching_to is None:
            self._become_candidate(max(self._outvoted_by, self._promised) + 1, "a member has promised a later epoch")
            return
        self._hand_over_if_unfit(leading)
        wanted = leading.wanted(record, heard)
        if not leading.known <= wanted:
            wanted &= leading.known  # one direction at a time: first without the lost ones
        if wanted != leading.known or self._in_doubt:
            leading.propose(wanted)
            self._change(replace(record, in_sync=wanted))

    def _hand_over_if_unfit(self, leading: Leading) -> None:
        since = self._handing_over_since
        if self._unfit is None or (since is not None and self._ticks < since + HAND_OVER_AGAIN_TICKS):
            return
        if leading.switching_to is None and (to := next(iter(leading.others_in_sync()), None)) is not None:
            self._handing_over_since = self._ticks
            leading.switch(to)

    def _give_up_handing_over(self, leading: Leading) -> None:
        since = self._handing_over_since
        if since is not None and self._ticks == since + HAND_OVER_TICKS:
            leading.switch(None)

    def _decide_membership(self, record: PairRecord) -> None:
        uuid = self._identity.uuid
        entry = record.members.get(uuid)
        if self._unfitness(record) is not None:
            if others := record.in_sync - {uuid}:
                self._change(replace(record.registering(uuid, self._entry), in_sync=others))
        elif self._may_elect(record) and (why := self._reason_to_elect(record)) is not None:
            self._become_candidate(max(self._promised, record.epoch + 1), why)
        elif entry != self._entry:
            self._register(record)

    def _register(self, record: PairRecord) -> None:
        uuid, address = self._identity.uuid, self._identity.address
        replaced = {key for key, entry in record.members.items() if entry.address == address and key != uuid}
        others = record.members.keys() - replaced - {uuid}
        if uuid not in record.members and not self._identity.blank and not self._identity.seen:
            self.trouble = "this member has data of its own, and never belonged to the pair; nothing of it is touched"
        elif len(others) >= self._settings.members_max:
            addresses = ", ".join(sorted(record.members[key].address for key in others))
            self.trouble = f"the pair has its members already: {addresses}"
        elif not record.in_sync - replaced:
            self.trouble = f"the only member in sync was at {address} with another data folder, which this one replaces"
        else:
            self._change(record.registering(uuid, self._entry, instead_of=replaced))

    # ---- the election

    @property
    def _is_master(self) -> bool:
        return self._leading is not None or self._has_won

    def _may_elect(self, record: PairRecord) -> bool:
        """Whether this member is in the set, with this boot, and ZooKeeper still has the record, or a later one.

        So it was fit for the record that was the current one when its boot was registered. What it has read alone may
        be old, and its own candidacy would make a copied disk seem to know the epoch.
        """
        uuid = self._identity.uuid
        is_recorded = uuid in record.in_sync and record.members[uuid] == self._entry
        is_recorded = is_recorded and self._unfitness(record) is None and not self._is_put_back
        if self._candidacy is not None:
            is_recorded = is_recorded and record.epoch < self._candidacy and self._reason_to_elect(record) is not None
        return is_recorded

    def _reason_to_elect(self, record: PairRecord) -> str | None:
        if record.master == self._identity.uuid:
            return "this member was the master, and was restarted"
        if record.master not in record.in_sync:
            return "the master has lost its data, and has left the set"
        return self._why if record.master == self._lost_master else None

    def _elect(self, master: str, why: str) -> None:
        """Read the record once more, then try to become the master if it still names the lost one."""
        if self._is_master or self._candidacy is not None or master == self._identity.uuid:
            return
        if self.record is not None and self.record.master == master:
            self._lost_master, self._why = master, why
            self._read()

    def _become_candidate(self, epoch: int, why: str) -> None:
        self._candidacy, self._why = epoch, why
        if self._following.link is not None:
            self._left_link = self._following.link
        elif self._hello is not None:
            self._left_link = self._hello[0]
        self._following.stop()
        self._hello = None
        if not self._is_master:
            self._change_role(PairRole.CANDIDATE, self.epoch, self.record.master if self.record else None, why)
        self._promise(max(epoch, self._promised), self._seen)
        self._try_election()

    def _close_left_link(self) -> None:
        """End the connection to the master that this candidate had left: it waits for an answer there, perhaps."""
        if self._left_link is not None:
            self._outbox.add(CloseLink(self._left_link, "the election was lost"))
            self._left_link = None

    def _try_election(self) -> None:
        epoch, uuid = self._candidacy, self._identity.uuid
        if epoch is None or self._promised_durably < epoch or not self._following.is_idle or self._change_under_way:
            return
        entry = self._entry
        if self.record is not None:
            self._change(self.record.elected(uuid, entry, epoch))
        else:
            self._change(PairRecord(epoch, uuid, frozenset({uuid}), {uuid: entry}))

    def _win(self, record: PairRecord) -> None:
        self._has_won, self._candidacy, self._lost_master, self._left_link = True, None, None, None
        self.epoch = record.epoch
        if self._leading is not None:
            self._leading.close_links("a new epoch begins")
        self._outbox.add(BeginEpoch(record.epoch))

    def _epoch_begun(self, event: events.EpochBegun) -> None:
        if not self._has_won or event.epoch != self.epoch:
            return
        self._has_won = False
        self._change_role(PairRole.MASTER, self.epoch, self._identity.uuid, self._why)
        if self._leading is None:
            uuid, min_in_sync = self._identity.uuid, self._settings.min_in_sync
            self._leading = Leading(uuid, self.epoch, self._logs, self._outbox, min_in_sync)
        self._leading.begin(event.epoch, event.starts)
        early, self._early_links = self._early_links, []
        for link in early:
            self._link_up(events.LinkUp(link))
        self._decide()

    def _fence(self, reason: str, master: str | None = None) -> None:
        """End the term of this master; ``master`` has replaced it, which the known record need not say yet."""
        self._following.stop()
        self._change_role(PairRole.FENCED, self.epoch, master, reason)

    # ---- promises

    def _promise(self, promised: int, seen: int) -> None:
        if (promised, seen) != (self._promised, self._seen):
            self._promised, self._seen = promised, seen
            if promised > self._following.epoch:
                self._following.stop()
            number = self._outbox.next_number()
            self._promises[number] = promised
            self._outbox.add(StorePromise(number, promised, seen))

    def _disk_done(self, event: events.DiskDone) -> None:
        if (promised := self._promises.pop(event.number, None)) is not None:
            self._promised_durably = max(self._promised_durably, promised)
        else:
            self._following.disk_done(event.number)
        if self._candidacy is not None:
            self._decide()
        self._welcome_if_ready()

    @property
    def _known_epoch(self) -> int:
        """The latest epoch that is promised or recorded. Its master may wait for this member to be registered."""
        return max(self._promised, self.record.epoch if self.record is not None else 0)

    def _refuses(self, epoch: int) -> bool:
        return epoch < self._known_epoch

    # ---- messages

    def _message_arrived(self, event: events.MessageArrived) -> None:
        link, message = event.link, event.message
        if isinstance(message, PairHello):
            self._greeted(link, message)
        elif isinstance(message, PairWelcome | PairRefused | StreamsBegun | RunStored):
            if self._leading is not None and not self._has_won:
                self._member_said(link, message, self._leading)
        elif self._refuses(message.epoch):
            self._outbox.send(link, PairRefused(self._known_epoch))
        elif link == self._following.link:
            self._master_said(message)

    def _master_said(self, message: BeginStreams | RemoveStreams | StreamRun | EndsMoved | ElectYourself) -> None:
        match message:
            case StreamRun():
                self._following.write(message)
            case EndsMoved():
                self._following.ends_moved(message.streams)
            case BeginStreams():
                self._following.begin(message)
            case RemoveStreams():
                self._following.remove(message)
            case ElectYourself(withdrawn=True):
                self._lost_master = None
            case ElectYourself():
                self._elect(self._following.master, "the master hands over")

    def _member_said(
        self, link: int, message: PairWelcome | PairRefused | StreamsBegun | RunStored, leading: Leading
    ) -> None:
        match message:
            case RunStored():
                leading.stored(link, message)
            case StreamsBegun():
                leading.begun(link, message)
            case PairWelcome():
                leading.welcomed(link, message)
            case PairRefused():
                if message.promised > self.epoch:
                    self._outvoted_by = max(self._outvoted_by, message.promised)
                    self._read()
        if not isinstance(message, RunStored) or leading.may_grow(link):
            self._decide(link)

    def _greeted(self, link: int, hello: PairHello) -> None:
        if self._is_master and hello.master == self._identity.uuid:
            self.trouble = "the other member ([pair] other) is this broker itself, or has a copy of its data folder"
        if self._refuses(hello.epoch) or (self._is_master and hello.epoch <= self.epoch):
            self._outbox.send(link, PairRefused(self._known_epoch))
            return
        if self._is_master:
            self._fence(f"member {hello.master} is the master of epoch {hello.epoch}", hello.master)
            return
        self._candidacy = self._lost_master = None
        self._left_link = None
        self._following.stop()
        self._hello = link, hello
        self._take_record(hello.record, hello.version)
        if self.role is not PairRole.FENCED:
            self._welcome_if_ready()
            self._decide()

    def _welcome_if_ready(self) -> None:
        """Answer a master, once its epoch is promised, nothing is being written, and this member is fit for its set."""
        record, uuid = self.record, self._identity.uuid
        if self._hello is None or record is None or not self._is_registered(record):
            return
        if self._unfitness(record) is not None:
            return
        link, hello = self._hello
        if self._refuses(hello.epoch):
            self._hello = None
            self._outbox.send(link, PairRefused(self._known_epoch))
            return
        self._promise(max(self._promised, hello.epoch), max(self._seen, hello.epoch))
        if self._promised_durably >= hello.epoch and self._following.is_idle:
            self._hello = None
            facts = {name: log.facts() for name, log in self._logs.items()}
            welcome = PairWelcome(hello.epoch, uuid, self._entry.boot, facts, not self._leaves)
            self._following.follow(link, hello.epoch, hello.master, welcome)

    def _link_up(self, event: events.LinkUp) -> None:
        if self._has_won:
            self._early_links.append(event.link)  # greeted once the epoch has begun
        elif self._leading is not None and self.record is not None:
            self._leading.link_up(event.link, self.record, self._version)

    def _link_down(self, event: events.LinkDown) -> None:
        if self._leading is not None:
            self._leading.link_down(event.link)
            self._decide()
        if event.link in self._early_links:
            self._early_links.remove(event.link)
        if self._following.link == event.link:
            self._following.stop()
        if self._hello is not None and self._hello[0] == event.link:
            self._hello = None
        if self._left_link == event.link:
            self._left_link = None

    # ---- the master's log

    def _written(self, stream: str, end: int, *, durable: bool) -> None:
        if self._leading is not None:
            self._leading.written(stream, end, durable=durable)
        elif self._has_won and (log := self._logs.get(stream)) is not None:  # it had damage: its facts ended there
            log.note(end, durable=durable)

    def _stream_added(self, event: events.StreamAdded) -> None:
        if self._leading is not None:
            self._leading.added(event.facts)

    def _stream_removed(self, event: events.StreamRemoved) -> None:
        if self._leading is not None:
            self._leading.removed(event.stream)

    def _stream_trimmed(self, event: events.StreamTrimmed) -> None:
        if (log := self._logs.get(event.stream)) is not None and event.start > log.origin.start:
            log.origin = log.origin._replace(start=event.start, ordinal=event.ordinal)

    # ---- time, and the operator

    def _tick(self, event: events.Tick) -> None:
        self._pauses = False
        self._ticks += 1
        if self._leading is not None:
            self._give_up_handing_over(self._leading)
            self._leading.await_the_near()
        is_due = self.record is None or self._ticks % READ_TICKS == 0  # a watch may be lost
        if self._must_read or self._in_doubt or (is_due and not self._reading):
            self._read()
        else:
            self._decide()
        if self._leading is not None and not self._has_won:
            self._leading.report_ends()

    def _member_seen(self, event: events.MemberSeen) -> None:
        if event.uuid != self._identity.uuid:
            self._others_blank = event.blank
            if self.record is None:
                self._read()

    def _switch_asked(self, event: events.SwitchAsked) -> None:
        if self._leading is not None and not self._has_won and self._leading.switching_to is None:
            self._leading.switch(next(iter(self._leading.others_in_sync()), None))

    def _switch_expired(self, event: events.SwitchExpired) -> None:
        if self._leading is not None:
            self._leading.switch(None)
            self._decide()

    def _set_leaves(self, leaves: bool) -> None:
        """Say so in the next welcome: the master changes the set, and knows whether it needs this member."""
        if leaves != self._leaves:
            self._leaves = leaves
            self._following.close("the member leaves" if leaves else "the member joins")
