"""Operators' work on partitions while the broker serves clients: close, open, delete, move, recover.

Everything runs on the event loop; slow disk operations run in worker threads. A partition that is being deleted or
moved is out of service: requests for it are refused with that reason. A partition that is being recovered can be read.
A partition undergoes one operation at a time, so a broker has one ``PartitionMaintenance``.

Source: docs/administration.md, "Partitions".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.files.errors import PartitionRefused
from metaq_broker.log.partitions.folders import folder_name
from metaq_broker.log.partitions.loading import Loaded
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.recovery import RecoveryReport
from metaq_broker.log.streams.lost_found import Intention
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.log.sync.sync_queue import OnDurable, outcome
from metaq_broker.operate.config.replication import PairConfig

_LOG: Final = logging.getLogger(__name__)

SETTLE_S: Final = 5.0
"""Longest wait until a partition's messages are durable, before it is moved or recovered: a slave may be away."""

PartitionKey = tuple[str, int]
UsersOf = Callable[[str, int], Sequence[str]]
"""Topic and index of a partition -> keys of the transactions with messages for it that a restart would look for."""

Settle = Callable[[PartitionLog], Awaitable[None]]
"""Waits until no operation on the files of a log that is out of service is in progress."""


class MaintenanceRefused(MetaqError):
    """The operation was not done, or not completely; the text is one sentence for the operator."""


