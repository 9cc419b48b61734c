"""The interfaces between the transactions, the rest of the broker, and their callers.

Everything is called on the event-loop thread, except jobs that ``RunInWorker`` runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import Frame
from metaq.formats.message_id import IdRange
from metaq_broker.log.engine.outcomes import Refusal, StorageFailed

MIB: Final = 1 << 20

Done = Callable[[Refusal | None], None]
"""Called exactly once, on the loop, possibly before the call that took it returns: ``None`` = done, else why not."""


class Unit(NamedTuple):
    """All or part of a transaction's messages for one partition."""

    topic: str
    partition: int
    frames: FrameBlock

    @property
    def partition_key(self) -> tuple[str, int]:
        return self.topic, self.partition


class TransactionStore(Protocol):
    """The partitions, as a transaction sees them."""

    def check(self, topic: str, partition: int) -> None:
        """Check that a message may be put into this partition.

        Raises:
            TransactionRefused: Unknown topic, wrong or closed partition, or a full disk: the refusal of
                ``Engine.put_refusal``.
        """

    def log_end(self, topic: str, partition: int) -> int:
        """Return the offset after the last durable byte; 0 when the partition has no log yet.

        It must be a frame boundary that stays one: no crash and no failed fsync may ever cut the log below it.
        """

    def next_ids(self, count: int) -> IdRange:
        """Return ``count`` (at least 1) fresh message ids."""

    def append(self, units: Sequence[Unit], done: Callable[[StorageFailed | None], None]) -> None:
        """Append the units of one partition, all or none, in order and contiguously.

        ``done`` is called exactly once: when all units are durable and readable, or with the failure if they could not
        be stored. Durable means fsynced, also for a topic whose plain puts are acknowledged earlier
        (``unflushThreshold``). Whatever ``check`` once accepted must be accepted here, even if the topic has since been
        removed from the configuration or the partition closed: the messages are committed.
        """

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        """Yield the intact, durable frames from the frame boundary ``from_offset`` on; none if there is no such log.

        It is used right after the start, when opening the log has made durable what it found.
        """


SpaceCheck = Callable[[Iterable[tuple[str, int]]], str | None]
"""Returns why the disks lack space for messages of these partitions (topic, index) or the journal, or ``None``.

Called before PREPARE and before COMMIT in one phase, never for a prepared transaction.
"""


def no_space_check(partition_keys: Iterable[tuple[str, int]]) -> str | None:
    """``SpaceCheck`` without a check of the disks."""
    return None


class Timer(Protocol):
    def cancel(self) -> None:
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""``loop.call_later``: seconds, callback."""

RunInWorker = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Run the first argument in a worker thread, then call the second on the loop with its exception or ``None``."""


def run_in_loop_worker(job: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
    """``RunInWorker`` of the running asyncio loop's own thread pool."""
    future = asyncio.get_running_loop().run_in_executor(None, job)
    future.add_done_callback(lambda ended: finished(ended.exception()))


class Durability(IntEnum):
    """When the journal is fsynced: MetaQ's ``flushTxLogAtCommit``.

    Only ``COMMIT`` keeps every guarantee through a power loss. With the other two, commits survive the death of the
    process, because the operating system has the bytes, but the last commits, or parts of one, may be lost with the
    machine.
    """

    OS = 0
    COMMIT = 1
    SECOND = 2


class PrepareVote(IntEnum):
    """The vote of PREPARE, with the numbers of the XA specification."""

    OK = 0
    READ_ONLY = 3


@dataclass(slots=True)
class TransactionCounters:
    """The counters of transactions in ``stats``, since the broker's start; ``tx_begin`` counts local ones only.

    Commits and rollbacks are counted when they are complete. Rollbacks by timeout are counted; refused requests are
    not.
    """

    tx_begin: int = 0
    tx_xa_begin: int = 0
    tx_commit: int = 0
    tx_rollback: int = 0


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Limits on the transactions. All sizes are bytes of frames, header and body."""

    open_max: int = 30_000
    """Limit on unfinished transactions, including prepared ones (``maxTxTimeoutTimerCapacity``)."""

    transaction_bytes_max: int = 256 * MIB
    """Limit on one transaction: it is appended in one piece, so it is in memory as a whole while it is committed."""

    message_bytes_max: int = 4 * MIB
    """One message body (``maxMessageSize``)."""

    spill_bytes: int = MIB
    """An open transaction with more than this in memory moves its messages to the journal."""

    buffered_bytes_max: int = 256 * MIB
    """Limit on all open transactions together; above it, every put is written to the journal immediately."""

    decision_bytes_max: int = 64 * MIB
    """Limit on the keys of all remembered decisions."""
