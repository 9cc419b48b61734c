"""Sends one partition of a synchronous pair's master to the slave, in order, one run of frames at a time.

A slave of this project gets ``copy`` commands: runs of frames with their offsets. A Java slave gets ``sync`` commands,
one for each message. It appends the message at its own end and reports the offset, which must equal the offset here.
The two copies are compared first (``java_slave``). In addition, the first message of a partition is sent alone, and
the reported offset is checked before the next message is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import walk
from metaq_broker.log.files.files import FileHandle
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.replication.agreement import Agreement, compare_ends, judge, require_same_number
from metaq_broker.replication.java_slave import GROUP
from metaq_broker.replication.local import CopyRefused
from metaq_broker.replication.peer import CopiedMessage, CopiedRun, Declined, Peer, StoredMessage, StoredRange

COPY_BYTES: Final = 1 << 20
"""Approximate size of one ``copy``; one that starts with a longer frame is longer."""


class PartitionSender:
    """The state of ``log`` on the slave of ``peer``: it has everything before ``end``."""

    def __init__(self, peer: Peer, log: PartitionLog) -> None:
        self._peer, self._log = peer, log
        self._copies = peer.takes_copies
        self._proven = False
        self._segment_start: int | None = None
        self._incarnation: str | None = None
        self.end = log.start_offset

    async def compare(self, there: StoredRange | Declined | None, job: SyncJob | None) -> None:
        """Compare with the slave's partition (``None``: it has none); ``job`` as for ``send_missing``.

        ``Declined``: the slave cannot store the partition.

        Raises:
            CopyRefused: The partition on the slave is not a copy of this one.
            PeerLost: The connection is lost.
        """
        log = self._log
        if isinstance(there, Declined):
            raise CopyRefused(f"the slave does not take it: {there.answer}")
        # The slave may have the data of the job already, if the connection was lost before its answer.
        here = StoredRange(log.start_offset, self._goal(job), self._incarnation_of(job))

        async def read_original(offset: int, bytes_max: int) -> bytes:
            start, handle, end = self._source(offset, here.readable_end, job)
            return handle.pread(min(bytes_max, end - offset), offset - start)

        if there is not None and judge(there, here) is Agreement.CONTINUES:
            await compare_ends(there, here, self._read_copy, read_original)
            await self._compare_numbers(there)
            self.end, self._segment_start = there.readable_end, there.last_start
            return
        if not self._copies:
            ends = f"{there.readable_end if there else 0}, and its original begins at {log.start_offset}"
            raise CopyRefused(f"the copy ends at {ends}; a Java slave stores messages at its own end only")
        self.end = log.start_offset

    async def _compare_numbers(self, there: StoredRange) -> None:
        first = max(there.start, self._log.start_offset)
        if self._copies and first:
            number = await self._peer.ordinal((self._log.topic, self._log.index), GROUP, first)
            if number is not None:
                require_same_number(number, self._log.ordinal(first), first)

    async def send_missing(self, job: SyncJob | None) -> None:
        """Send the missing frames, up to the end of ``job``, which was synced here, or to the readable end.

        Raises:
            CopyRefused: The slave refuses the frames, or they cannot be read here.
            PeerLost: The connection is lost.
        """
        self._incarnation, goal = self._incarnation_of(job), self._goal(job)
        while self.end < goal:
            start, run = self._next_run(goal, job)
            await self._send(start, run)
        last = self._last_segment(job)
        if self._copies and last == self.end and self._segment_start != last:
            await self._send(last, b"")

    def _goal(self, job: SyncJob | None) -> int:
        return self._log.readable_end if job is None else job.end

    def _incarnation_of(self, job: SyncJob | None) -> str | None:
        # The first sync of a partition writes its incarnation, and the log takes note of that when the sync is settled.
        return self._log.incarnation or (job.incarnation if job is not None and job.incarnation_written else None)

    def _last_segment(self, job: SyncJob | None) -> int:
        if job is not None:
            return job.targets[-1].segment.start
        active = self._log.active
        return active.start if active.named else -1

    # ---- reading here

    def _next_run(self, goal: int, job: SyncJob | None) -> tuple[int, bytes]:
        """Return the start of a segment, and its next whole frames."""
        start, handle, limit = self._source(self.end, goal, job)
        position, wanted = self.end - start, COPY_BYTES
        while True:  # until the frame is complete
            run = handle.pread(min(wanted, limit - self.end), position)
            block = FrameBlock.checked(run, self.end, self._log.name)
            if block.count:
                return start, bytes(block.data) if wanted == COPY_BYTES else block.split()[0]
            if len(run) < wanted:
                raise CopyRefused(f"there is no whole frame at offset {self.end}")
            wanted *= 4

    def _source(self, offset: int, goal: int, job: SyncJob | None) -> tuple[int, FileHandle, int]:
        """Return the start of the segment with ``offset``, its open file, and the end of its bytes, at most ``goal``.
        """
        if offset < self._log.readable_end:
            found = self._log.read(offset, goal - offset)
            if not isinstance(found, Slice):
                raise CopyRefused(f"there are damaged bytes at offset {offset}")
            return offset - found.position, found.handle, offset + found.length
        for target in job.targets if job is not None else ():
            start, end = target.segment.start, target.segment.start + target.size
            if start <= offset < end:
                return start, target.handle, min(goal, end)
        raise CopyRefused(f"offset {offset} is in no segment")

    # ---- sending

    async def _send(self, segment_start: int, run: bytes) -> None:
        if self._copies:
            await self._send_copy(segment_start, run)
        else:
            await self._send_messages(run)
        self.end += len(run)
        self._segment_start = segment_start

    async def _send_copy(self, segment_start: int, run: bytes) -> None:
        log, incarnation, first = self._log, self._incarnation, self._log.start_offset
        if incarnation is None:
            raise CopyRefused("its incarnation is not on the disk yet")
        ordinal = log.ordinal(first) if first else 0
        copied = CopiedRun((log.topic, log.index), run, self.end, segment_start, first, ordinal, incarnation)
        _expect(await self._peer.copy(copied), self.end + len(run))

    async def _send_messages(self, run: bytes) -> None:
        partition_key, messages, expected = (self._log.topic, self._log.index), [], []
        for frame in walk(run, self.end):
            _, message_id, flag, crc, body = frame
            messages.append(CopiedMessage(partition_key, message_id, flag, body, crc))
            expected.append(StoredMessage(message_id, self._log.index, frame.offset))
        proving = 0 if self._proven else 1
        if proving:
            [answer] = await self._peer.store(messages[:1])
            self._prove(answer, expected[0])
        for answer, wanted in zip(await self._peer.store(messages[proving:]), expected[proving:], strict=True):
            _expect(answer, wanted)

    def _prove(self, stored: StoredMessage | Declined, expected: StoredMessage) -> None:
        """Check where the slave has stored the first message; if the offset is wrong, no further message is sent."""
        if isinstance(stored, StoredMessage) and replace(stored, offset=expected.offset) == expected != stored:
            raise CopyRefused(
                f"the slave stored the message of offset {expected.offset} at {stored.offset}; nothing more is sent. "
                "Stop the slave, remove this partition's folder there, and start it again"
            )
        _expect(stored, expected)
        self._proven = True

    async def _read_copy(self, offset: int, bytes_max: int) -> bytes:
        found = await self._peer.read((self._log.topic, self._log.index), GROUP, offset, bytes_max)
        if isinstance(found, Declined):
            raise CopyRefused(f"the slave has nothing to compare with at offset {offset}: {found.answer}")
        return found


def _expect(answer: int | StoredMessage | Declined, expected: int | StoredMessage) -> None:
    if answer != expected:
        words = answer.answer if isinstance(answer, Declined) else answer
        raise CopyRefused(f"the slave answers {words} where {expected} was expected")
