"""Continues reading when a run of the log has no whole frame: the frame is damaged, or longer than the run."""

from __future__ import annotations

import logging
from typing import Final

from metaq.errors import CorruptFrame
from metaq.formats.frames import HEADER_BYTES, frame_bytes
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Slice

_LOG: Final = logging.getLogger(__name__)


def behind_damage(log: PartitionLog, offset: int, error: CorruptFrame) -> int:
    """Return where the message behind a newly found damaged one begins: one damaged frame costs one frame.

    Raises:
        CorruptFrame: There is no intact message at the end of the damaged one.
        OSError: The segment cannot be read.
    """
    front = log.read(offset, 4)
    end = offset + frame_bytes(front.read()) if isinstance(front, Slice) else -1
    if not offset < end <= log.readable_end or (end < log.readable_end and next(log.scan(end), None) is None):
        raise error
    fields = {"partition": log.directory.name, "offset": offset, "reason": error.reason}
    _LOG.error("a damaged message was left out; check the partition with fsck", extra={"fields": fields})
    return end


def frame_bytes_of(log: PartitionLog, offset: int, run: bytes) -> int:
    """Return how many bytes the frame at ``offset`` takes, of which ``run`` has too few.

    Raises:
        CorruptFrame: It cannot be so long.
    """
    size = frame_bytes(run) if len(run) >= HEADER_BYTES else HEADER_BYTES
    if not len(run) < size <= log.readable_end - offset:
        raise CorruptFrame(log.directory.name, offset, f"it announces {size} bytes, more than there are")
    return size
