"""Workers that use transactions: local ones, and XA branches in two phases.

Branches that are left prepared, or whose step was not answered, go to ``UnfinishedBranches``: other workers, or the end
of the round, finish them over other connections, often after a kill.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from faults.history import ENDING, History, Outcome, StepKind, TransactionRecord
from faults.load.putters import batch_command
from faults.load.worker import MetaqWorker, PlannedMessage, SharedWork, is_definite, put_command
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps, Vote
from metaq.errors import TransactionError
from metaq.model import TransactionId, Xid

Answer = TypeVar("Answer")

FORMAT_ID: Final = 7
PUTS_MAX: Final = 6
LARGE_CHANCE: Final = 0.04
LARGE_BYTES: Final = (200_000, 600_000)
"""Size of large messages: some of them exceed the broker's memory for one transaction."""

TIMEOUT_S: Final = 30
"""Timeout of XA branches: a branch that lost its connection before PREPARE is rolled back after it."""

UNFINISHED_INTERVAL_S: Final = 0.02


class Branch(NamedTuple):
    xid: Xid
    record: TransactionRecord


class UnfinishedBranches:
    """Branches that other workers must finish. ``prepared`` ones certainly exist, ``unsure`` ones perhaps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prepared: dict[str, Branch] = {}
        self._unsure: dict[str, Branch] = {}

    def leave(self, branch: Branch, *, unsure: bool = False) -> None:
        with self._lock:
            (self._unsure if unsure else self._prepared)[branch.record.key] = branch

    def take(self, choose: Callable[[Sequence[Branch]], Branch]) -> Branch | None:
        """Remove and return one of the prepared branches, if there are any."""
        with self._lock:
            if not self._prepared:
                return None
            return self._prepared.pop(choose(list(self._prepared.values())).record.key)

    def sort_out(self, unique: str, listed: frozenset[str]) -> None:
        """Update with an answer to RECOVER while no worker runs: branches that are not listed have ended."""
        with self._lock:
            for key, branch in list(self._unsure.items()):
                if branch.xid.unique == unique:
                    del self._unsure[key]
                    self._prepared[key] = branch
            self._prepared = {
                key: branch for key, branch in self._prepared.items() if branch.xid.unique != unique or key in listed
            }

    @property
    def prepared_count(self) -> int:
        """Number of branches that are certainly prepared."""
        return len(self._prepared)


def attempt(
    history: History, record: TransactionRecord, kind: StepKind, action: Callable[[], Answer]
) -> tuple[Answer | None, str | None]:
    """Carry out a step and record its outcome; return its answer, and the refusal's text if it was refused.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The step stays without an answer.
    """
    step = history.step_begins(record, kind)
    try:
        answer = action()
    except TransactionError as error:
        history.step_ended(step, Outcome.FAILED if is_definite(error.text) else Outcome.UNKNOWN, error.text)
        return None, error.text
    history.step_ended(step, Outcome.OK)
    return answer, None


def list_prepared(history: History, session: Session, unique: str) -> frozenset[str]:
    """Ask RECOVER and record the answer."""
    started = history.stamp()
    keys = frozenset(map(str, TransactionSteps(session).recover(unique)))
    history.listed(started, unique, keys)
    return keys


class Transactor(MetaqWorker):
    def step(
        self, record: TransactionRecord, kind: StepKind, action: Callable[[], Answer], *, may_fail: bool = False
    ) -> Answer | None:
        """Carry out a step; a refusal is an oddity unless it ``may_fail`` or the broker may refuse everything."""
        answer, refusal = attempt(self.history, record, kind, action)
        if refusal is not None and not may_fail and not self.shift.refusals_expected:
            self.history.odd(f"refused {kind.value}", f"{record.key}: {refusal}")
        return answer

    def fill(self, session: Session, key: TransactionId, record: TransactionRecord) -> bool:
        """Put some messages, sometimes as a block or large ones; return whether all were accepted."""
        large = self.random.random() < LARGE_CHANCE
        partition_keys = self.random.sample(
            self.shift.partition_keys, min(len(self.shift.partition_keys), self.random.randint(1, 3))
        )
        for _ in range(self.random.randint(1, PUTS_MAX)):
            partition_key = self.random.choice(partition_keys)
            letters = [self._letter(large) for _ in range(1 if large else self.random.choice((1, 1, 1, 2, 20)))]
            put = self.history.put_begins(self.lane, partition_key, [letter.sent for letter in letters], record)
            command = (
                put_command(partition_key, letters[0]) if len(letters) == 1 else batch_command(partition_key, letters)
            )
            self.settle(put, session.call(command._replace(transaction=key)))
            if put.outcome is not Outcome.OK:
                return False
            if put.offset != -1:
                self.history.odd("offset in a transaction", str(put))
        return True

    def _letter(self, large: bool) -> PlannedMessage:
        return self.letter(self.random.randint(*LARGE_BYTES)) if large else self.small_letter()


class LocalTransactor(Transactor):
    """Local transactions: most are committed, some rolled back, some abandoned with their connection."""

    def serve(self, session: Session) -> None:
        steps = TransactionSteps(session)
        while not self.shift.over.is_set():
            key = steps.local_id()
            record = self.history.transaction_begins(str(key))
            self.step(record, StepKind.BEGIN, lambda key=key: steps.begin(key))  # type: ignore[misc]
            chance = self.random.random()
            if not self.fill(session, key, record) or chance < 0.2:
                self.step(record, StepKind.ROLLBACK, lambda key=key: steps.rollback(key))  # type: ignore[misc]
            elif chance < 0.95:
                self.step(record, StepKind.COMMIT, lambda key=key: steps.commit(key))  # type: ignore[misc]


class BranchWorker(Transactor):
    """Common base of workers with XA branches; ``unique`` is the worker's name."""

    def __init__(self, name: str, shift: SharedWork, seed: str, unfinished: UnfinishedBranches) -> None:
        super().__init__(name, shift, seed)
        self.unfinished = unfinished
        self._numbers = itertools.count()

    def prepared_branch(self, session: Session) -> Branch | None:
        """Begin a branch, put and prepare; ``None`` if it was refused on the way (and rolled back).

        A branch whose answers are lost is left as unsure.
        """
        steps, name = TransactionSteps(session), f"{self.name}.{next(self._numbers)}"
        xid = Xid(FORMAT_ID, name.encode(), b"b", self.name)
        branch = Branch(xid, self.history.transaction_begins(str(xid), self.name))
        try:
            self.step(branch.record, StepKind.BEGIN, lambda: steps.begin(xid, TIMEOUT_S))
            if not self.fill(session, xid, branch.record):
                self.step(branch.record, StepKind.ROLLBACK, lambda: steps.rollback(xid), may_fail=True)
                return None
            vote = self.step(branch.record, StepKind.PREPARE, lambda: steps.prepare(xid))
        except BaseException:
            self.unfinished.leave(branch, unsure=True)
            raise
        if vote is Vote.READ_ONLY:
            self.history.odd("empty branch", f"{xid}: messages were put, PREPARE says there are none")
        if vote is None:
            self.unfinished.leave(branch, unsure=True)
        return branch if vote is Vote.PREPARED else None

    def end(self, session: Session, branch: Branch, kind: StepKind) -> None:
        """Commit or roll back a prepared branch; it is left to others if it is not certain that it has ended."""
        try:
            ended = self.try_to_end(session, branch, kind)
        except BaseException:
            self.unfinished.leave(branch, unsure=True)
            raise
        if not ended:
            self.unfinished.leave(branch, unsure=True)

    def try_to_end(self, session: Session, branch: Branch, kind: StepKind) -> bool:
        """Commit or roll back a prepared branch; return whether the broker did it.

        A refusal is an oddity unless an earlier attempt without an answer may have ended the branch.
        """
        steps = TransactionSteps(session)
        action = steps.commit if kind is StepKind.COMMIT else steps.rollback
        may_have_ended = any(step.possible for step in branch.record.of(*ENDING))
        _, refusal = attempt(self.history, branch.record, kind, lambda: action(branch.xid))
        if refusal is not None and not may_have_ended and not self.shift.refusals_expected:
            self.history.odd(f"refused {kind.value}", f"{branch.record.key}: {refusal}")
        return refusal is None


class TwoPhaser(BranchWorker):
    """XA branches: prepared, then committed, rolled back, or left to others; sometimes it asks RECOVER."""

    def serve(self, session: Session) -> None:
        while not self.shift.over.is_set():
            branch = self.prepared_branch(session)
            chance = self.random.random()
            if branch is None:
                continue
            if chance < 0.4:
                self.end(session, branch, StepKind.COMMIT)
            elif chance < 0.6:
                self.end(session, branch, StepKind.ROLLBACK)
            else:
                self.unfinished.leave(branch)
            if self.random.random() < 0.05:
                list_prepared(self.history, session, self.name)


class Finisher(BranchWorker):
    """Ends branches that others left, over its own connection."""

    def serve(self, session: Session) -> None:
        while not self.shift.over.wait(UNFINISHED_INTERVAL_S):
            self.finish_one(session)

    def finish_one(self, session: Session) -> bool:
        """End one of the branches that were left, with either outcome; return whether there was one."""
        branch = self.unfinished.take(self.random.choice)
        if branch is not None:
            self.end(session, branch, self.random.choice((StepKind.COMMIT, StepKind.COMMIT, StepKind.ROLLBACK)))
        return branch is not None
