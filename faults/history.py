"""The history of a run: all operations with their outcomes, as the input of the checker.

Every operation has a ``started`` and an ``ended`` stamp from one counter, so "A was acknowledged before B began" is a
comparison of two numbers. An operation without an answer (timeout, connection lost, broker killed) stays ``UNKNOWN``
and ends ``NEVER``: it may have been carried out or not, even later.

Many threads write into one ``History``; every record belongs to the thread that made it until the checker reads it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from faults.payload import MessageKey
from faults.stored import PartitionKey, StoredFrame

NEVER: Final = sys.maxsize
ANY_INDEX: Final = -1
"""Partition index of a put that leaves the choice to the broker."""


NOT_REPORTED: Final = -1
"""Unknown to the client: RocketMQ's protocol reports neither a message's id nor the form of its frame."""


class Outcome(Enum):
    """How an operation ended, as far as its caller knows."""

    OK = "ok"
    FAILED = "failed"
    """A definite refusal: the operation must have had no effect."""
    UNKNOWN = "unknown"


class Sent(NamedTuple):
    """One message of a put, as its frame must be: ``frame_bytes`` counts header and body. See ``NOT_REPORTED``."""

    key: MessageKey
    flag: int
    checksum: int
    frame_bytes: int


@dataclass(slots=True, eq=False)
class Put:
    """One attempt to put one message, or a block of them, into one partition.

    ``lane`` names the connection, whose puts are carried out in order. ``offset`` and ``message_id`` are the
    acknowledged ones of the first message (-1 before the acknowledgement; the offset stays -1 inside a transaction).
    """

    lane: str
    partition_key: PartitionKey
    messages: Sequence[Sent]
    started: int
    transaction: str | None = None
    ended: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    message_id: int = NOT_REPORTED
    queue_offset: int = NOT_REPORTED
    """The queue offset of the first message, if RocketMQ's protocol has reported it."""
    reason: str = ""

    @property
    def frame_bytes(self) -> int:
        return sum(message.frame_bytes for message in self.messages)

    def __str__(self) -> str:
        first, last = self.messages[0].key, self.messages[-1].key
        keys = str(first) if first == last else f"{first}..{last.sequence}"
        inside = f" in {self.transaction}" if self.transaction else ""
        answer = f" at {self.offset} id {self.message_id}" if self.outcome is Outcome.OK else f" {self.reason}".rstrip()
        what = f"put {keys} ({self.frame_bytes} bytes) to {self.partition_key} by {self.lane}{inside}"
        return f"{_span(self.started, self.ended)} {what}: {self.outcome.value}{answer}"


class StepKind(Enum):
    BEGIN = "begin"
    PREPARE = "prepare"
    DECIDE = "decide"
    """Its commit is decided. The reply does not wait until its messages can be read; the reply to COMMIT does."""
    COMMIT = "commit"
    ROLLBACK = "rollback"


COMMITTING: Final = (StepKind.DECIDE, StepKind.COMMIT)
ENDING: Final = (*COMMITTING, StepKind.ROLLBACK)


@dataclass(slots=True, eq=False)
class Step:
    kind: StepKind
    started: int
    ended: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    reason: str = ""

    @property
    def possible(self) -> bool:
        """Whether it may have been carried out."""
        return self.outcome is not Outcome.FAILED

    def __str__(self) -> str:
        return f"{_span(self.started, self.ended)} {self.kind.value}: {self.outcome.value} {self.reason}".rstrip()


@dataclass(slots=True, eq=False)
class TransactionRecord:
    """A transaction: its key as on the wire, its steps and its puts. ``unique`` is ``None`` for local ones."""

    key: str
    unique: str | None
    steps: list[Step] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)

    def of(self, *kinds: StepKind) -> list[Step]:
        """Return its steps of these kinds, in order."""
        return [step for step in self.steps if step.kind in kinds]


class Listing(NamedTuple):
    """An answer to RECOVER: the keys of the prepared branches of ``unique``."""

    started: int
    ended: int
    unique: str
    keys: frozenset[str]


