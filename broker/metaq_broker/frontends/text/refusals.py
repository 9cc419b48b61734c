"""MetaQ's codes and sentences for what the engine refuses. Source: docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.protocols.text.codes import BAD_REQUEST, FAILED, FORBIDDEN, MOVED, NOT_FOUND
from metaq_broker.engine.outcomes import (
    BlockInvalid,
    ChecksumMismatch,
    ClockImplausible,
    DiskFull,
    InsideMessage,
    NothingAt,
    NotMaster,
    OffsetMoved,
    PartitionClosed,
    PartitionEmpty,
    PartitionLimit,
    PartitionUnavailable,
    PartitionUnknown,
    Refusal,
    SizeInvalid,
    SlaveOutOfSync,
    StorageFailed,
    TooLarge,
    TopicUnknown,
    TypesInvalid,
)


class Refused(NamedTuple):
    """A reply that refuses: status code and the text for the client."""

    code: int
    text: str


_CODES: Final[dict[type[Refusal], int]] = {
    PartitionClosed: FORBIDDEN,
    NotMaster: FORBIDDEN,
    SizeInvalid: BAD_REQUEST,
    TypesInvalid: BAD_REQUEST,
    InsideMessage: BAD_REQUEST,
    OffsetMoved: MOVED,
    NothingAt: NOT_FOUND,
    PartitionEmpty: NOT_FOUND,
}
"""Status of each kind of refusal; ``FAILED`` for all others."""


def _details(broker_id: int) -> dict[type[Refusal], Callable[..., str]]:
    def reason(refusal: StorageFailed) -> str:
        return refusal.reason

    explained = (
        *(TypesInvalid, BlockInvalid, NotMaster, SlaveOutOfSync, DiskFull, ClockImplausible),
        *(PartitionLimit, PartitionUnavailable, StorageFailed),
    )
    return {
        **dict.fromkeys(explained, reason),
        TopicUnknown: lambda it: f"The server do not accept topic {it.topic}",
        PartitionUnknown: lambda it: f"wrong partition {it.partition}",
        PartitionClosed: lambda it: f"partition[{broker_id}-{it.partition}] has been closed",
        PartitionEmpty: lambda it: f"The topic `{it.topic}` in partition `{it.partition}` is not exists",
        ChecksumMismatch: lambda _: "Checksum failure,message may be corrupted when transfering on networking.",
        TooLarge: lambda it: f"message of {it.length} bytes is longer than {it.limit} bytes (maxMessageSize)",
        SizeInvalid: lambda it: f"Bad request,invalid max size:{it.bytes_max}",
        OffsetMoved: lambda it: str(it.offset),
        NothingAt: lambda it: f"Could not find message at position {it.offset}",
        InsideMessage: lambda it: f"offset {it.offset} is inside the message that begins at {it.boundary}",
    }


class RefusalTexts:
    """The texts of one broker, which name it by its id, host name and port."""

    def __init__(self, broker_id: int, host_name: str, port: int) -> None:
        self._details = _details(broker_id)
        self._broker = f"meta://{host_name}:{port}"

    def plain(self, refusal: Refusal) -> Refused:
        """Return code and bare reason."""
        kind = type(refusal)
        return Refused(_CODES.get(kind, FAILED), self._details[kind](refusal))

    def put(self, topic: str, partition: int, refusal: Refusal) -> Refused:
        """Return the refusal of a put: the reason, and what broker and partition it is about."""
        code, detail = self.plain(refusal)
        where = f"[broker '{self._broker}'] [partition '{topic}-{partition}']"
        return Refused(code, f"Put message to {where} failed.Detail:{detail}")

    def get(self, topic: str, partition: int, refusal: Refusal) -> Refused:
        """Return the refusal of a get."""
        if isinstance(refusal, PartitionClosed):
            code, detail = self.plain(refusal)
            return Refused(code, f"P{detail[1:]}")  # MetaQ writes it in both ways
        return self.plain(refusal)
