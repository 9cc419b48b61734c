"""What the members of a pair say to each other, over connections that the master opens.

::

    master                                   member
      │  PairHello(epoch)                      │
      │ ─────────────────────────────────────▶ │  promises the epoch on its disk
      │     PairWelcome(streams) or PairRefused│
      │ ◀───────────────────────────────────── │
      │  BeginStreams(keep_to, epochs of each) │
      │ ─────────────────────────────────────▶ │  keeps its tails aside, cuts them, stores the epochs
      │                     StreamsBegun(ends) │
      │ ◀───────────────────────────────────── │
      │  StreamRun(stream, offset, bytes)      │
      │ ─────────────────────────────────────▶ │  writes, syncs
      │                 RunStored(stream, end) │
      │ ◀───────────────────────────────────── │

Every message of a master carries its epoch; a member that has promised a later one answers with ``PairRefused``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metaq_broker.log.streams.facts import Epochs, StreamFacts, StreamOrigin
from metaq_broker.replication.pair.record import PairRecord


@dataclass(frozen=True, slots=True)
class PairHello:
    """The first message on a connection: member ``master`` leads in ``epoch``, as ``record`` says, which it has read
    at ``version``.
    """

    epoch: int
    master: str
    record: PairRecord
    version: int


@dataclass(frozen=True, slots=True)
class PairRefused:
    """The member follows no leader below epoch ``promised``."""

    promised: int


@dataclass(frozen=True, slots=True)
class PairWelcome:
    """The member has promised ``epoch`` durably, writes nothing at the moment, and has these streams on its disk.

    ``joins``: it may be added to the set in sync; false after ``ctl leave``.
    """

    epoch: int
    uuid: str
    boot: str
    streams: Mapping[str, StreamFacts]
    joins: bool = True


class StreamStart(NamedTuple):
    """How a member's copy becomes a prefix of the master's stream: keep the bytes before ``keep_to``, cut the rest.

    ``None``: put the whole copy aside, if there is one, and begin an empty one at ``origin``. Then adopt ``epochs``.
    """

    origin: StreamOrigin
    epochs: Epochs
    keep_to: int | None


@dataclass(frozen=True, slots=True)
class BeginStreams:
    """Prepare these streams; ``complete``: they are all that the master has, others are put aside."""

    epoch: int
    streams: Mapping[str, StreamStart]
    complete: bool


@dataclass(frozen=True, slots=True)
class StreamsBegun:
    """The member's durable ends of the streams of a ``BeginStreams``."""

    epoch: int
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RemoveStreams:
    """The master has deleted these streams: put them aside."""

    epoch: int
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The bytes ``[offset, end)`` of a stream. The core does not look at ``run``."""

    epoch: int
    stream: str
    offset: int
    end: int
    run: object


@dataclass(frozen=True, slots=True)
class RunStored:
    """The member has the stream durably up to ``end``."""

    epoch: int
    stream: str
    end: int


class StreamEnds(NamedTuple):
    """Where a master's stream starts, and up to where it is confirmed."""

    start: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class EndsMoved:
    """The ends that have moved since the last message of this kind."""

    epoch: int
    streams: Mapping[str, StreamEnds]


@dataclass(frozen=True, slots=True)
class ElectYourself:
    """A planned switch: the member has everything, and the master takes no puts until it has lost the election.

    ``withdrawn``: the master goes on, unless the election has begun.
    """

    epoch: int
    withdrawn: bool = False


PairMessage = (
    PairHello
    | PairRefused
    | PairWelcome
    | BeginStreams
    | StreamsBegun
    | RemoveStreams
    | StreamRun
    | RunStored
    | EndsMoved
    | ElectYourself
)
