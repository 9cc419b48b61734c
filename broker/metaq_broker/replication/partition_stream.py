"""A partition as a replicated stream."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable

from metaq.errors import CorruptFrame
from metaq.formats.checksum import crc32
from metaq.formats.frame_block import FrameBlock
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.files.files import FileHandle
from metaq_broker.log.partitions.damage import COPIED, Damage
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.streams.facts import StreamOrigin
from metaq_broker.log.streams.stream import TAIL_BYTES, StreamBytes, StreamDamaged, StreamRefused
from metaq_broker.replication.local import CopyRefused, LocalPartitions, append_block
from metaq_broker.replication.paired_commit import PairedCommit

RemoveBefore = Callable[[PartitionLog, int], Awaitable[None]]
"""Removes the segments of a partition that end at or before an offset, as far as possible."""


class PartitionStream:
    """The stream of ``log``; ``commit`` is the group commit that the partition uses."""

    def __init__(
        self, local: LocalPartitions, commit: PairedCommit, log: PartitionLog, remove_before: RemoveBefore
    ) -> None:
        self._local, self._commit, self.log, self._remove_before = local, commit, log, remove_before
        self.name = log.name

    def __repr__(self) -> str:
        return f"<PartitionStream {self.name} {self.confirmed_end}..{self.durable_end}..{self.end}>"

    @property
    def origin(self) -> StreamOrigin | None:
        job, log = self._commit.pending(self.log), self.log
        # The first sync of a partition writes its incarnation, and the log takes note of that when the sync is settled.
        incarnation = log.incarnation or (job.incarnation if job is not None and job.incarnation_written else None)
        first = log.layout.segments[0]
        return None if incarnation is None else StreamOrigin(self.name, incarnation, first.start, first.first_ordinal)

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

    def read(self, offset: int, limit: int, bytes_max: int) -> StreamBytes:
        if (damage := self.log.layout.damage_at(offset)) is not None:
            return self._read_damage(damage, offset, min(limit, self.end), bytes_max)
        start, handle, end = self._source(offset, min(limit, self.end))
        wanted = bytes_max
        while True:  # until a frame is complete
            data = self._pread(handle, min(wanted, end - offset), offset, start)
            block = self._intact(data, offset)
            if block.count:
                return StreamBytes(offset, start, bytes(block.data) if wanted == bytes_max else block.split()[0])
            if len(data) < wanted:
                raise StreamDamaged(self.name, offset, f"there is no whole frame at offset {offset}")
            wanted *= 4

    def _read_damage(self, damage: Damage, offset: int, limit: int, bytes_max: int) -> StreamBytes:
        start, handle, end = self._file(offset, min(damage.end, limit))
        data = self._pread(handle, min(bytes_max, end - offset), offset, start)
        return StreamBytes(offset, start, data, damage.messages if offset == damage.start else 0)

    def _intact(self, data: bytes, offset: int) -> FrameBlock:
        """Return the whole frames before the first damaged one.

        Raises:
            StreamDamaged: The first frame is damaged.
        """
        try:
            return FrameBlock.checked(data, offset, self.name)
        except CorruptFrame as damage:
            if damage.offset == offset:
                raise StreamDamaged(self.name, offset, str(damage)) from damage
            return FrameBlock.checked(data[: damage.offset - offset], offset, self.name)

    def _source(self, offset: int, limit: int) -> tuple[int, FileHandle, int]:
        """Return the start of the segment with ``offset``, its open file, and the end of its intact bytes, at most
        ``limit``.
        """
        start, handle, end = self._file(offset, limit)
        return start, handle, self.log.layout.intact_end(offset, end)

    def _file(self, offset: int, limit: int) -> tuple[int, FileHandle, int]:
        layout = self.log.layout
        if not layout.start <= offset < limit:
            raise StreamRefused(self.name, f"offset {offset} is not in [{layout.start}, {limit})")
        segment = layout.find(offset)
        try:
            return segment.start, layout.handle(segment), min(segment.end, limit)
        except OSError as error:
            raise StreamRefused(self.name, f"offset {offset} cannot be read: {error}") from error

    def _pread(self, handle: FileHandle, count: int, offset: int, start: int) -> bytes:
        try:
            return handle.pread(count, offset - start)
        except OSError as error:
            raise StreamRefused(self.name, f"offset {offset} cannot be read: {error}") from error

    def tail(self, end: int) -> int:
        offset, crc = max(self.log.start_offset, end - TAIL_BYTES), 0
        while offset < end:
            start, handle, limit = self._file(offset, min(end, self.end))
            crc, offset = crc32(self._pread(handle, limit - offset, offset, start), crc), limit
        return crc

    # ---- a follower

    def append_copy(self, run: StreamBytes) -> None:
        log = self.log
        if run.offset != log.end_offset:
            raise StreamRefused(self.name, f"it ends at {log.end_offset}, and the run begins at {run.offset}")
        if run.lost_messages is not None:
            self._append_damage(run, run.lost_messages)
            return
        try:
            block = FrameBlock.checked(run.data, run.offset, self.name)
        except CorruptFrame as error:
            raise StreamRefused(self.name, f"the leader sent damaged bytes: {error}") from error
        if len(block) != len(run.data):
            raise StreamRefused(self.name, f"the last frame of the run at {run.offset} is cut")
        try:
            append_block(self._local, log, run.file_start, block)
        except CopyRefused as refused:
            raise StreamRefused(self.name, str(refused)) from refused

    def _append_damage(self, run: StreamBytes, messages: int) -> None:
        try:
            append_block(self._local, self.log, run.file_start, FrameBlock(b"", 0, array("q")))
            self.log.append_damage(run.data, messages)
        except (CopyRefused, LogFailed) as refused:
            raise StreamRefused(self.name, str(refused)) from refused
        self._commit.schedule(self.log)

    @property
    def own_damage(self) -> Damage | None:
        """The first damage that is not the leader's, too; ``None`` without any."""
        return next((each for each in self.log.layout.damage if each.reason != COPIED), None)

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
