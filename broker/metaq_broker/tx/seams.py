"""What the transactions need from the rest of the broker, and what they promise their callers.

Everything is called on the event-loop thread; only ``RunInWorker`` leaves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from metaq.message_id import IdRange
from metaq.wire.text.frames import Frame
from metaq_broker.tx.refusals import TransactionRefused

MIB: Final = 1 << 20

Done = Callable[[TransactionRefused | None], None]
"""Called exactly once, on the loop, possibly before the call that took it returns: ``None`` = done, else why not."""


class Unit(NamedTuple):
    """What one transaction puts into one partition: ``count`` whole frames back to back, stored as one contiguous piece."""

    topic: str
    partition: int
    block: bytes
    count: int


class TransactionStore(Protocol):
    """The partitions, as a transaction sees them."""

    def check(self, topic: str, partition: int) -> None:
        """Say whether a message may be put there.

        Raises:
            TransactionRefused: Unknown topic, wrong or closed partition, with MetaQ's text and code.
        """

    def log_end(self, topic: str, partition: int) -> int:
        """Return the offset behind the last appended byte, durable or not; 0 when the partition has no log yet."""

    def next_ids(self, count: int) -> IdRange:
        """Return ``count`` (at least 1) fresh message ids."""

    def append(self, units: Sequence[Unit], done: Callable[[Exception | None], None]) -> None:
        """Append each unit as one contiguous piece of its partition; ``done`` when all are durable and readable.

        It must take whatever ``check`` once let through, even if the topic has been removed from the configuration or
        the partition was closed since: those messages are committed. ``done`` is called exactly once, with the first
        error if any unit could not be stored.
        """

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        """Yield the stored frames from ``from_offset`` (a frame boundary) to the appended end; nothing if there is no log.

        Frames that recovery found in the log count as stored only when they are durable.
        """


class Timer(Protocol):
    """A call that was scheduled for later."""

    def cancel(self) -> None:
        """Make it never happen."""


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

    Only ``COMMIT`` keeps every promise through a power loss. The other two survive the death of the process, since what
    was written stays with the operating system, but may lose the last commits, or part of one, with the machine.
    """

    OS = 0
    COMMIT = 1
    SECOND = 2


class PrepareVote(IntEnum):
    """What PREPARE answers; the number is the body of the reply."""

    OK = 0
    READ_ONLY = 3


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """How much the transactions may take. All sizes in bytes of frames (header and body)."""

    open_max: int = 30_000
    """Transactions that are begun and not finished, prepared ones included (``maxTxTimeoutTimerCapacity``)."""

    transaction_bytes_max: int = 256 * MIB
    """One transaction: it is appended in one piece, so it must fit into memory once while it is committed."""

    message_bytes_max: int = 4 * MIB
    """One message body (``maxMessageSize``)."""

    spill_bytes: int = MIB
    """An open transaction that holds more than this in memory moves it to the journal."""

    buffered_bytes_max: int = 256 * MIB
    """All open transactions together; above it every put goes to the journal at once."""

    decision_bytes_max: int = 64 * MIB
    """Keys of all remembered decisions."""

    journal_file_bytes: int = 64 * MIB
    """A new journal file is begun when the current one has this size."""
