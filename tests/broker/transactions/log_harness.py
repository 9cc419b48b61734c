"""A ``Harness`` whose partitions are the real ones: segments that roll, indexes, recovery, retention, the data folder.

Retention takes messages away that were promised; ``bodies`` still tells them, from memory, as long as it is the front
of the partition that is missing and what is left stands where it stood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.outcomes import StorageFailed
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.log.retention.policy import Removal, RetentionPolicy
from metaq_broker.log.retention.retention import SegmentRetirement
from metaq_broker.operate.fsck.partition import check_partition
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.outcomes import TransactionRefused
from tx_harness import Harness, PlainStore

from metaq.formats.frames import Frame
from metaq.formats.message_id import IdWorker

SETTINGS = LogSettings(segment_bytes_max=400, index_interval_bytes=90)
LONG_AFTER_MS = 1 << 50

PartitionKey = tuple[str, int]


class LogPartitions(PlainStore):
    """A ``TransactionStore`` on a ``LogStore``; every append is synced before it returns. Same surface as its base."""

    def __init__(self, files: Files, directory: Path, ids: IdWorker, clock: ManualClock) -> None:
        self.logs = LogStore.open(files, clock, directory, lambda topic: SETTINGS)
        self._ids, self._clock = ids, clock
        self.broken, self.closed, self.full = set(), set(), set()
        self.hold, self.held = False, []

    def check(self, topic: str, partition: int) -> None:
        super().check(topic, partition)
        try:
            failure = self.logs.get_or_create(topic, partition).failure
        except OSError as error:
            failure = str(error)
        if failure is not None:
            raise TransactionRefused(StorageFailed(f"partition {topic}-{partition} is read-only: {failure}"))

    def log_end(self, topic: str, partition: int) -> int:
        log = self.logs.get(topic, partition)
        return 0 if log is None else log.readable_end

    def _append(self, units: Sequence[Unit], done: Callable[[StorageFailed | None], None]) -> None:
        failure: StorageFailed | None = None
        for partition_key, group in groupby(units, lambda unit: unit.partition_key):
            try:
                log = self.logs.get_or_create(*partition_key)
                log.append_blocks([unit.frames for unit in group])
                log.sync()
            except (OSError, LogFailed) as error:
                failure = failure or StorageFailed(str(error), error)
        done(failure)

    def put(self, partition_key: PartitionKey, block: bytes) -> None:
        try:
            log = self.logs.get_or_create(*partition_key)
            log.append([block])
            log.sync()
        except LogFailed as failure:
            raise OSError(5, str(failure)) from failure

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        log = self.logs.get(topic, partition)
        return [] if log is None else log.scan(max(from_offset, log.start_offset))


@dataclass
class LogHarness(Harness):
    """``gone``: offset and body of messages that retention may have taken away, per partition."""

    gone: dict[PartitionKey, dict[int, bytes]] = field(default_factory=dict)
    full_at_start: set[PartitionKey] = field(default_factory=set)

    def open_partitions(self) -> LogPartitions:
        self.partitions = LogPartitions(self.files, self.root / "data", self.ids, self.clock)
        self.partitions.full = copy(self.full_at_start)
        return self.partitions

    def restart(self) -> None:
        """Stop like SIGTERM, which leaves the mark of a clean stop, and start again."""
        self.tx.close()
        self.partitions.logs.close(clean=True)
        self.start()

    def bodies(self, topic: str = "orders", partition: int = 0) -> list[bytes]:
        log = self.partitions.logs.get(topic, partition)
        there = {frame.offset: frame.body for frame in self.partitions.scan(topic, partition, 0)}
        gone = self.gone.get((topic, partition), {})
        start = 0 if log is None else log.start_offset
        assert all(there.get(offset) == body for offset, body in gone.items() if offset >= start)
        return [*(body for offset, body in sorted(gone.items()) if offset < start), *there.values()]

    def reopen_failed(self) -> None:
        """What an operator does about partitions that take no more messages."""
        for log in self.partitions.logs.logs():
            if log.failure is not None:
                log.reopen()

    def retire(self, removal: Removal) -> None:
        """Let retention take away every finished segment of every partition."""
        for log in list(self.partitions.logs.logs()):
            remembered = self.gone.setdefault((log.topic, log.index), {})
            remembered.update((frame.offset, frame.body) for frame in log.scan(log.start_offset))
            asyncio.run(self._retire(log, RetentionPolicy(removal, 0)))

    async def _retire(self, log: PartitionLog, policy: RetentionPolicy) -> None:
        async def at_once(job: Callable[[], None]) -> None:
            job()

        retiring = SegmentRetirement(self.files, lambda log: True, self.tx, at_once)
        task = asyncio.create_task(retiring.retire(log, policy, LONG_AFTER_MS))
        while not task.done():
            self.settle()
            await asyncio.sleep(0)
        task.result()

    def check_files(self) -> None:
        """What fsck says while the broker runs: every message of every segment is sound."""
        for log in self.partitions.logs.logs():
            if log.failure is None:
                assert list(check_partition(log.directory, SETTINGS).problems()) == []
