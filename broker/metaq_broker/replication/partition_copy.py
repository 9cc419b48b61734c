"""One partition of an asynchronous slave: makes sure that the copy continues its original, then appends the rest.

Segments begin at the same offsets as the original's: MetaQ's ``offset`` command returns the start of the segment with a
given offset, and a ``get`` never crosses into the next one. A frame that is longer than one reply is fetched in pieces.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.replication.agreement import Agreement, compare_ends, judge, require_same_number
from metaq_broker.replication.local import CopyRefused, LocalPartitions, append_run, begin_segment, holding_of, read_own
from metaq_broker.replication.peer import Declined, PartitionKey, Peer, StoredRange

FETCH_BYTES_MAX: Final = 1 << 20
"""Limit on bytes in one request."""

FRAME_BYTES_MAX: Final = 64 << 20
"""Longest frame that is copied: it is kept in memory until it is complete."""

NOT_DURABLE_BYTES_MAX: Final = 8 << 20
"""How many bytes of a copy may be written and not yet durable."""


class PartitionCopy:
    """The copy of a master's partition ``partition_key``, which it reads as consumer ``group``."""

    def __init__(self, local: LocalPartitions, partition_key: PartitionKey, group: str) -> None:
        self._local, self._partition_key, self._group = local, partition_key, group
        self._begun = b""  # of a frame that is not complete yet
        self.log: PartitionLog | None = None
        """The copy, once it is known to continue its original."""

    def behind(self, original: StoredRange) -> bool:
        """Return whether ``step`` has something to do."""
        log = self.log
        if log is None:
            return True
        return log.end_offset < original.readable_end or self._roll_is_due(log, original)

    async def step(self, peer: Peer, original: StoredRange) -> None:
        """Do one step: compare, or append the data of one request, or begin the next segment.

        Raises:
            CopyRefused: The partition cannot be copied, or not now.
            PeerLost, RequestRefused: The other broker did not answer, or refused.
        """
        log = self._local.find(self._partition_key)
        if log is None or log is not self.log:
            self.log = await self._begin(peer, original, log)
            return
        if log.end_offset < original.readable_end:
            await self._fetch(peer, original, log)
        elif self._roll_is_due(log, original):
            begin_segment(self._local, log)
        if log.end_offset - log.readable_end > NOT_DURABLE_BYTES_MAX:
            await self._local.durable(log)

    def _roll_is_due(self, log: PartitionLog, original: StoredRange) -> bool:
        end = log.end_offset
        return end == original.readable_end == original.last_start and log.active.start != end

    # ---- the beginning

    async def _begin(self, peer: Peer, original: StoredRange, log: PartitionLog | None) -> PartitionLog:
        self._begun = b""
        if log is not None:
            await self._local.durable(log)
            copy = holding_of(log)
            if judge(copy, original) is Agreement.CONTINUES:
                await compare_ends(copy, original, partial(read_own, log), partial(self._read_original, peer))
                first = max(copy.start, original.start)
                number = await peer.ordinal(self._partition_key, self._group, first) if first else None
                require_same_number(log.ordinal(first), number, first)
                return log
            await self._local.remove(self._partition_key)
        ordinal = await peer.ordinal(self._partition_key, self._group, original.start) if original.start else 0
        return await self._local.make(self._partition_key, original, ordinal or 0)

    async def _read_original(self, peer: Peer, offset: int, bytes_max: int) -> bytes:
        found = await peer.read(self._partition_key, self._group, offset, bytes_max)
        if isinstance(found, Declined):
            raise CopyRefused(f"the original has nothing to compare with at offset {offset}: {found.answer}")
        return found

    # ---- what is missing

    async def _fetch(self, peer: Peer, original: StoredRange, log: PartitionLog) -> None:
        offset = log.end_offset + len(self._begun)
        bytes_max = min(FETCH_BYTES_MAX, original.readable_end - offset)
        found = await peer.fetch(self._partition_key, self._group, offset, bytes_max)
        if not isinstance(found, Declined):
            self._append(log, found.segment_start, self._begun + found.run)
        elif not found.absent or original.readable_end > offset:
            raise CopyRefused(f"the original cannot be read at offset {offset}: {found.answer}")

    def _append(self, log: PartitionLog, segment_start: int, run: bytes) -> None:
        self._begun = b""
        appended = append_run(self._local, log, segment_start, run)
        if len(run) - appended > FRAME_BYTES_MAX:
            raise CopyRefused(f"the frame at offset {log.end_offset} is longer than {FRAME_BYTES_MAX} bytes")
        self._begun = run[appended:]
