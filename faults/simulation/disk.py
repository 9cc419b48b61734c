"""A member's disk: its file about itself, and its streams; what a process wrote and what survives the power.

A stream is a list of records with the offsets of their bytes; sizes are numbers only, so a history may have gigabytes.
A cut is made of steps, as on a real disk; after a crash, the opening finishes a cut that has an intention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from metaq_broker.log.streams.facts import Epochs, EpochStart, StreamFacts, StreamOrigin
from metaq_broker.replication.pair.messages import StreamStart


class StoredRecord(NamedTuple):
    """The bytes ``[offset, end)`` of a stream. Two records with the same ``serial`` are the same message."""

    offset: int
    end: int
    message_id: int
    serial: int
    content: tuple[object, ...]


@dataclass(slots=True)
class DiskStream:
    """``durable``: how many of the records survive a power cut. ``indexed``: how many the index counts.

    ``damaged``: offsets of records that are damaged here; ``lost``: of records that the leader sent as damaged.
    """

    origin: StreamOrigin
    epochs: Epochs = ()
    records: list[StoredRecord] = field(default_factory=list)
    durable: int = 0
    indexed: int = 0
    damaged: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.records[-1].end if self.records else self.origin.start

    @property
    def durable_end(self) -> int:
        return self.records[self.durable - 1].end if self.durable else self.origin.start

    def append(self, record: StoredRecord) -> None:
        self.records.append(record)
        self.indexed += 1

    def count_before(self, end: int) -> int:
        """Return how many records end at or before ``end``."""
        low, high = 0, len(self.records)
        while low < high:
            middle = (low + high) // 2
            if self.records[middle].end <= end:
                low = middle + 1
            else:
                high = middle
        return low

    def between(self, offset: int, end: int) -> list[StoredRecord]:
        return self.records[self.count_before(offset) : self.count_before(end)]

    def cut(self, end: int) -> None:
        del self.records[self.count_before(end) :]
        self.durable = min(self.durable, len(self.records))
        self.damaged = {offset for offset in self.damaged if offset < end}
        self.lost = {offset for offset in self.lost if offset < end}

    def copy(self) -> DiskStream:
        return replace(self, records=list(self.records), damaged=set(self.damaged), lost=set(self.lost))


class Run(NamedTuple):
    """Records on their way to a follower, and the offsets of damaged ones among them."""

    records: list[StoredRecord]
    lost: frozenset[int]


@dataclass(frozen=True, slots=True)
class MemberFile:
    uuid: str
    boots: tuple[str, ...] = ()
    promised: int = 0
    seen: int = 0


class Cut(NamedTuple):
    """``ends``: where each stream is to end; ``None``: the whole stream goes to ``lost+found``."""

    ends: Mapping[str, int | None]


class Disk:
    """One member's. ``steps`` are the steps of a cut; ``finish_cut`` may be called again after any of them."""

    def __init__(self, uuid: str) -> None:
        self.file = MemberFile(uuid)
        self.streams: dict[str, DiskStream] = {}
        self.lost_found: list[tuple[str, StoredRecord]] = []
        self.removed: list[tuple[str, StoredRecord]] = []
        self.intention: Cut | None = None
        self.is_full = False
        self.unfit: str | None = None
        self.damaged_boot: str | None = None
        """The boot during which data was lost: what its process had said to a master does not hold any more."""
        self.slowness = 1

    def facts(self) -> dict[str, StreamFacts]:
        """Of a member that follows: its streams end before their first damage."""
        return {
            name: StreamFacts(each.origin, min({each.end} | each.damaged), each.epochs)
            for name, each in self.streams.items()
        }

    @property
    def is_damaged(self) -> bool:
        return any(each.damaged for each in self.streams.values())

    @property
    def is_blank(self) -> bool:
        return not self.file.seen and not any(each.records for each in self.streams.values())

    # ---- what a process does

    def store_file(self, **changes: object) -> None:
        self.file = replace(self.file, **changes)  # type: ignore[arg-type]

    def begin_epoch(self, epoch: int, starts: Mapping[str, int]) -> None:
        for name, start in starts.items():
            stream = self.streams[name]
            stream.epochs = (*stream.epochs, EpochStart(epoch, start))

    def adopt(self, streams: Mapping[str, StreamStart]) -> None:
        for name, start in streams.items():
            if name not in self.streams:
                self.streams[name] = DiskStream(start.origin)
            elif damaged := self.streams[name].damaged:  # the leader has it, and sends it again
                self.finish_cut(Cut({name: min(damaged)}))
            self.streams[name].epochs = tuple(start.epochs)

    def store_intention(self, cut: Cut) -> None:
        self.intention = cut

    def keep_tail(self, cut: Cut) -> None:
        known = set(self.lost_found)
        self.lost_found += [each for each in self._tails(cut) if each not in known]

    def cut_data(self, cut: Cut) -> None:
        self.removed += self._tails(cut)
        for name, end in cut.ends.items():
            stream = self.streams.get(name)
            if stream is not None and end is None:
                del self.streams[name]
            elif stream is not None and end is not None:
                stream.cut(end)

    def cut_index(self, cut: Cut) -> None:
        for name in cut.ends:
            if (stream := self.streams.get(name)) is not None:
                stream.indexed = len(stream.records)

    def finish_cut(self, cut: Cut, steps: int = 5) -> None:
        """Do the first ``steps`` of: intention, copy of the tail, data, index, end of the intention."""
        for step in (self.store_intention, self.keep_tail, self.cut_data, self.cut_index)[:steps]:
            step(cut)
        if steps == 5:
            self.intention = None

    def _tails(self, cut: Cut) -> list[tuple[str, StoredRecord]]:
        tails = []
        for name, end in cut.ends.items():
            if (stream := self.streams.get(name)) is not None:
                first = 0 if end is None else stream.count_before(end)
                tails += [(name, record) for record in stream.records[first:]]
        return tails

    def has(self, name: str, record: StoredRecord) -> bool:
        """Whether a stream has this record durably and undamaged."""
        stream = self.streams.get(name)
        if stream is None or record.offset in stream.damaged | stream.lost:
            return False
        return record in stream.records[: stream.durable]

    # ---- what happens to it

    def lose_end(self, random: Random) -> None:
        """Lose durable records at the end of a stream; that is found when the disk is opened."""
        stream = random.choice(list(self.streams.values()))
        keep = random.randint(0, len(stream.records))
        del stream.records[keep:]
        stream.durable = stream.indexed = keep
        self.unfit, self.damaged_boot = "a stream is shorter than it was", self.file.boots[-1]

    def lose_power(self, random: Random) -> None:
        """Lose a part of what was not synced: whole records at the end of each stream."""
        for stream in self.streams.values():
            keep = random.randint(stream.durable, len(stream.records))
            del stream.records[keep:]
            stream.indexed = min(stream.indexed, keep)

    def open(self) -> None:
        """Finish a cut, then make everything durable that is there."""
        if self.intention is not None:
            self.finish_cut(self.intention)
        for stream in self.streams.values():
            stream.durable = len(stream.records)

    def copy(self) -> Disk:
        """Return what a copy of the disk at this moment has: what is durable."""
        other = Disk(self.file.uuid)
        other.file, other.intention = self.file, self.intention
        other.lost_found, other.removed = list(self.lost_found), list(self.removed)
        for name, stream in self.streams.items():
            copied = stream.copy()
            del copied.records[copied.durable :]
            copied.indexed -= len(stream.records) - len(copied.records)
            other.streams[name] = copied
        return other
