"""What the engine answers: typed values, which every frontend turns into its own replies. No protocol's words or codes.

A ``Refusal`` is an expected outcome, never an exception: the request was not carried out, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.formats.message_id import IdRange


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not carried out."""


@dataclass(frozen=True, slots=True)
class TopicUnknown(Refusal):
    """The configuration accepts no messages for the topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicReserved(Refusal):
    """Only the broker itself puts to the topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class PartitionUnknown(Refusal):
    """The topic has no partition with this index."""

    partition: int


@dataclass(frozen=True, slots=True)
class PartitionClosed(Refusal):
    """An operator closed the partition for puts and gets; index -1: all partitions of the topic."""

    partition: int


@dataclass(frozen=True, slots=True)
class PartitionEmpty(Refusal):
    """Nothing was ever put to the partition, so there is no log to read."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ChecksumMismatch(Refusal):
    """The body has not the checksum that came with it."""


@dataclass(frozen=True, slots=True)
class TooLarge(Refusal):
    """The body of a message has more bytes than ``limit``."""

    length: int
    limit: int


@dataclass(frozen=True, slots=True)
class SizeInvalid(Refusal):
    """A read that asks for no bytes."""

    bytes_max: int


@dataclass(frozen=True, slots=True)
class OffsetMoved(Refusal):
    """The offset is not stored; ``offset`` is the one to go on from."""

    offset: int


@dataclass(frozen=True, slots=True)
class NothingAt(Refusal):
    """There is no message at ``offset`` yet."""

    offset: int


@dataclass(frozen=True, slots=True)
class InsideMessage(Refusal):
    """``offset`` lies inside the message that begins at ``boundary``."""

    offset: int
    boundary: int


@dataclass(frozen=True, slots=True)
class _Explained(Refusal):
    reason: str


@dataclass(frozen=True, slots=True)
class TypesInvalid(_Explained):
    """A message type is no name of one."""


@dataclass(frozen=True, slots=True)
class BlockInvalid(_Explained):
    """A block is not the whole, correct frames that it should be."""


@dataclass(frozen=True, slots=True)
class NotMaster(_Explained):
    """The broker is a slave, or was fenced by one that was promoted."""


@dataclass(frozen=True, slots=True)
class SlaveOutOfSync(_Explained):
    """The master of a synchronous pair has no slave in sync, so it must not acknowledge anything."""


@dataclass(frozen=True, slots=True)
class DiskFull(_Explained):
    """There is too little space on a disk."""


@dataclass(frozen=True, slots=True)
class ClockImplausible(_Explained):
    """The clock shows a time that message ids must not be made of."""


@dataclass(frozen=True, slots=True)
class PartitionLimit(_Explained):
    """No partition can be made beside those that there are."""


@dataclass(frozen=True, slots=True)
class PartitionUnavailable(_Explained):
    """The partition could not be opened, or is out of service."""


@dataclass(frozen=True, slots=True)
class StorageFailed(_Explained):
    """A disk or a file failed; ``cause`` says how."""

    cause: Exception | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AllRejected(Refusal):
    """None of a block's independent messages can be stored: why, by position in the block."""

    rejected: Mapping[int, Refusal]


class Appended(NamedTuple):
    """A block that is written to ``partition``, not yet durable.

    Its messages have the ids ``ids``, the ordinals from ``first_ordinal`` on, and their frames stand back to back from
    byte ``first_offset`` to ``end_offset``. Messages of an independent block that could not be stored are in
    ``rejected``, by position in the block; nothing of theirs is counted in the rest.
    """

    partition: int
    ids: IdRange
    first_offset: int
    end_offset: int
    first_ordinal: int
    rejected: Mapping[int, Refusal]
