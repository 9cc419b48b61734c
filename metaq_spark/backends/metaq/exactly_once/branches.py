"""The branches of an exactly-once task on one broker: one open branch at a time, and prepared ones.

A broker bounds a branch in bytes (256 MiB) and in time (``maxTxTimeoutInSeconds``, 60 s unless configured, whatever
BEGIN asks for). So a branch is prepared, and the next one begun, long before either limit. In a large task that happens
between two blocks, without waiting: PREPARE and the next BEGIN are pipelined with the blocks, and the bundled broker
executes them in order. Inside a branch nothing is sent again, because it is unknown what was stored.

A broker that restarts rolls open branches back, and a lost connection leaves it open whether a PREPARE was carried out.
So the blocks of the open branch, and of one whose PREPARE is not answered, are kept; when the broker is back, they are
put into new branches, in their order. The old ones are rolled back: no decision can list them.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.transactions import Posted, TransactionSteps, Vote
from metaq.errors import BrokerError, MetaqError, TransactionError
from metaq.model import Address, TopicPartition, Xid
from metaq.net.retry import Attempts
from metaq.protocols.text.commands import TransactionCommand
from metaq.statuses import NOT_STARTED
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.columns.blocks import EncodedBlock
from metaq_spark.errors import BranchLost

BRANCH_BYTES_MAX: Final = 16 << 20
"""A branch is prepared at this size, far below a broker's limit. The commit is pipelined by branch: while one becomes
durable in its partitions, the next is appended and the one after it read from the journal.
"""

GIVE_UP_S: Final = 2.0
"""Longest wait for the rollback of a failed task's branch; a remaining branch is rolled back after the next
decision.
"""

Named = Callable[[int], Xid]
"""The key of a branch, by its sequence."""


@dataclass(frozen=True, slots=True)
class BranchLimits:
    """When a branch is prepared. ``timeout_s`` is requested in BEGIN."""

    timeout_s: int
    age_s_max: float
    bytes_max: int = BRANCH_BYTES_MAX


@dataclass(slots=True)
class _Branch:
    """``blocks`` that are not certainly stored; ``sent`` of them were given to ``writer``."""

    xid: Xid
    writer: BatchWriter
    begun_s: float
    byte_count: int = 0
    blocks: list[tuple[TopicPartition, EncodedBlock]] = field(default_factory=list)
    sent: int = 0

    def send(self) -> None:
        for target, block in self.blocks[self.sent :]:
            self.writer.write(target.partition.index, block.data, block.count, target.topic)
            self.sent += 1


class BrokerBranches:
    """The branches of one task attempt on one broker, over one session. Not for two threads at once."""

    def __init__(
        self, sessions: RetryingSessions, broker_id: int, address: Address, named: Named, limits: BranchLimits
    ) -> None:
        """Connect. ``named`` makes the keys.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no connection, even after retries.
        """
        self._policy, self._named, self._limits = sessions.policy, named, limits
        self._sequence = itertools.count()
        self._lease = sessions.lease(address, broker_id, to_write=True)
        self._session = self._lease.__enter__()
        self._transactions = TransactionSteps(self._session)
        self._open: _Branch | None = None
        self._ended: list[_Branch] = []
        """Branches for which PREPARE was sent, in the order of their blocks."""
        self._unsure: deque[_Branch] = deque()
        """The ended branches whose PREPARE is not answered yet."""
        self._under_way: deque[Posted] = deque()
        self._is_interrupted = self._is_asked = False
        self.decided: int | None = None
        """The newest batch of the query that the broker had decided after the last PREPARE, once that is settled."""

    @property
    def prepared(self) -> list[Xid]:
        """Keys in the order of their blocks; they are final, and count, once ``settle`` has returned."""
        return [branch.xid for branch in self._ended]

    def put(self, target: TopicPartition, block: EncodedBlock) -> None:
        """Add a block to the open branch, after beginning one if there is none.

        Raises:
            BranchLost: The broker does not know the branch any more, although it was not restarted.
            MetaqError: The broker refused the block or could not be reached, even after retries.
        """
        self._carry_out(lambda: self._require_open(target.topic))
        assert self._open is not None
        self._open.blocks.append((target, block))
        self._open.byte_count += len(block.data)
        self._carry_out(self._open.send)
        if self._open.byte_count >= self._limits.bytes_max or self.aged:
            self.prepare()

    @property
    def aged(self) -> bool:
        """Whether a branch has been open for so long that it has to be prepared now."""
        return self._open is not None and self._now_s - self._open.begun_s >= self._limits.age_s_max

    def prepare(self) -> None:
        """Send PREPARE for the open branch, if there is one; ``settle`` waits for the outcome. Raises as ``put``."""
        self._carry_out(self._prepare)

    def _prepare(self) -> None:
        if self._open is None:
            return
        self._open.writer.flush()
        self._settle()  # its BEGIN and the previous PREPARE: they are answered before the blocks
        branch, self._open = self._open, None
        self._ended.append(branch)
        self._unsure.append(branch)
        self._under_way.append(self._transactions.post("PREPARE", branch.xid))

    def prepare_last(self) -> None:
        """Send PREPARE for the open branch, and request the query's last decision. Raises as ``put``."""
        self.prepare()
        self._is_asked = bool(self._ended)
        self._carry_out(self._ask_decided)

    def settle(self) -> None:
        """Wait until all branches are prepared for which PREPARE was sent. Raises as ``put``."""
        self._carry_out(self._settle)

    def _ask_decided(self) -> None:
        if self._is_asked:
            self._under_way.append(self._transactions.post("DECIDED", None, unique=self._ended[0].xid.unique))

    def _settle(self) -> None:
        while self._under_way:
            posted = self._under_way[0]
            text = self._transactions.settle(posted)
            self._under_way.popleft()
            type_ = posted.command.type if isinstance(posted.command, TransactionCommand) else ""
            if type_ == "DECIDED":
                self.decided = self._transactions.read_batch(text)
            elif type_ == "PREPARE":
                self._note_prepared(text)

    def _note_prepared(self, text: str) -> None:
        if self._transactions.read_vote(text) is not Vote.PREPARED:
            raise BranchLost(str(self._session.address), "it is empty")
        self._unsure.popleft().blocks.clear()

    def roll_back(self) -> None:
        """Roll back the prepared branches, because the batch was decided without them. Raises as ``put``."""
        for posted in [self._transactions.post("ROLLBACK", key) for key in self.prepared]:
            self._transactions.settle(posted)
        self._ended.clear()

    def close(self) -> None:
        self._lease.__exit__(None, None, None)

    def give_up(self, error: BaseException) -> None:
        """Roll back what is possible after a failure of the task, and drop the session. Never raises ``MetaqError``."""
        keys = [*self.prepared, *([self._open.xid] if self._open else [])]
        try:
            self._session.reopen()  # requests in flight on the old connection do not matter any more
            transactions = TransactionSteps(self._session)
            for posted in [transactions.post("ROLLBACK", key) for key in keys]:
                self._session.wait(posted.opaque, GIVE_UP_S)
        except (MetaqError, RuntimeError):
            pass  # it is only for the sake of space: the next decision of the query does the same
        self._lease.__exit__(type(error), error, error.__traceback__)

    # ---- beginning, and beginning again

    def _require_open(self, topic: str) -> None:
        if self._open is not None:
            return
        xid = self._named(next(self._sequence))
        if self._under_way:  # right after a PREPARE: an error shows when the blocks are refused
            self._under_way.append(self._transactions.post("BEGIN", xid, self._limits.timeout_s, xid.unique))
        else:
            self._transactions.begin(xid, self._limits.timeout_s)
        self._open = _Branch(xid, BatchWriter(self._session, topic, transaction=xid), self._now_s)

    def _carry_out(self, step: Callable[[], None]) -> None:
        """Run a step that may be run again, also after what was interrupted has been put into new branches."""
        attempts = Attempts(self._policy, self._session.clock)
        while True:
            try:
                if self._is_interrupted:
                    self._put_again()
                return step()
            except MetaqError as error:
                if isinstance(error, BrokerError) and NOT_STARTED in error.text:
                    raise BranchLost(error.address, error.text) from error
                if not error.away:
                    raise
                self._session.close(str(error))  # a full disk has not closed it; the other answers are not wanted
                self._is_interrupted = True
                attempts.recover(self._session, error)

    def _put_again(self) -> None:
        """Put the blocks into new branches that were under way when the connection was lost."""
        self._transactions = TransactionSteps(self._session)
        self._under_way.clear()
        interrupted = [*self._unsure, *([self._open] if self._open else [])]
        for posted in [self._transactions.post("ROLLBACK", branch.xid) for branch in interrupted]:
            with suppress(TransactionError):  # the broker has done that when it started
                self._transactions.settle(posted)
        for branch in interrupted:
            self._begin_again(branch)
            if branch is not self._open:
                branch.writer.flush()
                self._note_prepared(self._transactions.settle(self._transactions.post("PREPARE", branch.xid)))
        self._is_interrupted = False
        self._ask_decided()

    def _begin_again(self, branch: _Branch) -> None:
        branch.xid, branch.sent, branch.begun_s = self._named(next(self._sequence)), 0, self._now_s
        self._transactions.begin(branch.xid, self._limits.timeout_s)
        topic = branch.blocks[0][0].topic if branch.blocks else ""
        branch.writer = BatchWriter(self._session, topic, transaction=branch.xid)
        branch.send()

    @property
    def _now_s(self) -> float:
        return self._session.clock.monotonic()
