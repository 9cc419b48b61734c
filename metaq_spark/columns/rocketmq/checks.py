"""Checks of a queue's records, and how a failed one is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.errors import CorruptFrame

RECORD_BYTES_KEPT: Final = 1_000_000
"""Limit on bytes of a bad record that are kept in its error."""

REASONS: Final = {
    "length": "it is cut, or its lengths contradict each other",
    "magic": "its magic number is none of a record",
    "topic": "it is of another topic",
    "queue": "it is of another queue",
    "offset": "its queue offset is before the one that was asked for",
    "checksum": "the checksum does not match the body",
    "kind": "its body is a batch of messages (a topic of message type BATCH), which cannot be read",
}
"""Descriptions of a record's fault, by keyword."""


class UnusableRecord(CorruptFrame):
    """A record of queue ``where`` cannot be used; ``offset`` is its queue offset, ``record`` its bytes, shortened.

    ``count``: how many queue offsets it covers; a batch stored as one record has several.
    """

    def __init__(self, where: str, offset: int, reason: str, record: bytes = b"", count: int = 1) -> None:
        super().__init__(where, offset, reason)
        self.record, self.count = record[:RECORD_BYTES_KEPT], count
        self.args = (*self.args, self.record, count)

    def __str__(self) -> str:
        at = f"offset {self.offset}" if self.count == 1 else f"offsets {self.offset} to {self.offset + self.count - 1}"
        return f"corrupt record in {self.where} at queue {at}: {self.reason}"


class FrameUnusable(Exception):
    """The frame of the message at queue offset ``offset`` cannot be decoded here; pull its record instead."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(offset)


ReportGap = Callable[[int, int], None]
"""Called with queue offsets ``[start, end)`` without records, although every message was requested."""


@dataclass(frozen=True, slots=True)
class ExpectedQueue:
    """The expected topic, as on the wire, and queue of records. ``dense``: no offset may be missing."""

    topic: bytes
    queue_id: int
    dense: bool = True
