"""Group commit of a synchronous pair's master: data counts as durable only when it is durable on the slave as well.

A successful sync is passed to ``send_missing`` and stays pending until ``settle_job``. So readers, producers and
transactions see only what both brokers have. Messages that are appended meanwhile go with the next sync. Puts do not
wait for a slave that is disconnected: ``give_up`` refuses them. Their messages are stored nevertheless, and become
readable once the slave has them. Commits of transactions wait, because they cannot be undone, and so does what the
broker itself moves: it would move a refused message a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit, _Partition
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.log.sync.sync_queue import OnDurable, call

Carry = Callable[[PartitionLog, SyncJob], None]
"""A log, and the range of it that is durable here and must be sent to the slave."""


class NotOnBoth(Exception):
    """A message is not acknowledged, because the slave does not have it; the text says why."""


class PairedCommit(GroupCommit):
    """Until ``send_missing`` is set, and after ``end``, a sync on this broker is enough."""

    def __init__(
        self, policy_for: Callable[[str], FlushPolicy], *, is_client_alone: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(policy_for, is_client_alone=is_client_alone)
        self.send_missing: Carry | None = None
        self.written: Callable[[PartitionLog], None] | None = None
        """Called after every append to a log."""
        self._out: dict[PartitionLog, tuple[_Partition, SyncJob]] = {}
        self._impatient: set[_Waiter] = set()
        self._ended = False
        self._fenced: str | None = None
        self._alone: dict[PartitionLog, str] = {}

    def wait(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """Call back when the log is durable on both brokers, in every mode; fails when the slave is disconnected."""
        if self._fenced is not None:
            asyncio.get_running_loop().call_soon(callback, NotOnBoth(self._fenced))
        elif self.send_missing is None:
            super().wait(log, end_offset, callback)
        else:
            waiter = _Waiter(callback, self._impatient, is_sent=self.written is not None)
            self.wait_durable(log, end_offset, waiter.notify)

    def wait_patiently(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        if self._fenced is None and self.send_missing is not None:
            self.wait_durable(log, end_offset, callback)
        else:
            self.wait(log, end_offset, callback)

    def wait_durable(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        if self._fenced is not None:
            callback(NotOnBoth(self._fenced))
        else:
            super().wait_durable(log, end_offset, callback)

    def _schedule(self, partition: _Partition) -> None:
        if self.written is not None:  # first: the other member gets it before this one syncs, which may hold the loop
            self.written(partition.log)
        super()._schedule(partition)

    def give_up(self, reason: str, *, is_replaced: bool = False) -> None:
        """Refuse the puts that are waiting. ``is_replaced``: another broker leads, so they may get lost here."""
        later = "" if is_replaced else ", and is readable once the slave has it"
        for waiter in list(self._impatient):
            call(waiter.notify, NotOnBoth(f"{reason}; it may be stored{later}"))

    def out(self) -> list[tuple[PartitionLog, SyncJob]]:
        """Return the syncs that were passed to ``send_missing`` and are not settled yet."""
        return [(log, job) for log, (_, job) in self._out.items()]

    def pending(self, log: PartitionLog) -> SyncJob | None:
        """Return the sync of ``log`` that is durable here and not settled."""
        return self._out[log][1] if log in self._out else None

    def settle_job(self, log: PartitionLog, job: SyncJob) -> None:
        """Settle a sync: the slave has its data."""
        partition, expected = self._out.get(log, (None, None))
        if partition is not None and expected is job:
            del self._out[log]
            super()._synced(partition, job, None)

    def fence(self, reason: str) -> None:
        """Refuse everything that waits, now and from now on: another broker is the leader.

        Readable ends no longer move, because the other leader may have other bytes there.
        """
        self._fenced = reason
        self.give_up(reason, is_replaced=True)
        out, self._out = self._out, {}
        for partition, _ in out.values():
            self._drop(partition, reason)

    async def settle(self, log: PartitionLog) -> None:
        if self._fenced is None:
            await super().settle(log)
        else:
            await self.drain()

    def settle_alone(self, log: PartitionLog, reason: str) -> None:
        self._alone[log] = reason
        if (out := self._out.pop(log, None)) is not None:
            self._end_alone(*out, reason)

    def forget(self, log: PartitionLog) -> None:
        self._alone.pop(log, None)
        super().forget(log)

    def _drop(self, partition: _Partition, reason: str) -> None:
        """Forget a sync without a success. The log starts no further sync before it is opened again."""
        self._under_way -= 1
        self._refuse(partition, reason)
        settling, partition.settling = partition.settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)
        if not self._under_way and self._idle is not None:
            self._idle.set()

    def _refuse(self, partition: _Partition, reason: str) -> None:
        while partition.waiters:
            call(partition.waiters.popleft()[1], NotOnBoth(reason))

    def end(self, reason: str) -> None:
        """Stop waiting for the slave, because the broker stops. No callback is called with success."""
        self._ended = True
        self.give_up(reason)
        out, self._out = self._out, {}
        for partition, job in out.values():
            self._end_alone(partition, job, reason)

    def _synced(self, partition: _Partition, job: SyncJob, error: OSError | None) -> None:
        if self._fenced is not None:
            self._drop(partition, self._fenced)
        elif error is not None or self.send_missing is None:
            super()._synced(partition, job, error)
        elif self._ended:
            self._end_alone(partition, job, "the broker is stopping")
        elif (alone := self._alone.get(partition.log)) is not None:
            self._end_alone(partition, job, alone)
        else:
            self._out[partition.log] = partition, job
            self.send_missing(partition.log, job)

    def _end_alone(self, partition: _Partition, job: SyncJob, reason: str) -> None:
        self._refuse(partition, reason)
        super()._synced(partition, job, None)


class _Waiter:
    """A put that waits. Calls ``callback`` once, for the first event.

    ``is_sent``: the other member gets messages before they are synced here, and has them if it is promoted.
    """

    def __init__(self, callback: OnDurable, members: set[_Waiter], *, is_sent: bool) -> None:
        self._callback, self._members, self._is_sent = callback, members, is_sent
        members.add(self)

    def notify(self, error: Exception | None) -> None:
        """Call the callback, unless it was called already."""
        if self in self._members:
            self._members.discard(self)
            if isinstance(error, LogFailed) and self._is_sent:
                error = NotOnBoth(f"{error}; it may be stored")
            self._callback(error)
