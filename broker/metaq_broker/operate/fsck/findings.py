"""The result of a check as values: per partition, for the journal, and in total.

A *problem* costs, or may cost, messages or time. A *note* is something that a crash leaves and the next start repairs.
Only problems make the exit status 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from metaq.model import OffsetRange
from metaq_broker.log.files.durable_ends import KnownEnd
from metaq_broker.log.partitions.damage import Damage
from metaq_broker.log.partitions.losses import Loss, LostEnd
from metaq_broker.log.streams.lost_found import Kept


class IndexState(Enum):
    """How an index relates to its segment."""

    COMPLETE = "complete"
    SHORT = "short"
    """It ends before the segment, as in one that is being written, or after a crash."""
    MISSING = "missing"
    DAMAGED = "damaged"
    """It cannot be read, or does not match the segment's contents."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end, from ``offset`` on, that are not a complete message."""

    offset: int
    bytes: int


@dataclass(slots=True)
class PartitionFindings:
    """One partition. Offsets, counts and sizes are those after a repair.

    ``known`` damage is in the quarantine file already, ``damage`` is not. ``refusal``: why it was not read, or not
    completely. ``unsettled``: a repair, or the next start, would change files. ``live``: a broker was writing
    meanwhile. ``kept``: files with the bytes that a repair has cut off. ``incarnation``: the partition's UUID; without
    one, the next start creates it. ``known_ends``: its durable end according to other files; ``lost``: the missing
    bytes before that end. ``renumbered``: the number of the oldest message, if no file has it any more.
    """

    topic: str
    index: int
    directory: Path
    live: bool = False
    start_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    messages: int = 0
    torn: TornTail | None = None
    missing_bytes: int = 0
    known_ends: Sequence[KnownEnd] = ()
    lost: LostEnd | None = None
    renumbered: int | None = None
    damage: list[Damage] = field(default_factory=list)
    known: list[Damage] = field(default_factory=list)
    suspect: list[OffsetRange] = field(default_factory=list)
    indexes: dict[int, IndexState] = field(default_factory=dict)
    quarantine_unreadable: bool = False
    incarnation: str | None = None
    incarnation_fault: str | None = None
    unfinished: list[str] = field(default_factory=list)
    refusal: str | None = None
    unsettled: bool = False
    repaired: bool = False
    kept: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes between start and end."""
        return self.end_offset - self.start_offset

    def index_count(self, state: IndexState) -> int:
        return sum(found is state for found in self.indexes.values())

    def problems(self) -> Iterator[str]:
        if self.refusal is not None:
            yield self.refusal
        if self.torn is not None and not self.live:
            yield f"torn tail: {self.torn.bytes} bytes from offset {self.torn.offset}"
        if self.lost is not None:
            what = "all segments are gone" if self.lost.all_segments else "the end of the partition is gone"
            yield f"{self.missing_bytes} bytes that were durable are gone, from offset {self.lost.start} on: {what}"
        yield from (f"damaged: {entry}" for entry in self.damage)
        for span in self.suspect:
            yield f"message ids or flags changed in [{span.start}, {span.end}); bodies are intact"
        for start, state in self.indexes.items():
            if state is IndexState.DAMAGED:
                yield f"the index of the segment that starts at {start} is damaged, or belongs to other bytes"
        if self.renumbered is not None:
            cause = "it is unknown how many messages were before the oldest one"
            yield f"{cause}; the queue is renumbered from {self.renumbered} on, and its readers begin at its start"
        if self.quarantine_unreadable:
            yield "the quarantine file cannot be read"
        if self.incarnation_fault is not None:
            consequence = "readers that know the old one will see another partition"
            yield f"the incarnation file cannot be read: {self.incarnation_fault}; {consequence}"

    def notes(self) -> Iterator[str]:
        if self.live and self.torn is not None:
            yield f"{self.torn.bytes} bytes from offset {self.torn.offset} are being written"
        yield from (f"not served: {entry}" for entry in self.known)
        for state in (IndexState.SHORT, IndexState.MISSING):
            if count := self.index_count(state):
                yield f"{count} index{'es' if count > 1 else ''} {state.value}"
        yield from (f"unfinished segment {name}" for name in self.unfinished)
        yield from (f"kept in {name}" for name in self.kept)


class _FileOfRecords:
    """The result for a file whose end a crash may tear."""

    __slots__ = ()
    torn_bytes: int
    fault: str | None

    def problems(self) -> Iterator[str]:
        if self.fault is not None:
            yield self.fault

    def notes(self) -> Iterator[str]:
        """Yield one sentence for each note: a crash may leave a torn end, which the next start cuts."""
        if self.torn_bytes:
            yield f"{self.torn_bytes} bytes at the end are not a whole record"


@dataclass(slots=True)
class JournalFindings(_FileOfRecords):
    """The transaction journal. ``torn_bytes`` at its end are not a whole record; ``fault`` says why it cannot be used.

    ``run_unknown`` says why it is not known whether it belongs to the data folder.
    """

    directory: Path
    files: int = 0
    bytes: int = 0
    records: int = 0
    torn_bytes: int = 0
    fault: str | None = None
    run_unknown: str | None = None

    def notes(self) -> Iterator[str]:
        yield from _FileOfRecords.notes(self)
        if self.run_unknown is not None:
            yield self.run_unknown


@dataclass(slots=True)
class StateFindings(_FileOfRecords):
    """The state file of a folder. ``torn_bytes`` at its end are not a whole record; ``fault`` says how it is damaged.

    ``kept`` is the file to which a repair moved the damaged one. Sizes and counts are those after a repair.
    """

    path: Path
    bytes: int = 0
    entries: int = 0
    torn_bytes: int = 0
    fault: str | None = None
    repaired: bool = False
    kept: str | None = None

    def notes(self) -> Iterator[str]:
        yield from _FileOfRecords.notes(self)
        if self.kept is not None:
            yield f"kept in {self.kept}; entries that could not be read have older values, or none"


@dataclass(slots=True)
class MemberFindings:
    """The files of a pair's member in one folder; without a ``uuid`` it has the streams' bytes only.

    ``streams``: the latest epoch of each stream. ``kept``: what is in ``lost+found``. ``unfinished_cuts``: streams with
    a cut that the next start finishes. ``faults``: files that cannot be used.
    """

    uuid: str | None = None
    broker_id: int | None = None
    starts: int = 0
    promised: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    kept: Sequence[Kept] = ()
    unfinished_cuts: Sequence[str] = ()
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FolderFindings:
    """One data folder. ``owner``: the process that has locked it. ``left_alone``: folders that are not partitions.

    ``missing``: partitions that had durable bytes and whose folders are missing. ``losses``: data losses that starts
    and repairs have found and no operator has acknowledged. ``state``: its state file, if it has one.
    """

    path: Path
    owner: str | None
    partitions: list[PartitionFindings] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    losses: Sequence[Loss] = ()
    unfinished_deletions: list[str] = field(default_factory=list)
    state: StateFindings | None = None
    groups: StateFindings | None = None
    """The file with the consumer groups of MetaQ's clients."""
    member: MemberFindings | None = None
    """The files of a pair's member, if the folder is one's."""

    @property
    def states(self) -> list[StateFindings]:
        return [each for each in (self.state, self.groups) if each is not None]


