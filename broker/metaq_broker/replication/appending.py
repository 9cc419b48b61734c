"""Appending a piece of an original to its copy: the same bytes, in a segment that begins at the same offset."""

from __future__ import annotations

from metaq.errors import CorruptFrame
from metaq_broker.replication.chunks import checked_frames
from metaq_broker.replication.local import CopyRefused, LocalPartitions
from metaq_broker.storage.errors import LogFailed
from metaq_broker.storage.partition_log import PartitionLog


def append_run(local: LocalPartitions, log: PartitionLog, segment_start: int, run: bytes) -> int:
    """Append the whole frames of ``run``, which belongs at the end of ``log``; return how many bytes they are.

    ``segment_start`` is where the original's segment with these bytes begins.

    Raises:
        CopyRefused: The segments are others here, a frame is damaged, or the disk refuses.
    """
    offset = log.end_offset
    try:
        if segment_start == offset:
            begin_segment(local, log)
        if segment_start != log.active.start:
            segments = f"{log.active.start} in the copy, {segment_start} in the original"
            raise CopyRefused(f"offset {offset} is in the segment that begins at {segments}; delete one of the two")
        frames = checked_frames(run, offset, log.directory.name)
        whole = b"".join(frames)
        if frames:
            log.append_copy(whole, frames)
            local.commit.schedule(log)
            local.engine.statistics.stored(log.topic, len(frames), len(whole))
    except CorruptFrame as error:
        raise CopyRefused(f"what the original sends is damaged: {error}") from error
    except LogFailed as failure:
        local.engine.note_failure(log.topic, failure)
        raise CopyRefused(str(failure)) from failure
    return len(whole)


def begin_segment(local: LocalPartitions, log: PartitionLog) -> None:
    """Let the next segment begin at the end of ``log``; nothing happens if it does already.

    Raises:
        CopyRefused: The disk refuses.
    """
    if log.active.start == log.end_offset:
        return
    log.begin_segment()
    if log.active.start != log.end_offset:
        raise CopyRefused(log.failure or f"there is no space for the segment that begins at {log.end_offset}")
    local.commit.schedule(log)
