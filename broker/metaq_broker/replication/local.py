"""This broker's own partitions as a source or target of copies, and appending to a copy.

A copy has the same bytes as its original, in segments that begin at the same offsets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metaq.errors import CorruptFrame, MetaqError
from metaq.formats.frame_block import FrameBlock
from metaq.formats.topic_names import storage_fault
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import MaintenanceRefused, PartitionMaintenance
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.folders import folder_name
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.log.segments.segment_files import seed_partition
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.log.sync.sync_queue import outcome
from metaq_broker.replication.peer import PartitionKey, StoredRange


class CopyRefused(MetaqError):
    """A partition is not copied; the text says why, for the operator."""


@dataclass(frozen=True, slots=True)
class LocalPartitions:
    """The parts of the broker that copying needs."""

    engine: Engine
    commit: GroupCommit
    maintenance: PartitionMaintenance
    files: Files

    def find(self, partition_key: PartitionKey) -> PartitionLog | None:
        """Return a partition; ``None`` if it does not exist.

        Raises:
            CopyRefused: It exists and cannot be used, or its topic cannot be stored.
        """
        stores = self.engine.stores
        log = stores.get(*partition_key)
        fault = stores.refusal(*partition_key) if log is None else log.failure
        fault = fault or storage_fault(partition_key[0])
        if fault is not None:
            raise CopyRefused(fault)
        reason = self.engine.space.refusal(self.engine.config.topic_settings(partition_key[0]).data_path)
        if reason is not None:
            raise CopyRefused(reason)
        return log

    async def make(self, partition_key: PartitionKey, stored_range: StoredRange, ordinal: int) -> PartitionLog:
        """Create a partition that begins like ``stored_range``, with ``ordinal`` messages before its start.

        Raises:
            CopyRefused: The disk refuses, or there are too many partitions.
        """
        stores, system = self.engine.stores, self.engine.config.system
        fault = self.engine.more_partitions_refusal()
        if fault is not None:
            raise CopyRefused(fault)
        store = stores.store_of(partition_key[0])
        directory = Path(store.data_path) / folder_name(*partition_key)
        seed = stored_range.start, ordinal, stored_range.incarnation, system.index_interval_bytes
        try:
            await asyncio.to_thread(seed_partition, self.files, directory, *seed)
            stores.bring_online(await asyncio.to_thread(store.open_again, *partition_key))
        except (OSError, MetaqError) as error:
            self.engine.note_failure(partition_key[0], error)
            raise CopyRefused(f"the partition's folder cannot be created: {error}") from error
        log = stores.get(*partition_key)
        assert log is not None  # its check has passed
        return log

    async def remove(self, partition_key: PartitionKey) -> None:
        """Remove a partition with all its files.

        Raises:
            CopyRefused: It could not be removed.
        """
        try:
            await self.maintenance.delete(partition_key[0], [partition_key[1]], force=True)
        except MaintenanceRefused as refused:
            raise CopyRefused(str(refused)) from refused

    async def durable(self, log: PartitionLog) -> None:
        """Return when everything that was appended is durable.

        Raises:
            CopyRefused: The disk failed.
        """
        error = await outcome(partial(self.commit.wait_durable, log, log.end_offset))
        if error is not None:
            raise CopyRefused(str(error))


def holding_of(log: PartitionLog) -> StoredRange:
    return StoredRange(log.start_offset, log.readable_end, log.incarnation)


async def read_own(log: PartitionLog, offset: int, bytes_max: int) -> bytes:
    """Return bytes of a partition of this broker, at least one.

    Raises:
        CopyRefused: They are damaged, or cannot be read.
    """
    try:
        found = log.read(offset, bytes_max)
        if isinstance(found, Slice):
            return found.read()
    except OSError as error:
        raise CopyRefused(f"offset {offset} cannot be read: {error}") from error
    raise CopyRefused(f"there are damaged bytes at offset {offset}")


def append_run(local: LocalPartitions, log: PartitionLog, segment_start: int, run: bytes) -> int:
    """Append the whole frames of ``run``, which begins at the end of ``log``; return their number of bytes.

    ``segment_start`` is the start of the original's segment with these bytes.

    Raises:
        CopyRefused: The segments differ here, a frame is damaged, or the disk refuses.
    """
    offset = log.end_offset
    try:
        block = FrameBlock.checked(run, offset, log.name)
    except CorruptFrame as error:
        raise CopyRefused(f"the original sent damaged bytes: {error}") from error
    append_block(local, log, segment_start, block)
    return len(block)


def append_block(local: LocalPartitions, log: PartitionLog, segment_start: int, block: FrameBlock) -> None:
    """Append frames that were checked, as ``append_run`` does; none: only a segment may begin.

    Raises:
        CopyRefused: The segments differ here, or the disk refuses.
    """
    offset = log.end_offset
    if segment_start == offset:
        begin_segment(local, log)
    if segment_start != log.active.start:
        segments = f"{log.active.start} in the copy, {segment_start} in the original"
        raise CopyRefused(f"offset {offset} is in the segment that begins at {segments}; delete one of the two")
    if not block.count:
        return
    try:
        log.append_copy(block)
    except LogFailed as failure:
        local.engine.note_failure(log.topic, failure)
        raise CopyRefused(str(failure)) from failure
    local.commit.schedule(log)
    local.engine.statistics.stored(log.topic, block.count, len(block))


def begin_segment(local: LocalPartitions, log: PartitionLog) -> None:
    """Let the next segment begin at the end of ``log``, unless one begins there already.

    Raises:
        CopyRefused: The disk refuses.
    """
    if log.active.start == log.end_offset:
        return
    log.begin_segment()
    if log.active.start != log.end_offset:
        raise CopyRefused(log.failure or f"there is no space for the segment that begins at {log.end_offset}")
    local.commit.schedule(log)