class FirstRead(NamedTuple):
    """The first read of the frame at this position; ``ended`` is when the read had ended."""

    partition_key: PartitionKey
    frame: StoredFrame
    ended: int


class Pulled(NamedTuple):
    """A message that a RocketMQ client pulled, with its position in the record."""

    partition_key: PartitionKey
    queue_offset: int
    offset: int
    key: MessageKey


class EndSeen(NamedTuple):
    """A reader's request for ``offset`` found nothing yet; ``started`` is when the request began."""

    partition_key: PartitionKey
    offset: int
    started: int


class Oddity(NamedTuple):
    """An observation that a correct broker rules out: a corrupt frame, a malformed reply, an unexpected refusal."""

    kind: str
    text: str


class History:
    """All records of one run on one data folder."""

    def __init__(self) -> None:
        self._stamps = itertools.count(1)
        self.puts: list[Put] = []
        self.transactions: dict[str, TransactionRecord] = {}
        self.listings: list[Listing] = []
        self.sightings: dict[PartitionKey, dict[int, FirstRead]] = {}
        self.conflicts: list[tuple[FirstRead, StoredFrame]] = []
        self.pulled: set[Pulled] = set()
        self.ends_seen: list[EndSeen] = []
        self.oddities: list[Oddity] = []

    def stamp(self) -> int:
        return next(self._stamps)

    def put_begins(
        self,
        lane: str,
        partition_key: PartitionKey,
        messages: Sequence[Sent],
        transaction: TransactionRecord | None = None,
    ) -> Put:
        """Record an attempt, before its bytes are sent."""
        put = Put(lane, partition_key, messages, self.stamp(), transaction.key if transaction else None)
        (self.puts if transaction is None else transaction.puts).append(put)
        return put

    def put_acknowledged(self, put: Put, message_id: int, index: int, offset: int) -> None:
        """Record the broker's acknowledgement."""
        put.message_id, put.offset = message_id, offset
        put.partition_key = PartitionKey(put.partition_key.topic, index)
        put.outcome, put.ended = Outcome.OK, self.stamp()

    def put_refused(self, put: Put, reason: str, *, definite: bool) -> None:
        """Record an error reply; ``definite`` if it says that nothing was stored."""
        put.reason = reason
        if definite:
            put.outcome, put.ended = Outcome.FAILED, self.stamp()

    def transaction_begins(self, key: str, unique: str | None = None) -> TransactionRecord:
        """Record a transaction before it begins; its key must be new."""
        assert key not in self.transactions, key
        record = self.transactions[key] = TransactionRecord(key, unique)
        return record

    def step_begins(self, transaction: TransactionRecord, kind: StepKind) -> Step:
        """Record a step, before it is sent."""
        step = Step(kind, self.stamp())
        transaction.steps.append(step)
        return step

    def step_ended(self, step: Step, outcome: Outcome, reason: str = "") -> None:
        """Record the answer to a step; ``UNKNOWN`` leaves it without an end."""
        step.outcome, step.reason = outcome, reason
        if outcome is not Outcome.UNKNOWN:
            step.ended = self.stamp()

    def listed(self, started: int, unique: str, keys: Iterable[str]) -> None:
        """Record an answer to RECOVER, requested at ``started``."""
        self.listings.append(Listing(started, self.stamp(), unique, frozenset(keys)))

    def seen(self, partition_key: PartitionKey, frames: Iterable[StoredFrame]) -> None:
        """Record frames that a reader received."""
        ended = self.stamp()
        known = self.sightings.setdefault(partition_key, {})
        for frame in frames:
            sighting = known.setdefault(frame.offset, FirstRead(partition_key, frame, ended))
            if sighting.frame != frame:
                self.conflicts.append((sighting, frame))

    def end_seen(self, partition_key: PartitionKey, offset: int, started: int) -> None:
        """Record that a request at ``started`` found nothing at ``offset`` yet."""
        self.ends_seen.append(EndSeen(partition_key, offset, started))

    def odd(self, kind: str, text: str) -> None:
        self.oddities.append(Oddity(kind, text))


def _span(started: int, ended: int) -> str:
    return f"[{started}-{'' if ended == NEVER else ended}]"
