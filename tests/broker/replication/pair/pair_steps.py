"""One member of a pair, driven step by step: events in, actions out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from metaq_broker.log.streams.facts import EpochStart, StreamFacts, StreamOrigin
from metaq_broker.replication.pair import actions, events
from metaq_broker.replication.pair.actions import PairAction
from metaq_broker.replication.pair.events import ChangeOutcome, PairEvent
from metaq_broker.replication.pair.member import PairIdentity, PairMember, PairSettings
from metaq_broker.replication.pair.messages import BeginStreams, PairHello, PairMessage, PairWelcome, StreamStart
from metaq_broker.replication.pair.record import PairMemberEntry, PairRecord

Action = TypeVar("Action")
T, LINK = "t-0", 1


def entry(name: str, boot: str = "1") -> PairMemberEntry:
    return PairMemberEntry(f"{name}:1", boot)


def record(
    epoch: int, master: str, in_sync: Iterable[str], *, members: Iterable[str] = "ab", **boots: str
) -> PairRecord:
    """``record(3, "a", "ab", a="2")``: epoch, master, set in sync, and boots that are not 1."""
    entries = {each: entry(each, boots.get(each, "1")) for each in members}
    return PairRecord(epoch, master, frozenset(each for each in entries if each in in_sync), entries)


def facts(end: int, *epochs: tuple[int, int], name: str = T, incarnation: str = "i") -> StreamFacts:
    return StreamFacts(StreamOrigin(name, incarnation, 0), end, tuple(EpochStart(*each) for each in epochs))


class Steps:
    """Member ``a``. ``done`` are the actions since the last step."""

    def __init__(
        self,
        *,
        uuid: str = "a",
        boots: tuple[str, ...] = ("1",),
        promised: int = 0,
        seen: int = 0,
        blank: bool = False,
        unfit: str | None = None,
        streams: Mapping[str, StreamFacts] | None = None,
        settings: PairSettings | None = None,
    ) -> None:
        identity = PairIdentity(uuid, f"{uuid}:1", boots, promised, seen, blank, unfit)
        self.member = PairMember(identity, streams or {}, settings or PairSettings())
        self.done: list[PairAction] = self.member.start()

    def feed(self, *happened: PairEvent) -> Steps:
        self.done = [action for event in happened for action in self.member.handle(event)]
        return self

    def all(self, kind: type[Action]) -> list[Action]:
        return [action for action in self.done if isinstance(action, kind)]

    def one(self, kind: type[Action]) -> Action:
        (found,) = self.all(kind)
        return found

    @property
    def kinds(self) -> list[str]:
        return [type(action).__name__ for action in self.done]

    def sent(self, link: int = LINK) -> list[PairMessage]:
        return [each.message for each in self.all(actions.SendToMember) if each.link == link]

    # ---- usual steps

    def reads(self, found: PairRecord | None, version: int = 0) -> Steps:
        return self.feed(events.RecordRead(found, -1 if found is None else version))

    def finishes(self) -> Steps:
        """The disk finishes what the last step gave it."""
        numbers = [number for each in self.done if (number := getattr(each, "number", None)) is not None]
        return self.feed(*(events.DiskDone(number) for number in numbers))

    def answered(self, outcome: ChangeOutcome, version: int = -1) -> Steps:
        return self.feed(events.ChangeAnswered(self.member._ticket, outcome, version))

    def changed(self, version: int) -> Steps:
        return self.answered(ChangeOutcome.CHANGED, version)

    def hears(self, message: Any, link: int = LINK) -> Steps:
        return self.feed(events.MessageArrived(link, message))

    def follows(self, of: PairRecord, version: int = 5, link: int = LINK) -> Steps:
        """It is greeted by the master of the record, and prepares its copy of the one stream."""
        self.hears(PairHello(of.epoch, of.master, of, version), link).finishes()
        start = StreamStart(StreamOrigin(T, "i", 0), (EpochStart(of.epoch, 0),), 0)
        return self.hears(BeginStreams(of.epoch, {T: start}, complete=True), link).finishes()

    def welcomed_by(self, uuid: str, end: int, link: int = LINK, boot: str = "1") -> Steps:
        """The other member connects, and has begun its copy of the one stream with so many bytes."""
        epoch = self.member.epoch
        self.feed(events.LinkUp(link))
        self.hears(PairWelcome(epoch, uuid, boot, {T: facts(end, (epoch, 0))}), link)
        return self


def master(*, in_sync: str = "a", end: int = 0, min_in_sync: int = 1) -> Steps:
    """Member ``a`` as the master of epoch 1, with one stream, and the record at version 0."""
    steps = Steps(promised=1, seen=1, streams={T: facts(end, (1, 0))}, settings=PairSettings(min_in_sync=min_in_sync))
    steps.reads(record(0 + 1, "a", in_sync), 0).finishes().changed(1)
    assert steps.kinds == ["StorePromise", "BeginEpoch"]
    return steps.feed(events.EpochBegun(2, {T: end}))


def slave() -> Steps:
    """Member ``b``, in sync with ``a``, the master of epoch 1, with one stream."""
    steps = Steps(uuid="b", promised=1, seen=1, streams={T: facts(0, (1, 0))})
    steps.reads(record(1, "a", "ab"), 5)
    return steps.follows(record(1, "a", "ab"))
