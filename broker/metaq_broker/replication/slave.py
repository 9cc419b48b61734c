"""The asynchronous slave: keeps copies of all partitions of its master, byte for byte, as up to date as possible.

It works in rounds. Each round asks the master for its ranges and lets every partition that is behind do up to
``STEPS_MAX`` steps, a few partitions at a time over one connection, so that a long backlog of one partition does not
delay the others. When there is nothing to do, the pause before the next round grows up to ``slaveMaxDelayInMills``. A
master that does not answer is tried again forever, with growing pauses. A partition that cannot be copied is left
unchanged, reported with the reason, and tried again every ``RETRY_S``; the others are not affected.

Source: docs/replication.md, "The asynchronous slave".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from metaq.errors import ProtocolError
from metaq_broker.log.partitions.folders import folder_name
from metaq_broker.operate.config.replication import SlaveConfig
from metaq_broker.replication.copied_order import CopiedOrder
from metaq_broker.replication.local import CopyRefused, LocalPartitions
from metaq_broker.replication.master_connection import (
    MasterAddress,
    MasterConnection,
    MasterNotFound,
    MasterRefused,
    require_broker_id,
)
from metaq_broker.replication.partition_copy import PartitionCopy
from metaq_broker.replication.peer import Connect, PartitionKey, Peer, PeerLost, PeerRefused, StoredRange

_LOG: Final = logging.getLogger(__name__)

AT_A_TIME: Final = 4
"""Number of partitions that are copied at the same time."""

STEPS_MAX: Final = 16
"""Steps of one partition in one round."""

RETRY_S: Final = 5.0
"""Seconds before a refused partition is tried again; also the longest pause between two connection attempts."""

PAUSE_S_MIN: Final = 0.01
CONNECT_S_MIN: Final = 0.1
REQUEST_S_MAX: Final = 30.0
QUESTION_SHARE: Final = 4
"""A round with nothing to do is followed by a pause of at least this many times the duration of its request."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """How far one copy is behind: ``lag_bytes`` are readable on the master only; ``fault`` is why it is not copied."""

    partition_key: PartitionKey
    lag_bytes: int
    fault: str | None


@dataclass(slots=True)
class _Fault:
    reason: str
    retry_at: float


class AsyncSlave:
    """Copies between ``start`` and ``stop``. Topics ``copied_last`` are copied after all others (``copied_order``)."""

    def __init__(
        self,
        local: LocalPartitions,
        config: SlaveConfig,
        master: MasterAddress,
        connect: Connect,
        copied_last: Set[str] = frozenset(),
    ) -> None:
        self._order = CopiedOrder(local.engine.stores, copied_last)
        self._local, self._config = local, config
        self._connection = MasterConnection(master, connect, REQUEST_S_MAX, (CONNECT_S_MIN, RETRY_S))
        self._copies: dict[PartitionKey, PartitionCopy] = {}
        self._faults: dict[PartitionKey, _Fault] = {}
        self._view: Mapping[PartitionKey, StoredRange] = {}
        self._wanted: Mapping[PartitionKey, StoredRange] = {}
        self._stopping = self._connection.stopping
        self.trouble: str | None = "not connected yet"
        """Why the master cannot be read; ``None`` if it can."""

    def start(self) -> None:
        self._connection.start(self, "copying from the master")

    async def stop(self) -> None:
        """Stop after the writes in progress; nothing is appended afterwards."""
        await self._connection.stop()

    def states(self) -> list[CopyState]:
        """Return the state of every partition that the master had at its last answer."""
        return [self._state(partition_key, self._view[partition_key]) for partition_key in sorted(self._view)]

    def _state(self, partition_key: PartitionKey, original: StoredRange) -> CopyState:
        log, fault = self._local.engine.stores.get(*partition_key), self._faults.get(partition_key)
        end = original.start if log is None else log.readable_end
        return CopyState(partition_key, max(0, original.readable_end - end), None if fault is None else fault.reason)

    # ---- the connection

    async def check(self, peer: Peer) -> None:
        await require_broker_id(peer, self._local.engine.config.system.broker_id)
        self.trouble = None
        fields = {"master": peer.address, "segmentsKnown": peer.reports_segments}
        _LOG.info("copying from the master", extra={"fields": fields})

    def disconnected(self, error: Exception | None) -> None:
        if isinstance(error, PeerLost | PeerRefused | ProtocolError | MasterRefused | MasterNotFound):
            self._note_trouble(str(error))
        elif error is not None:
            _LOG.error("bug in copying from the master", exc_info=error)
            self._note_trouble(f"{type(error).__name__}: {error}")
        self._order.forget()
        self._copies.clear()  # the master's partitions may have changed before the next connection

    def _note_trouble(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        if reason != self.trouble:
            _LOG.warning("the master is not copied", extra={"fields": {"reason": reason}})
        self.trouble = reason

    # ---- rounds

    async def work(self, peer: Peer) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            asked = clock()
            self._view = await peer.stored_ranges()
            self._wanted = self._order.look(self._view)
            took = clock() - asked
            if await self._round(peer):
                pause_s = PAUSE_S_MIN
                continue
            await self._connection.sleep(max(pause_s, took * QUESTION_SHARE))
            pause_s = min(pause_s * 2, self._config.delay_ms_max / 1000)

    async def _round(self, peer: Peer) -> bool:
        """Let every partition that is behind do some steps; return whether there was one."""
        now = asyncio.get_running_loop().time()
        due = deque(
            partition_key
            for partition_key, original in self._wanted.items()
            if self._is_due(partition_key, original, now)
        )
        workers = [self._work(peer, due) for _ in range(min(AT_A_TIME, len(due)))]
        found = bool(due)
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return found

    def _is_due(self, partition_key: PartitionKey, original: StoredRange, now: float) -> bool:
        fault = self._faults.get(partition_key)
        if fault is not None and now < fault.retry_at:
            return False
        copy = self._copies.get(partition_key)
        if copy is not None and copy.log is not self._local.engine.stores.get(*partition_key):
            copy.log = None  # an operator has had it deleted or reopened
        return copy is None or copy.behind(original)

    async def _work(self, peer: Peer, due: deque[PartitionKey]) -> None:
        while due and not self._stopping.is_set():
            partition_key = due.popleft()
            original = self._wanted[partition_key]
            copy = self._copies.setdefault(partition_key, PartitionCopy(self._local, partition_key, self._config.group))
            try:
                for _ in range(STEPS_MAX):
                    if self._stopping.is_set() or not copy.behind(original):
                        break
                    await copy.step(peer, original)
            except (CopyRefused, OSError) as refused:
                self._note_fault(partition_key, str(refused))
            else:
                self._clear_fault(partition_key)

    def _note_fault(self, partition_key: PartitionKey, reason: str) -> None:
        before = self._faults.get(partition_key)
        self._copies.pop(partition_key, None)
        self._faults[partition_key] = _Fault(reason, asyncio.get_running_loop().time() + RETRY_S)
        if before is None or before.reason != reason:
            fields = {"partition": folder_name(*partition_key), "reason": reason}
            _LOG.error("partition is not copied", extra={"fields": fields})

    def _clear_fault(self, partition_key: PartitionKey) -> None:
        if self._faults.pop(partition_key, None) is not None:
            _LOG.info("partition is copied again", extra={"fields": {"partition": folder_name(*partition_key)}})
