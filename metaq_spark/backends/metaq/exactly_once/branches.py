"""The branches of an exactly-once task on one broker: one open branch at a time, and prepared ones.

A broker bounds a branch in bytes (256 MiB) and in time (``maxTxTimeoutInSeconds``, 60 s unless configured, whatever
BEGIN asks for). So a branch is prepared, and the next one begun, long before either limit. In a large task that happens
between two blocks, without waiting: PREPARE and the next BEGIN are pipelined with the blocks, and the bundled broker
executes them in order. Inside a branch nothing is sent again except BEGIN, which is idempotent.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.transactions import Posted, Transactions, Vote
from metaq.errors import BrokerError, MetaqError
from metaq.model import Address, TopicPartition, Xid
from metaq.net.retry import Attempts
from metaq.protocols.text.commands import Transaction
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.columns.blocks import Block
from metaq_spark.errors import BranchLost

BRANCH_BYTES_MAX: Final = 16 << 20
"""A branch is prepared at this size, far below a broker's limit. The commit is pipelined by branch: while one becomes
durable in its partitions, the next is appended and the one after it read from the journal.
"""

GIVE_UP_S: Final = 2.0
"""Longest wait for the rollback of a failed task's branch; a remaining branch is rolled back after the next
decision.
"""

_UNKNOWN: Final = "has not been started"
_T = TypeVar("_T")

Named = Callable[[int], Xid]
"""The key of a branch, by its sequence."""


@dataclass(frozen=True, slots=True)
class BranchLimits:
    """When a branch is prepared. ``timeout_s`` is requested in BEGIN."""

    timeout_s: int
    age_s_max: float
    bytes_max: int = BRANCH_BYTES_MAX


@dataclass(slots=True)
class _OpenBranch:
    xid: Xid
    writer: BatchWriter
    begun_s: float
    byte_count: int = 0


class BrokerBranches:
    """The branches of one task attempt on one broker, over one session. Not for two threads at once."""

    def __init__(self, sessions: RetryingSessions, address: Address, named: Named, limits: BranchLimits) -> None:
        """Connect. ``named`` makes the keys.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no connection, even after retries.
        """
        self._policy, self._named, self._limits = sessions.policy, named, limits
        self._sequence = itertools.count()
        self._lease = sessions.lease(address)
        self._session = self._lease.__enter__()
        self._transactions = Transactions(self._session)
        self._open: _OpenBranch | None = None
        self._under_way: deque[Posted] = deque()
        self.prepared: list[Xid] = []
        """Keys in the order of their blocks; each counts once ``settle`` has returned."""
        self.decided: int | None = None
        """The newest batch of the query that the broker had decided behind the last PREPARE, once that is settled."""

    def put(self, target: TopicPartition, block: Block) -> None:
        """Add a block to the open branch, after beginning one if there is none.

        Raises:
            BranchLost: The broker does not know the branch any more.
            MetaqError: The broker refused the block or could not be reached.
        """
        self._explaining(lambda: self._put(target, block))

    def _put(self, target: TopicPartition, block: Block) -> None:
        if self._open is None:
            self._open = self._begin(target.topic)
        self._open.writer.write(target.partition.index, block.data, block.count, target.topic)
        self._open.byte_count += len(block.data)
        if self._open.byte_count >= self._limits.bytes_max or self.aged:
            self.prepare()

    @property
    def aged(self) -> bool:
        """Whether a branch has been open for so long that it has to be prepared now."""
        return self._open is not None and self._now_s - self._open.begun_s >= self._limits.age_s_max

    def prepare(self) -> None:
        """Send PREPARE for the open branch, if there is one; ``settle`` waits for the outcome. Raises as ``put``."""
        self._explaining(self._prepare)

    def _prepare(self) -> None:
        if self._open is None:
            return
        self._open.writer.flush()
        self._settle()  # its BEGIN and the previous PREPARE: they are answered before the blocks
        self._under_way.append(self._transactions.post("PREPARE", self._open.xid))
        self.prepared.append(self._open.xid)
        self._open = None

    def prepare_last(self) -> None:
        """Send PREPARE for the open branch, and request the query's last decision. Raises as ``put``."""
        self.prepare()
        if self.prepared:
            self._under_way.append(self._transactions.post("DECIDED", None, unique=self.prepared[0].unique))

    def settle(self) -> None:
        """Wait until all branches are prepared for which PREPARE was sent. Raises as ``put``."""
        self._explaining(self._settle)

    def _settle(self) -> None:
        while self._under_way:
            posted = self._under_way.popleft()
            text = self._transactions.settle(posted)
            type_ = posted.command.type if isinstance(posted.command, Transaction) else ""
            if type_ == "DECIDED":
                self.decided = self._transactions.read_batch(text)
            elif type_ == "PREPARE" and self._transactions.read_vote(text) is not Vote.PREPARED:
                raise BranchLost(str(self._session.address), "it is empty")

    def roll_back(self) -> None:
        """Roll back the prepared branches, because the batch was decided without them. Raises as ``put``."""
        for posted in [self._transactions.post("ROLLBACK", key) for key in self.prepared]:
            self._transactions.settle(posted)
        self.prepared.clear()

    def close(self) -> None:
        """Return the session."""
        self._lease.__exit__(None, None, None)

    def give_up(self, error: BaseException) -> None:
        """Roll back what is possible after a failure of the task, and drop the session. Never raises ``MetaqError``."""
        keys = [*self.prepared, *([self._open.xid] if self._open else [])]
        try:
            self._session.reopen()  # requests in flight on the old connection do not matter any more
            transactions = Transactions(self._session)
            for posted in [transactions.post("ROLLBACK", key) for key in keys]:
                self._session.wait(posted.opaque, GIVE_UP_S)
        except (MetaqError, RuntimeError):
            pass  # it is only for the sake of space: the next decision of the query does the same
        self._lease.__exit__(type(error), error, error.__traceback__)

    # ---- beginning

    def _begin(self, topic: str) -> _OpenBranch:
        xid = self._named(next(self._sequence))
        if self._under_way:  # right after a PREPARE: an error shows when the blocks are refused
            self._under_way.append(self._transactions.post("BEGIN", xid, self._limits.timeout_s, xid.unique))
        else:
            self._persist(lambda: self._transactions.begin(xid, self._limits.timeout_s))
        return _OpenBranch(xid, BatchWriter(self._session, topic, transaction=xid), self._now_s)

    def _persist(self, step: Callable[[], None]) -> None:
        attempts = Attempts(self._policy, self._session.clock)
        while True:
            try:
                return step()
            except MetaqError as error:
                attempts.recover(self._session, error)

    def _explaining(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except BrokerError as error:
            if _UNKNOWN in error.text:
                raise BranchLost(error.address, error.text) from error
            raise

    @property
    def _now_s(self) -> float:
        return self._session.clock.monotonic()
