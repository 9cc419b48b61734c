"""Checks of a queue's records, and how a failed one is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.errors import CorruptFrame

RECORD_BYTES_KEPT: Final = 1_000_000
"""Bytes of a bad record that its error carries."""

REASONS: Final = {
    "length": "it is cut, or its lengths contradict each other",
    "magic": "its magic number is none of a record",
    "topic": "it is of another topic",
    "queue": "it is of another queue",
    "offset": "its queue offset is before the one that was asked for",
    "checksum": "the checksum does not match the body",
    "kind": "its body is a batch of messages (a topic of message type BATCH), which cannot be read",
}
"""What is wrong with a record, by a word for it."""


class CorruptRecord(CorruptFrame):
    """A record of queue ``where`` cannot be used; ``offset`` is its queue offset, ``record`` its bytes, shortened.

    ``count``: how many queue offsets from there on it has; a batch that a broker keeps as one record has several.
    """

    def __init__(self, where: str, offset: int, reason: str, record: bytes = b"", count: int = 1) -> None:
        super().__init__(where, offset, reason)
        self.record, self.count = record[:RECORD_BYTES_KEPT], count
        self.args = (*self.args, self.record, count)

    def __str__(self) -> str:
        at = f"offset {self.offset}" if self.count == 1 else f"offsets {self.offset} to {self.offset + self.count - 1}"
        return f"corrupt record in {self.where} at queue {at}: {self.reason}"


class FrameUnusable(Exception):
    """The frame of the message at queue offset ``offset`` does not do; its record says what the message is."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(offset)


ReportGap = Callable[[int, int], None]
"""Called with queue offsets ``[start, end)`` of which no record came although every message was asked for."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What records must be of: the topic as it is on the wire, and the queue. ``dense``: none may be missing."""

    topic: bytes
    queue_id: int
    dense: bool = True
