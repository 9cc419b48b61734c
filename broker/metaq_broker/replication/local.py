"""This broker's own partitions, as those who copy into them or from them see them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from metaq.errors import MetaqError
from metaq_broker.engine.engine import Engine
from metaq_broker.engine.maintenance import MaintenanceRefused, PartitionMaintenance
from metaq_broker.replication.holdings import Holding, Place
from metaq_broker.storage.files import Files
from metaq_broker.storage.flush import GroupCommit
from metaq_broker.storage.folders import folder_name, topic_fault
from metaq_broker.storage.partition_log import PartitionLog
from metaq_broker.storage.reads import Slice
from metaq_broker.storage.seeding import seed_partition


class CopyRefused(MetaqError):
    """A partition is not copied; the text says why, for the operator."""


@dataclass(frozen=True, slots=True)
class LocalPartitions:
    """What a copy needs of the broker that it is part of."""

    engine: Engine
    commit: GroupCommit
    maintenance: PartitionMaintenance
    files: Files

    def find(self, partition_key: Place) -> PartitionLog | None:
        """Return a partition, ``None`` if it is not there.

        Raises:
            CopyRefused: It is there and cannot be used, or its topic cannot be stored.
        """
        stores = self.engine.stores
        log = stores.get(*partition_key)
        fault = stores.refusal(*partition_key) if log is None else log.failure
        fault = fault or topic_fault(partition_key[0])
        if fault is not None:
            raise CopyRefused(fault)
        reason = self.engine.space.refusal(self.engine.config.topic_settings(partition_key[0]).data_path)
        if reason is not None:
            raise CopyRefused(reason)
        return log

    async def make(self, partition_key: Place, holding: Holding, ordinal: int) -> PartitionLog:
        """Make a partition that begins where ``holding`` does, before which there are ``ordinal`` messages.

        Raises:
            CopyRefused: The disk refuses, or there are too many partitions.
        """
        stores, system = self.engine.stores, self.engine.config.system
        fault = self.engine.more_partitions_refusal()
        if fault is not None:
            raise CopyRefused(fault)
        store = stores.store_of(partition_key[0])
        directory = Path(store.data_path) / folder_name(*partition_key)
        seed = holding.start, ordinal, holding.incarnation, system.index_interval_bytes
        try:
            await asyncio.to_thread(seed_partition, self.files, directory, *seed)
            stores.bring_online(await asyncio.to_thread(store.open_again, *partition_key))
        except (OSError, MetaqError) as error:
            self.engine.note_failure(partition_key[0], error)
            raise CopyRefused(f"the partition's folder cannot be made: {error}") from error
        log = stores.get(*partition_key)
        assert log is not None  # it was just admitted
        return log

    async def remove(self, partition_key: Place) -> None:
        """Remove a partition with all that it holds.

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
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def tell(error: Exception | None) -> None:
            if not told.done():
                told.set_result(error)

        self.commit.wait_durable(log, log.end_offset, tell)
        self.commit.schedule(log)
        error = await told
        if error is not None:
            raise CopyRefused(str(error))


def holding_of(log: PartitionLog) -> Holding:
    """Describe a partition of this broker as others describe theirs."""
    return Holding(log.start_offset, log.readable_end, log.incarnation)


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
