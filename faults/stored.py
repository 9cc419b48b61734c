"""The contents of a partition as read: frames whose payloads have been checked, and images of whole partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from faults.payload import MessageKey, PayloadFault, read_payload
from metaq.errors import CorruptFrame
from metaq.formats.frames import Frame, walk, whole_bytes


class PartitionKey(NamedTuple):
    """One partition of the broker under test."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


class StoredFrame(NamedTuple):
    """A frame as read. ``key`` is ``None`` if the payload is damaged or not from this test; ``fault`` says why."""

    offset: int
    end: int
    message_id: int
    flag: int
    checksum: int
    key: MessageKey | None
    fault: str = ""

    def __str__(self) -> str:
        where = f"[{self.offset}, {self.end})"
        return f"{where} id {self.message_id} flag {self.flag} checksum {self.checksum:#x}: {self.key or self.fault}"


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition from ``start`` to ``end``, its end according to the broker or to its files.

    ``fault`` says what stopped the reader before ``end``; empty if the frames end there.
    """

    partition_key: PartitionKey
    start: int
    end: int
    frames: tuple[StoredFrame, ...]
    fault: str = ""


Image = Mapping[PartitionKey, PartitionImage]


def examine(frame: Frame) -> StoredFrame:
    """Decode the payload of a frame."""
    try:
        key, fault = read_payload(frame.message.payload), ""
    except (CorruptFrame, PayloadFault) as error:
        key, fault = None, str(error)
    return StoredFrame(frame.offset, frame.end, frame.message_id, frame.flag, frame.checksum, key, fault)


def image_of(partition_key: PartitionKey, start: int, end: int, runs: Iterable[bytes]) -> PartitionImage:
    """Return the image of a partition from its bytes, in pieces of any size."""
    frames: list[StoredFrame] = []
    position, waiting = start, b""
    for run in runs:
        waiting += run
        try:
            whole = whole_bytes(waiting)
            frames += map(examine, walk(waiting[:whole], position, where=str(partition_key)))
        except CorruptFrame as error:
            return PartitionImage(partition_key, start, end, tuple(frames), str(error))
        position, waiting = position + whole, waiting[whole:]
    fault = ""
    if waiting:
        fault = f"the last {len(waiting)} bytes before {end} are no whole frame"
    elif position != end:
        fault = f"the bytes end at {position}, not at {end}"
    return PartitionImage(partition_key, start, end, tuple(frames), fault)
