"""The kinds of anomalies that the checker reports."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from faults.history import History
from faults.payload import MessageKey
from faults.stored import Image, PartitionKey


class Kind(Enum):
    """The broken guarantee; the value is its text in reports."""

    MISSING = "an acknowledged message is missing"
    ALTERED = "a message is altered"
    MOVED = "a message is at another offset than acknowledged"
    WRONG_ID = "a message has another id than acknowledged"
    TWICE = "a message is stored more often than it was put"
    REFUSED_STORED = "a message whose put was refused is stored"
    FOREIGN = "a message is stored that nobody put"
    SAME_OFFSET = "two puts were acknowledged at one offset"
    SAME_ID = "two messages have one id"
    TORN_BATCH = "a block of messages is stored with gaps, or not from its first message on"
    ORDER = "a message stands before one that was acknowledged before it was put"
    LANE_ORDER = "messages of one connection are not stored in the order they were sent"
    WRONG_QUEUE_OFFSET = "a message has another queue offset than a RocketMQ client received"
    TWO_READ = "two messages were read at one offset"
    UNREAD = "a message that was read has disappeared"
    STALE_END = "a reader did not get a message that had been acknowledged"
    UNCOMMITTED = "a message of a transaction that was not committed is visible"
    NOT_WHOLE = "a committed transaction is not whole"
    NOT_CONTIGUOUS = "a transaction's messages in one partition are not one piece in the order of its puts"
    CONTRADICTION = "a transaction was acknowledged as committed and as rolled back"
    VANISHED = "a prepared branch vanished"
    CAME_BACK = "a branch that had ended is listed as prepared"
    NEVER_PREPARED = "a branch is listed as prepared that never was"
    START = "a partition does not begin where it should"
    BAD_END = "a partition does not end on a frame boundary"
    CORRUPT = "a corrupt frame was served"
    ODD = "a client saw what no correct broker shows"


class Anomaly(NamedTuple):
    """One broken guarantee. ``partition_key``, ``keys`` and ``transaction`` identify the records concerned."""

    kind: Kind
    text: str
    partition_key: PartitionKey | None = None
    keys: tuple[MessageKey, ...] = ()
    transaction: str | None = None

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.kind.value}: {self.text}"


class Case(NamedTuple):
    """The input of the checker.

    ``retention``: old segments may have been deleted. ``readable_at_once``: an acknowledged message can be read at once
    (group commit); in threshold mode, after the next sync. ``commits_may_wait``: the disk is full, so some partitions
    may get the messages of an unanswered commit only after the next restart.
    """

    history: History
    image: Image
    retention: bool = False
    readable_at_once: bool = True
    commits_may_wait: bool = False

    def removed(self, partition_key: PartitionKey, offset: int) -> bool:
        """Whether retention may have removed what was at ``offset``."""
        return self.retention and partition_key in self.image and offset < self.image[partition_key].start


Check = Callable[[Case], list[Anomaly]]
