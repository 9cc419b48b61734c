"""The slave of a synchronous pair: stores the data that its master sends, and answers when it is durable.

A run of the master's frames is appended unchanged; a run that does not begin at the copy's end is refused with that
end. A Java master sends single messages with their ids; they are appended as frames, in this broker's own segments.
Once the slave is promoted, it refuses both.

Source: docs/replication.md, "The synchronous pair".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame
from metaq.model import INT64_MAX
from metaq_broker.log.engine.outcomes import (
    ChecksumMismatch,
    NotMaster,
    OffsetNotStored,
    Refusal,
    StorageFailed,
    TopicUnknown,
)
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.replication.agreement import Agreement, judge
from metaq_broker.replication.local import CopyRefused, LocalPartitions, append_run, holding_of
from metaq_broker.replication.peer import CopiedMessage, CopiedRun, StoredRange

_LOG: Final = logging.getLogger(__name__)

PROMOTED: Final = "this broker was promoted to master"
"""The beginning of every refusal that tells a former master to acknowledge nothing any more."""

STATUS_TOPIC: Final = "_metaq_slave_status_test"
"""The topic to which a Java master puts after repeated failures of its slave, to test it; it waits for that answer."""

Answer = Callable[[int | Refusal], None]
"""Called once: with the offset of the stored message, or the new durable end of a copy, or the refusal."""


class SyncSlave:
    """``fenced``: everything is refused."""

    def __init__(self, local: LocalPartitions) -> None:
        self._local = local
        self._tasks: set[asyncio.Task[None]] = set()
        self.fenced = False

    async def stop(self) -> None:
        """Stop after the operations in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def copy_soon(self, copied: CopiedRun, answer: Answer) -> None:
        """Store a run of the master's frames in the background, then call ``answer``."""

        async def carry_out() -> None:
            try:
                answer(await self.copy(copied))
            except Exception as defect:
                _LOG.exception("bug while receiving a copy")
                answer(StorageFailed(f"{type(defect).__name__}: {defect}"))

        task = asyncio.get_running_loop().create_task(carry_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def copy(self, copied: CopiedRun) -> int | Refusal:
        """Store a run of the master's frames; return the new durable end."""
        if self.fenced:
            return NotMaster(PROMOTED)
        try:
            log = await self._log_for(copied)
            if log.end_offset != copied.offset:
                return OffsetNotStored(log.end_offset)
            if append_run(self._local, log, copied.segment_start, copied.run) != len(copied.run):
                raise CopyRefused("the last frame of the run is cut")
            await self._local.durable(log)
        except CopyRefused as refused:
            return StorageFailed(str(refused))
        return NotMaster(PROMOTED) if self.fenced else log.readable_end

    async def _log_for(self, copied: CopiedRun) -> PartitionLog:
        log = self._local.find(copied.partition_key)
        if log is not None:
            await self._local.durable(log)
            original = StoredRange(copied.first, INT64_MAX, copied.incarnation)
            if judge(holding_of(log), original) is Agreement.CONTINUES:
                return log
            await self._local.remove(copied.partition_key)
        stored_range = StoredRange(copied.first, copied.first, copied.incarnation)
        return await self._local.make(copied.partition_key, stored_range, copied.ordinal)

    def sync(self, message: CopiedMessage, answer: Answer) -> None:
        """Store one message; ``answer`` with its offset when it is durable. Messages of ``STATUS_TOPIC`` are not
        stored.
        """
        if message.partition_key[0] == STATUS_TOPIC:
            answer(NotMaster(PROMOTED) if self.fenced else 0)
            return
        outcome = self._append_message(message)
        if isinstance(outcome, Refusal):
            answer(outcome)
            return
        log, offset = outcome

        def durable(error: Exception | None) -> None:
            if self.fenced:
                answer(NotMaster(PROMOTED))
            else:
                answer(offset if error is None else StorageFailed(str(error)))

        self._local.commit.schedule(log)
        self._local.commit.wait_durable(log, log.end_offset, durable)

    def _append_message(self, message: CopiedMessage) -> tuple[PartitionLog, int] | Refusal:
        if self.fenced:
            return NotMaster(PROMOTED)
        engine, (topic, index) = self._local.engine, message.partition_key
        if not engine.config.accepts(topic) or index < 0:
            return TopicUnknown(topic)
        crc = checksum(message.body)
        try:
            log = self._local.find(message.partition_key) or engine.stores.get_or_create(topic, index)
            if message.checksum not in (None, -1, crc):
                return ChecksumMismatch()  # it has opened the partition nevertheless, as in a Java broker
            offset = log.append([encode_frame(message.message_id, message.flag, message.body, crc)])
        except (CopyRefused, LogFailed, OSError) as error:
            engine.note_failure(topic, error)
            return StorageFailed(str(error))
        engine.statistics.stored(topic, 1, log.end_offset - offset)
        return log, offset
