"""What the core asks of its driver. Actions of one call are started in their order; none is awaited by the core.

Actions with a ``number`` end with ``DiskDone(number)``, once they are durable. They are executed in the
order of their numbers, but for runs of different streams, which may overtake each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from metaq_broker.replication.pair.messages import PairMessage, StreamStart
from metaq_broker.replication.pair.record import PairRecord


class PairRole(Enum):
    """A learner may not lead; a member in sync may; a candidate tries to; a fenced one has to be opened again."""

    LEARNER = "learner"
    IN_SYNC = "in sync"
    CANDIDATE = "candidate"
    MASTER = "master"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """For the log, ``ctl status``, and the parts of the broker that serve.

    ``MASTER``: run crash recovery of transactions and state on the logs as they are, connect to the other members, then
    serve. Sent again with another ``epoch`` while the broker serves: only take note. ``FENCED``: refuse what waits,
    close sessions, close everything, open it again with a raised boot.
    """

    role: PairRole
    epoch: int
    master: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class GateMoved:
    """Whether clients' puts are accepted. Closing refuses waiting puts; no later action acknowledges them.

    ``keeps_waiting``, for a planned switch: waiting puts are acknowledged before the other member is elected.
    """

    open: bool
    reason: str
    keeps_waiting: bool = False


@dataclass(frozen=True, slots=True)
class MoveReadableEnd:
    """Everything before ``end`` is on every member of the set: readers may see it, waiting puts are acknowledged."""

    stream: str
    end: int


# ---- ZooKeeper


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record, and report ``RecordRead`` or ``RecordUnreadable``."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """Store ``record`` if the node has ``version`` (``None``: if there is no node); ``ChangeAnswered`` follows."""

    ticket: int
    version: int | None
    record: PairRecord


# ---- the other members


@dataclass(frozen=True, slots=True)
class SendToMember:
    link: int
    message: PairMessage


@dataclass(frozen=True, slots=True)
class SendRun:
    """Read ``[offset, end)`` of a stream, and send it as ``StreamRun`` messages that follow each other."""

    link: int
    epoch: int
    stream: str
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """``LinkDown`` must not be reported for it."""

    link: int
    reason: str


# ---- the disk


@dataclass(frozen=True, slots=True)
class StorePromise:
    """Store in the member's file: it follows no leader below epoch ``promised``, and knows a master of ``seen``."""

    number: int
    promised: int
    seen: int


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Hold all appends, store the entry ``(epoch, end)`` of each stream durably, report ``EpochBegun``, go on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CutStreams:
    """Copy the bytes of each stream from its offset on to ``lost+found``, then cut them; ``None``: the whole stream.

    An intention is durable before the first step, and every step can be repeated. ``epoch`` and ``master`` say whose
    streams they have to match. A driver that closes and opens the broker for this makes a new core instead of
    reporting ``DiskDone``.
    """

    number: int
    cuts: Mapping[str, int | None]
    epoch: int
    master: str


@dataclass(frozen=True, slots=True)
class AdoptStreams:
    """Create the streams that do not exist, and replace the epochs of all; no byte of theirs is written before."""

    number: int
    streams: Mapping[str, StreamStart]


@dataclass(frozen=True, slots=True)
class WriteRun:
    """Append the bytes of a ``StreamRun`` at ``offset``, and sync."""

    number: int
    stream: str
    offset: int
    end: int
    run: object


@dataclass(frozen=True, slots=True)
class TrimStream:
    """The master's stream begins at ``start`` by now: files before it may be removed. Ends with no event."""

    stream: str
    start: int


PairAction = (
    RoleChanged
    | GateMoved
    | MoveReadableEnd
    | ReadRecord
    | ChangeRecord
    | SendToMember
    | SendRun
    | CloseLink
    | StorePromise
    | BeginEpoch
    | CutStreams
    | AdoptStreams
    | WriteRun
    | TrimStream
)
