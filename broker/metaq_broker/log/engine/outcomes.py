"""The engine's answers: typed values, which every front end converts to its own replies. Independent of protocols.

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
    """Only the broker itself may put to the topic."""

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
    """The partition was never put to, so it has no log."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ChecksumMismatch(Refusal):
    """The body does not match the checksum that came with it."""


@dataclass(frozen=True, slots=True)
class TooLarge(Refusal):
    """The body of a message has more bytes than ``limit``."""

    length: int
    limit: int


@dataclass(frozen=True, slots=True)
class SizeInvalid(Refusal):
    """A read asks for no bytes."""

    bytes_max: int


@dataclass(frozen=True, slots=True)
class OffsetNotStored(Refusal):
    """The offset is not stored; continue at ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class NothingAt(Refusal):
    """There is no message at ``offset`` yet."""

    offset: int


@dataclass(frozen=True, slots=True)
class InsideMessage(Refusal):
    """``offset`` is inside the message that begins at ``boundary``."""

    offset: int
    boundary: int


@dataclass(frozen=True, slots=True)
class _Explained(Refusal):
    reason: str


@dataclass(frozen=True, slots=True)
class TypesInvalid(_Explained):
    """A message type is not a valid name."""


@dataclass(frozen=True, slots=True)
class BlockInvalid(_Explained):
    """A block does not consist of whole, correct frames."""


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
    """The clock shows a time that must not be used in message ids."""


@dataclass(frozen=True, slots=True)
class PartitionLimit(_Explained):
    """No further partition can be created."""


@dataclass(frozen=True, slots=True)
class PartitionUnavailable(_Explained):
    """The partition could not be opened, or is out of service."""


@dataclass(frozen=True, slots=True)
class StorageFailed(_Explained):
    """A disk or a file failed; ``cause`` says how."""

    cause: Exception | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AllRejected(Refusal):
    """No message of an independent block can be stored; the reasons by position in the block."""

    rejected: Mapping[int, Refusal]


class Appended(NamedTuple):
    """A block that is written to ``partition`` and not durable yet.

    Its messages have the ids ``ids`` and the ordinals from ``first_ordinal`` on; their frames are contiguous from byte
    ``first_offset`` to ``end_offset``. ``rejected`` has the refused messages of an independent block, by position in
    the block; the other fields do not count them.
    """

    partition: int
    ids: IdRange
    first_offset: int
    end_offset: int
    first_ordinal: int
    rejected: Mapping[int, Refusal]