@dataclass(slots=True)
class Findings:
    folders: list[FolderFindings] = field(default_factory=list)
    journal: JournalFindings | None = None
    seconds: float = 0.0

    @property
    def partitions(self) -> list[PartitionFindings]:
        return [partition for folder in self.folders for partition in folder.partitions]

    @property
    def states(self) -> list[StateFindings]:
        return [state for folder in self.folders for state in folder.states]

    @property
    def problem_count(self) -> int:
        """The number of problems, including repaired ones."""
        found = sum(len(list(partition.problems())) for partition in self.partitions)
        found += sum(len(folder.missing) for folder in self.folders)
        found += sum(len(list(state.problems())) for state in self.states)
        found += sum(len(folder.member.faults) for folder in self.folders if folder.member is not None)
        return found + (len(list(self.journal.problems())) if self.journal else 0)

    @property
    def all_repaired(self) -> bool:
        """Whether no problem is left."""
        sound = all(partition.repaired or not any(partition.problems()) for partition in self.partitions)
        sound = sound and not any(folder.missing for folder in self.folders)
        sound = sound and not any(folder.member is not None and folder.member.faults for folder in self.folders)
        sound = sound and all(state.repaired or state.fault is None for state in self.states)
        return sound and (self.journal is None or self.journal.fault is None)