class PartitionMaintenance:
    """``users_of`` returns the transactions that need a partition; ``settle_retention`` waits for retention.

    ``when_on_disk`` calls back when the journal of transactions is on disk, or has failed: a restart that does not find
    there that a commit is over would append its messages again, to a new partition of that name.
    """

    def __init__(
        self,
        engine: Engine,
        commit: GroupCommit,
        users_of: UsersOf,
        settle_retention: Settle,
        when_on_disk: Callable[[OnDurable], None],
    ) -> None:
        self._engine = engine
        self._stores = engine.stores
        self._commit = commit
        self._users_of = users_of
        self._settle_retention = settle_retention
        self._when_on_disk = when_on_disk
        self._busy: set[PartitionKey] = set()
        self.deleted: Callable[[str, int], None] = lambda topic, index: None
        """Called when a partition, or its files, were deleted or moved: a new one of that name counts messages from 0.
        """

    # ---- closing and opening

    def close(self, topic: str, indexes: Sequence[int]) -> None:
        """Refuse puts and gets on these partitions from now on, until ``open`` or a restart.

        Raises:
            MaintenanceRefused: No such partition, or another operation on it is in progress.
        """
        self._check_exist(topic, indexes)
        self._check_idle((topic, index) for index in indexes)
        for index in indexes:
            self._engine.close_partition(topic, index)
        _LOG.info("partitions closed", extra={"fields": {"topic": topic, "indexes": list(indexes)}})

    def open(self, topic: str, indexes: Sequence[int]) -> None:
        """Undo ``close``; open partitions stay open.

        Raises:
            MaintenanceRefused: No such partition, or another operation on it is in progress.
        """
        self._check_exist(topic, [index for index in indexes if not self._engine.is_closed(topic, index)])
        self._check_idle((topic, index) for index in indexes)
        for index in indexes:
            self._engine.open_partition(topic, index)
        _LOG.info("partitions opened", extra={"fields": {"topic": topic, "indexes": list(indexes)}})

    def _check_exist(self, topic: str, indexes: Sequence[int]) -> None:
        config = self._engine.config
        configured = config.topic_settings(topic).num_partitions if config.accepts(topic) else 0
        missing = [i for i in indexes if i >= configured and not self._is_there(topic, i)]
        if missing:
            raise MaintenanceRefused(f"{_partitions(topic, missing)} not known to this broker")

    def _is_there(self, topic: str, index: int) -> bool:
        return self._stores.get(topic, index) is not None or self._stores.refusal(topic, index) is not None

    # ---- deleting

    async def delete(self, topic: str, indexes: Sequence[int], *, force: bool) -> list[int]:
        """Remove partitions with all their messages; return their indexes. They must be closed, or ``force``.

        A later put creates such a partition again, empty and open.

        Raises:
            MaintenanceRefused: Nothing was deleted, or only some of them: the text says which.
        """
        there = [index for index in indexes if self._is_there(topic, index)]
        if not there:
            raise MaintenanceRefused(f"{_partitions(topic, indexes)} not on this broker")
        self._check_free(topic, there)
        if not force:
            self._check_closed(topic, there, "or delete with --force")
        deleted: list[int] = []
        with self._reserved((topic, index) for index in there):
            for index in there:
                await self._delete_one(topic, index, deleted)
                deleted.append(index)
                _LOG.warning("partition deleted", extra={"fields": {"partition": folder_name(topic, index)}})
        return deleted

    async def _delete_one(self, topic: str, index: int, deleted: Sequence[int]) -> None:
        store = self._stores.store_of(topic)
        reason = f"partition {folder_name(topic, index)} is being deleted"
        log = store.take_offline(topic, index, reason)
        try:
            if log is not None:
                self._commit.settle_alone(log, reason)
                await self._retire(log)
            await self._end_commits()
            await asyncio.to_thread(store.delete_folder, topic, index)
        except OSError as error:
            if store.has_folder(topic, index):
                await self._bring_back(topic, index)
                raise self._stopped("deleted", topic, index, error, deleted) from error
            fields = {"partition": folder_name(topic, index), "reason": str(error)}
            _LOG.warning("files of a deleted partition are left until the next start", extra={"fields": fields})
        self._stores.remove_entry(topic, index)
        self._engine.open_partition(topic, index)
        self.deleted(topic, index)

    # ---- moving

    async def move(self, topic: str, indexes: Sequence[int], by: int) -> list[tuple[int, int]]:
        """Add ``by`` to the indexes of closed partitions; return (old, new) of each. Both stay closed until opened.

        Raises:
            MaintenanceRefused: Nothing was moved, or only some of them: the text says which.
        """
        logs = [log for index in indexes if (log := self._stores.get(topic, index)) is not None]
        there = [log.index for log in logs]
        if not there:
            raise MaintenanceRefused(f"{_partitions(topic, indexes)} not served by this broker")
        if self._is_of_pair:
            raise MaintenanceRefused(f"{_partitions(topic, there)} at both members of a pair, and keep their indexes")
        self._check_targets(topic, there, by)
        self._check_closed(topic, there, "first")
        self._check_free(topic, there)
        # The highest index first if indexes grow, else the lowest: so each target is free when its turn comes.
        moves = [(index, index + by) for index in sorted(there, reverse=by > 0)]
        moved: list[tuple[int, int]] = []
        with self._reserved((topic, index) for pair in moves for index in pair):
            for log in logs:
                await self._settle(log)
            for old, new in moves:
                await self._move_one(topic, old, new, [pair[0] for pair in moved])
                moved.append((old, new))
                fields = {"old": folder_name(topic, old), "new": folder_name(topic, new)}
                _LOG.warning("partition moved", extra={"fields": fields})
        return sorted(moved)

    def _check_targets(self, topic: str, there: Sequence[int], by: int) -> None:
        if by == 0:
            raise MaintenanceRefused("the offset is 0: nothing would move")
        if min(there) + by < 0:
            raise MaintenanceRefused(f"partition {folder_name(topic, min(there))} would get index {min(there) + by}")
        self._check_idle((topic, index + by) for index in there)
        store = self._stores.store_of(topic)
        taken = [index + by for index in there if index + by not in there and store.has_folder(topic, index + by)]
        if taken:
            raise MaintenanceRefused(f"{_partitions(topic, taken)} there already")

    async def _move_one(self, topic: str, old: int, new: int, moved: Sequence[int]) -> None:
        store = self._stores.store_of(topic)
        log = store.take_offline(topic, old, f"partition {folder_name(topic, old)} is being moved to index {new}")
        store.take_offline(topic, new, f"partition {folder_name(topic, old)} is being moved here")
        assert log is not None  # the partition was reserved when it was found, so no other operation has removed it
        try:
            await self._retire(log)
            await self._end_commits()
            await asyncio.to_thread(store.rename_folder, topic, old, new)
        except OSError as error:
            is_moved = store.has_folder(topic, new)
            await self._bring_back(topic, new if is_moved else old)
            self._stores.remove_entry(topic, old if is_moved else new)
            if is_moved:
                self.deleted(topic, old)
            raise self._stopped("moved", topic, old, error, moved) from error
        self._stores.remove_entry(topic, old)
        self.deleted(topic, old)
        self._engine.close_partition(topic, new)
        fault = await self._bring_back(topic, new)
        if fault is not None:
            where = f"partition {folder_name(topic, old)} has become {folder_name(topic, new)}"
            raise MaintenanceRefused(f"{where}, but cannot be opened: {fault}; try reopen")

    # ---- recovering

    async def reopen(self, topic: str, index: int) -> RecoveryReport:
        """Recover a partition that is read-only or could not be opened; return the findings.

        Raises:
            MaintenanceRefused: There is nothing to recover, or it cannot be done.
        """
        self._check_idle([(topic, index)])
        log = self._stores.get(topic, index)
        if log is None and self._stores.refusal(topic, index) is None:
            raise MaintenanceRefused(f"{_partitions(topic, [index])} not on this broker")
        if log is not None and log.failure is None:
            raise MaintenanceRefused(
                f"partition {folder_name(topic, index)} takes messages: there is nothing to recover"
            )
        if log is not None and self._is_of_pair:
            raise MaintenanceRefused(
                f"partition {folder_name(topic, index)} stays as it is, the other member of the pair may have what "
                "this one would cut: hand over to it (switch), or restart this broker"
            )
        with self._reserved([(topic, index)]):
            try:
                report = await self._recover(topic, index, log)
            except (OSError, PartitionRefused) as error:
                raise MaintenanceRefused(
                    f"partition {folder_name(topic, index)} cannot be recovered: {error}"
                ) from error
        _LOG.warning("partition recovered", extra={"fields": {"partition": folder_name(topic, index)}})
        return report

    async def acknowledge(self, topic: str, indexes: Sequence[int]) -> list[int]:
        """Forget the losses of partitions, which need not exist; return the indexes with losses.

        Raises:
            MaintenanceRefused: There are no losses of any of them, or the disk refuses.
        """
        lost = {(name, index): store for store in self._stores.each_store() for name, index in store.lost_partitions()}
        found = [index for index in indexes if (topic, index) in lost]
        if not found:
            raise MaintenanceRefused(f"{_partitions(topic, indexes)} not among those that lost data")
        try:
            for index in found:
                await asyncio.to_thread(lost[topic, index].acknowledge, topic, index)
                fields = {"partition": folder_name(topic, index)}
                _LOG.warning("lost data acknowledged", extra={"fields": fields})
        except OSError as error:
            raise MaintenanceRefused(f"it cannot be recorded in the data folder: {error}") from error
        return found

    async def _recover(self, topic: str, index: int, log: PartitionLog | None) -> RecoveryReport:
        store = self._stores.store_of(topic)
        is_emptied = await asyncio.to_thread(store.is_emptied, topic, index)
        if log is None:
            opened = await asyncio.to_thread(store.open_again, topic, index)
            self._stores.bring_online(opened)
            if is_emptied:
                self.deleted(topic, index)
            return opened.recovery
        await self._settle(log)
        return await self._begin_anew(topic, index, log) if is_emptied else log.resume(await self._load_again(log))

    async def _load_again(self, log: PartitionLog) -> Loaded:
        loaded = await asyncio.to_thread(log.load_again)
        if loaded.report.lost is not None:
            store = self._stores.store_of(log.topic)
            await asyncio.to_thread(store.note_lost_end, log.name, loaded.report.lost)
        return loaded

    async def _begin_anew(self, topic: str, index: int, log: PartitionLog) -> RecoveryReport:
        """Begin another partition, with offsets from 0, in place of one whose files were removed."""
        self._stores.store_of(topic).take_offline(topic, index, f"partition {folder_name(topic, index)} begins anew")
        try:
            await self._end_commits()
            self._check_free(topic, [index], "; as its files are gone, restart this broker")
            loaded = await self._load_again(log)
        except (OSError, MetaqError):
            self._stores.bring_online(log)
            raise
        await self._retire(log)
        self._stores.bring_online(log.anew(loaded))
        self.deleted(topic, index)
        return loaded.report

    # ---- followers of a pair

    async def cut(self, topic: str, index: int, intention: Intention) -> None:
        """Cut the tail of a partition that the leader does not have; the partition is out of service meanwhile.

        Raises:
            MaintenanceRefused: The disk refuses, or another operation is in progress. The partition stays out of
                service, and the next start finishes the cut.
        """
        with self._reserved([(topic, index)]):
            await self._rework(topic, index, "cut", lambda store: store.cut(topic, index, intention))
            fault = await self._bring_back(topic, index)
        if fault is not None:
            raise MaintenanceRefused(f"partition {folder_name(topic, index)} was cut, but cannot be opened: {fault}")

    async def put_aside(self, topic: str, index: int, incarnation: str, time_ms: int) -> None:
        """Move a partition to ``lost+found``. Raises as ``cut``."""
        with self._reserved([(topic, index)]):
            step = partial(LogStore.put_aside, topic=topic, index=index, incarnation=incarnation, time_ms=time_ms)
            await self._rework(topic, index, "moved away", step)
            self._stores.remove_entry(topic, index)
        self.deleted(topic, index)

    async def _rework(self, topic: str, index: int, done: str, step: Callable[[LogStore], None]) -> None:
        """Take a partition out of service, and run ``step`` on its files."""
        store = self._stores.store_of(topic)
        log = store.take_offline(topic, index, f"partition {folder_name(topic, index)} is being {done}")
        try:
            if log is not None:
                await self._retire(log)
            await asyncio.to_thread(step, store)
        except OSError as error:
            stopped = self._stopped(done, topic, index, error, ())
            store.take_offline(topic, index, str(stopped))
            raise stopped from error

    # ---- steps

    async def _settle(self, log: PartitionLog) -> None:
        """Return when all of a log that is in service is durable, at the slave of a synchronous pair, too.

        Raises:
            MaintenanceRefused: It is not within ``SETTLE_S``.
        """
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._commit.settle(log)
        except TimeoutError as late:
            where = "on the disk, or the slave does not have them"
            raise MaintenanceRefused(f"messages of partition {log.name} are not {where}; try again") from late

    async def _retire(self, log: PartitionLog) -> None:
        """Finish pending acknowledgements of a log that is out of service, then close its files."""
        await self._settle_retention(log)
        await self._commit.settle(log)
        self._commit.forget(log)
        log.close(clean=False)

    async def _end_commits(self) -> None:
        """Return when no restart looks for messages of commits that are over. Raises ``OSError``."""
        if (failure := await outcome(self._when_on_disk)) is not None:
            raise OSError(f"the transaction journal cannot be synced: {failure}")

    async def _bring_back(self, topic: str, index: int) -> str | None:
        """Put a partition back into service; if that fails, it stays refused, and the reason is returned."""
        store = self._stores.store_of(topic)
        try:
            self._stores.bring_online(await asyncio.to_thread(store.open_again, topic, index))
        except (OSError, PartitionRefused) as error:
            store.take_offline(topic, index, str(error))
            fields = {"partition": folder_name(topic, index), "reason": str(error)}
            _LOG.error("partition is not served", extra={"fields": fields})
            return str(error)
        return None

    @property
    def _is_of_pair(self) -> bool:
        """Whether another member compares these partitions by their names and epochs: see ``replication.pair``."""
        return isinstance(self._engine.config.role, PairConfig)

    @contextlib.contextmanager
    def _reserved(self, partition_keys: Iterable[PartitionKey]) -> Iterator[None]:
        reserved = set(partition_keys)
        self._check_idle(reserved)
        self._busy |= reserved
        try:
            yield
        finally:
            self._busy -= reserved

    def _check_idle(self, partition_keys: Iterable[PartitionKey]) -> None:
        busy = sorted(self._busy.intersection(partition_keys))
        if busy:
            raise MaintenanceRefused(
                f"another operation is in progress on partition {folder_name(*busy[0])}; try again later"
            )

    def _check_closed(self, topic: str, indexes: Sequence[int], otherwise: str) -> None:
        opened = [index for index in indexes if not self._engine.is_closed(topic, index)]
        if opened:
            raise MaintenanceRefused(f"{_partitions(topic, opened)} not closed; close {_them(opened)} {otherwise}")

    def _check_free(self, topic: str, indexes: Sequence[int], advice: str = "") -> None:
        for index in indexes:
            keys = self._users_of(topic, index)
            if keys:
                listed = ", ".join(keys[:3]) + (" and others" if len(keys) > 3 else "")
                needed = f"is needed by transactions that have not ended: {listed}{advice}"
                raise MaintenanceRefused(f"partition {folder_name(topic, index)} {needed}")

    def _stopped(self, done: str, topic: str, index: int, error: OSError, before: Sequence[int]) -> MaintenanceRefused:
        earlier = f"; {done} before that: {', '.join(map(str, before))}" if before else ""
        return MaintenanceRefused(f"partition {folder_name(topic, index)} is not {done}: {error}{earlier}")


def _partitions(topic: str, indexes: Sequence[int]) -> str:
    names = ", ".join(folder_name(topic, index) for index in indexes[:5]) + (", ..." if len(indexes) > 5 else "")
    return f"partition {names} is" if len(indexes) == 1 else f"partitions {names} are"


def _them(indexes: Sequence[int]) -> str:
    return "it" if len(indexes) == 1 else "them"
