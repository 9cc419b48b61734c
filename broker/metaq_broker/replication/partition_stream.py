"""A partition as a replicated stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from metaq.errors import CorruptFrame
from metaq.formats.checksum import crc32
from metaq.formats.frame_block import FrameBlock
from metaq_broker.log.files.files import FileHandle
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.log.streams.stream import TAIL_BYTES, Origin, Run, StreamDamaged, StreamRefused
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.replication.local import CopyRefused, LocalPartitions, append_block, checked_block
from metaq_broker.replication.paired_commit import PairedCommit

RemoveBefore = Callable[[PartitionLog, int], Awaitable[None]]
"""Removes the segments of a partition that end at or before an offset, as far as possible."""


class PartitionStream:
    """The stream of ``log``; ``commit`` is the group commit that the partition uses."""

    def __init__(
        self, local: LocalPartitions, commit: PairedCommit, log: PartitionLog, remove_before: RemoveBefore
    ) -> None:
        self._local, self._commit, self.log, self._remove_before = local, commit, log, remove_before
        self.name = log.directory.name

    def __repr__(self) -> str:
        return f"<PartitionStream {self.name} {self.confirmed_end}..{self.durable_end}..{self.end}>"

    @property
    def origin(self) -> Origin | None:
        job, log = self._commit.pending(self.log), self.log
        # The first sync of a partition writes its incarnation, and the log takes note of that when the sync is settled.
        incarnation = log.incarnation or (job.incarnation if job is not None and job.incarnation_written else None)
        first = log.layout.segments[0]
        return None if incarnation is None else Origin(self.name, incarnation, first.start, first.first_ordinal)

    @property
    def end(self) -> int:
        return self.log.end_offset

    @property
    def durable_end(self) -> int:
        job = self._commit.pending(self.log)
        return self.log.readable_end if job is None else job.end

    @property
    def confirmed_end(self) -> int:
        return self.log.readable_end

    # ---- reading

    def read(self, offset: int, bytes_max: int) -> Run:
        job, goal = self._commit.pending(self.log), self.durable_end
        if offset == goal:
            return Run(offset, self._last_file(job), b"")
        start, handle, limit = self._source(offset, goal, job)
        wanted = bytes_max
        while True:  # until a frame is complete
            try:
                data = handle.pread(min(wanted, limit - offset), offset - start)
            except OSError as error:
                raise StreamRefused(self.name, f"offset {offset} cannot be read: {error}") from error
            block = self._intact(data, offset)
            if block.count:
                return Run(offset, start, bytes(block.data) if wanted == bytes_max else block.split()[0])
            if len(data) < wanted:
                raise StreamDamaged(self.name, offset, f"there is no whole frame at offset {offset}")
            wanted *= 4

    def _intact(self, data: bytes, offset: int) -> FrameBlock:
        """Return the whole frames before the first damaged one.

        Raises:
            StreamDamaged: The first frame is damaged.
        """
        try:
            return checked_block(data, offset, self.name)
        except CorruptFrame as damage:
            if damage.offset == offset:
                raise StreamDamaged(self.name, offset, str(damage)) from damage
            return checked_block(data[: damage.offset - offset], offset, self.name)

    def _last_file(self, job: SyncJob | None) -> int:
        if job is not None:
            return job.targets[-1].segment.start
        segments = self.log.layout.segments
        return segments[-1].start if segments[-1].named else segments[-2].start

    def _source(self, offset: int, goal: int, job: SyncJob | None) -> tuple[int, FileHandle, int]:
        """Return the start of the segment with ``offset``, its open file, and the end of its bytes, at most ``goal``.
        """
        if offset < self.log.readable_end:
            try:
                found = self.log.read(offset, goal - offset)
            except OSError as error:
                raise StreamRefused(self.name, f"offset {offset} cannot be read: {error}") from error
            if isinstance(found, Slice):
                return offset - found.position, found.handle, offset + found.length
            if offset >= self.log.start_offset:
                raise StreamDamaged(self.name, offset, f"the bytes from offset {offset} on are quarantined")
        for target in job.targets if job is not None else ():
            start, end = target.segment.start, target.segment.start + target.size
            if start <= offset < end:
                return start, target.handle, min(goal, end)
        raise StreamRefused(self.name, f"offset {offset} is not in [{self.log.start_offset}, {goal})")

    def tail(self) -> int:
        """Return the CRC-32 of the last ``TAIL_BYTES`` before the durable end, as they are on the disk (blocking).

        Raises:
            StreamRefused: They cannot be read.
        """
        goal, crc = self.durable_end, 0
        job = self._commit.pending(self.log)
        offset = max(self.log.start_offset, goal - TAIL_BYTES)
        while offset < goal:
            start, handle, limit = self._source(offset, goal, job)
            try:
                data = handle.pread(limit - offset, offset - start)
            except OSError as error:
                raise StreamRefused(self.name, f"offset {offset} cannot be read: {error}") from error
            crc, offset = crc32(data, crc), limit
        return crc

    # ---- a follower

    def append_copy(self, run: Run) -> None:
        log = self.log
        if run.offset != log.end_offset:
            raise StreamRefused(self.name, f"it ends at {log.end_offset}, and the run begins at {run.offset}")
        try:
            block = checked_block(run.data, run.offset, self.name)
        except CorruptFrame as error:
            raise StreamRefused(self.name, f"the leader sent damaged bytes: {error}") from error
        if len(block) != len(run.data):
            raise StreamRefused(self.name, f"the last frame of the run at {run.offset} is cut")
        try:
            append_block(self._local, log, run.file_start, block)
        except CopyRefused as refused:
            raise StreamRefused(self.name, str(refused)) from refused

    def when_durable(self, callback: Callable[[StreamRefused | None], None]) -> None:
        def durable(error: Exception | None) -> None:
            callback(None if error is None else StreamRefused(self.name, str(error)))

        self._commit.wait_durable(self.log, self.log.end_offset, durable)

    async def drop_before(self, start: int) -> None:
        if self.log.start_offset < start:
            await self._remove_before(self.log, start)

    # ---- a leader

    def confirm(self, end: int) -> None:
        job = self._commit.pending(self.log)
        if job is not None and job.end <= end:
            self._commit.settle_job(self.log, job)
