"""Group commit of a synchronous pair's master: nothing is durable here before it is durable on the slave as well.

A sync that has ended well is handed to ``send_missing`` and stays under way until ``settle_job`` takes it back. So
readers see, and producers and transactions learn of, only what both brokers have. Meanwhile what is appended rides
in the next one. Puts do not wait for a slave that is away: ``give_up`` refuses them. What they wrote is stored
nevertheless, and is readable once the slave has it. Transactions wait: what they committed must come to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.flush import FlushPolicy, GroupCommit, _Partition
from metaq_broker.log.sync.group_commit import OnDurable
from metaq_broker.log.sync.sync import SyncJob

Carry = Callable[[PartitionLog, SyncJob], None]
"""A log, and what of it is durable here and wanted on the slave."""


class NotOnBoth(Exception):
    """A message is not acknowledged, because the slave does not have it; the text says why."""


class PairedCommit(GroupCommit):
    """Until ``send_missing`` is set, and after ``end``, a sync here is enough."""

    def __init__(
        self, policy_for: Callable[[str], FlushPolicy], *, is_client_alone: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(policy_for, is_client_alone=is_client_alone)
        self.send_missing: Carry | None = None
        self._out: dict[PartitionLog, tuple[_Partition, SyncJob]] = {}
        self._impatient: set[_Waiter] = set()
        self._ended = False

    def wait(self, log: PartitionLog, end_offset: int, callback: OnDurable) -> None:
        """As ``GroupCommit.wait``, but for both brokers in every mode, and given up when the slave is away."""
        if self.send_missing is None:
            super().wait(log, end_offset, callback)
            return
        waiter = _Waiter(callback, self._impatient)
        self.wait_durable(log, end_offset, waiter.notify)

    def give_up(self, reason: str) -> None:
        """Refuse the puts that wait now."""
        for waiter in list(self._impatient):
            self._call(waiter.notify, NotOnBoth(reason))

    def out(self) -> list[tuple[PartitionLog, SyncJob]]:
        """Return what was handed to ``send_missing`` and not settled yet."""
        return [(log, job) for log, (_, job) in self._out.items()]

    def settle_job(self, log: PartitionLog, job: SyncJob) -> None:
        """Take note that the slave has what ``send_missing`` was given."""
        partition, expected = self._out.get(log, (None, None))
        if partition is not None and expected is job:
            del self._out[log]
            super()._synced(partition, job, None)

    def end(self, reason: str) -> None:
        """Wait for the slave no more: the broker stops. No callback is called as if both brokers had anything."""
        self._ended = True
        self.give_up(reason)
        out, self._out = self._out, {}
        for partition, job in out.values():
            self._end_alone(partition, job, reason)

    def _synced(self, partition: _Partition, job: SyncJob, error: OSError | None) -> None:
        if error is not None or self.send_missing is None:
            super()._synced(partition, job, error)
        elif self._ended:
            self._end_alone(partition, job, "the broker is stopping")
        else:
            self._out[partition.log] = partition, job
            self.send_missing(partition.log, job)

    def _end_alone(self, partition: _Partition, job: SyncJob, reason: str) -> None:
        while partition.waiters:
            self._call(partition.waiters.popleft()[1], NotOnBoth(reason))
        super()._synced(partition, job, None)


class _Waiter:
    """Calls ``callback`` once, for the first event."""

    def __init__(self, callback: OnDurable, members: set[_Waiter]) -> None:
        self._callback, self._members = callback, members
        members.add(self)

    def notify(self, error: Exception | None) -> None:
        """Call it, if it was not called yet."""
        if self in self._members:
            self._members.discard(self)
            self._callback(error)
