"""What can happen to a member of a pair. The driver reports each as one call of ``PairMember.handle``.

``link`` numbers a connection to another member; the driver never uses a number twice, and after ``LinkDown`` reports
nothing more of that link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from metaq_broker.log.streams.facts import StreamFacts
from metaq_broker.replication.pair.messages import PairMessage
from metaq_broker.replication.pair.record import PairRecord

# ---- ZooKeeper


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The answer to ``ReadRecord``. ``None``: there is no node. ``version`` is the node's, -1 without one."""

    record: PairRecord | None
    version: int


@dataclass(frozen=True, slots=True)
class RecordUnreadable:
    """The record cannot be read now: ``reason``. The core asks again at the next ``Tick``."""

    reason: str


class ChangeOutcome(Enum):
    """Of a compare-and-set. ``UNKNOWN``: the answer was lost; it may have been applied, or may still be applied."""

    CHANGED = "changed"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ChangeAnswered:
    """The outcome of the ``ChangeRecord`` with that ``ticket``; ``version`` is the new one if it is ``CHANGED``."""

    ticket: int
    outcome: ChangeOutcome
    version: int = -1


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A watch says that the record has changed."""


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """Another member of the pair is announced as alive; ``blank``: it has no data and never belonged to a pair."""

    uuid: str
    blank: bool


@dataclass(frozen=True, slots=True)
class MasterLost:
    """A hint that member ``master`` does not serve: connections are refused, or its session has ended.

    Never safe to believe, and never needed to be right: a wrong hint costs an election.
    """

    master: str
    reason: str


# ---- the other members


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The master has connected to another member."""

    link: int


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A connection is lost, or too slow to be waited for."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A member that is not the master gets links that it did not open, with their first message."""

    link: int
    message: PairMessage


# ---- the disk


@dataclass(frozen=True, slots=True)
class DiskDone:
    """The action with that ``number`` is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """``BeginEpoch`` is done: the entry ``(epoch, start)`` of each stream is durable, and later bytes follow it."""

    epoch: int
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BytesWritten:
    """The master's log of a stream ends at ``end``, durable or not; what is before may be sent."""

    stream: str
    end: int


@dataclass(frozen=True, slots=True)
class BytesSynced:
    """The master's log of a stream is durable up to ``end``. Implies ``BytesWritten``."""

    stream: str
    end: int


@dataclass(frozen=True, slots=True)
class StreamAdded:
    """The master has created a stream, durably; its name is in ``facts``."""

    facts: StreamFacts


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    """The master has deleted a stream."""

    stream: str


@dataclass(frozen=True, slots=True)
class StreamTrimmed:
    """Everything before ``start`` was deleted on this member; ``ordinal`` messages were before it."""

    stream: str
    start: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """A write or an fsync failed (not: was refused because the disk is full). The member stops until it is opened
    again.
    """

    reason: str


# ---- time, and the operator


@dataclass(frozen=True, slots=True)
class Tick:
    """Comes several times a second: the core repeats what was not answered."""


@dataclass(frozen=True, slots=True)
class SwitchAsked:
    """``ctl switch``: another member in sync should lead."""


@dataclass(frozen=True, slots=True)
class SwitchExpired:
    """The switch has taken too long: go on as the master, unless another one was elected."""


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """``ctl leave`` at a member that is not the master: its master takes it out of the set, until ``JoinAsked``."""


@dataclass(frozen=True, slots=True)
class JoinAsked:
    """``ctl join``: undo ``LeaveAsked``."""


PairEvent = (
    RecordRead
    | RecordUnreadable
    | ChangeAnswered
    | RecordChanged
    | MemberSeen
    | MasterLost
    | LinkUp
    | LinkDown
    | MessageArrived
    | DiskDone
    | EpochBegun
    | BytesWritten
    | BytesSynced
    | StreamAdded
    | StreamRemoved
    | StreamTrimmed
    | DiskFailed
    | Tick
    | SwitchAsked
    | SwitchExpired
    | LeaveAsked
    | JoinAsked
)
