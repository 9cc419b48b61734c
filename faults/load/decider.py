"""A worker that acts like Spark's exactly-once sink: it prepares, decides and commits one batch after another.

A decision without an answer is requested again, as for a replayed batch: with new branches, or with the old ones. The
set that the broker names is committed, all others are rolled back. Sometimes it acts like a replaced driver and asks
for an old batch.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from faults.history import Outcome, Step, StepKind
from faults.load.transactors import Branch, BranchWorker, UnfinishedBranches
from faults.load.worker import SharedWork, is_definite
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.errors import BrokerError, TransactionError
from metaq.model import Xid

BRANCHES_MAX: Final = 3
REPLAY_CHANCE: Final = 0.1
ZOMBIE_CHANCE: Final = 0.05
CONFLICT: Final = 409

BranchSet = tuple[Branch, ...]


class Decider(BranchWorker):
    """Its query id is its name. Its prepared branches are never left to other workers."""

    def __init__(self, name: str, shift: SharedWork, seed: str, unfinished: UnfinishedBranches) -> None:
        super().__init__(name, shift, seed, unfinished)
        self._batch_id = 0
        # Sets proposed for this batch; all answers but the last were lost.
        self._asked: list[BranchSet] = []
        # Branches still to be committed or rolled back.
        self._to_end: deque[tuple[Branch, StepKind]] = deque()

    def serve(self, session: Session) -> None:
        while not self.shift.over.is_set():
            self.work_off(session)
            if self._batch_id and self.random.random() < ZOMBIE_CHANCE:
                self._ask_for_history(session)
            branches = self._asked[0] if self._asked and self.random.random() < 0.3 else self._prepare(session)
            if branches:
                self._decide(session, branches)

    def conclude(self, session: Session) -> None:
        """Ask once more for unanswered decisions, then end all branches."""
        if self._asked:
            self._decide(session, self._asked[-1])
        self.work_off(session)

    def work_off(self, session: Session) -> None:
        """Commit and roll back the branches of the last decision; after a lost connection, the rest stays for later."""
        while self._to_end:
            self.try_to_end(session, *self._to_end[0])
            self._to_end.popleft()

    def _prepare(self, session: Session) -> BranchSet:
        made: list[Branch] = []
        try:
            for _ in range(self.random.randint(1, BRANCHES_MAX)):
                branch = self.prepared_branch(session)
                if branch is not None:
                    made.append(branch)
        except BaseException:
            self._to_end += ((branch, StepKind.ROLLBACK) for branch in made)
            raise
        return tuple(made)

    def _decide(self, session: Session, branches: BranchSet) -> None:
        if branches not in self._asked:
            self._asked.append(branches)
        steps = self._step_of_all(branches)
        try:
            decided = TransactionSteps(session).decide(self.name, self._batch_id, [branch.xid for branch in branches])
        except TransactionError as error:
            self._refused(steps, branches, error)
            return
        self._note_answers(steps, branches, decided)
        self.work_off(session)
        if self.random.random() < REPLAY_CHANCE:
            self._replay(session, decided)

    def _step_of_all(self, branches: BranchSet) -> list[Step]:
        return [self.history.step_begins(branch.record, StepKind.DECIDE) for branch in branches]

    def _refused(self, steps: list[Step], branches: BranchSet, error: BrokerError) -> None:
        outcome = Outcome.FAILED if is_definite(error.text) else Outcome.UNKNOWN
        for step in steps:
            self.history.step_ended(step, outcome, error.text)
        if not self.shift.refusals_expected:
            self.history.odd("refused decision", f"{self.name} batch {self._batch_id}: {error}")
        elif outcome is Outcome.FAILED and len(self._asked) == 1:
            self._asked.clear()
            self._to_end += ((branch, StepKind.ROLLBACK) for branch in branches)

    def _note_answers(self, steps: list[Step], branches: BranchSet, decided: tuple[Xid, ...]) -> None:
        """Record which set was decided for this batch, and plan the commits and rollbacks."""
        chosen = next((each for each in self._asked if _xids(each) == decided), None)
        outcome = Outcome.OK if chosen is branches else Outcome.FAILED
        if chosen is None:
            self.history.odd("foreign decision", f"{self.name} batch {self._batch_id}: {decided}")
        elif chosen is not branches:
            for step in self._step_of_all(chosen):
                self.history.step_ended(step, Outcome.OK, "decided earlier")
        for step in steps:
            self.history.step_ended(step, outcome)
        for each in self._asked:
            kind = StepKind.COMMIT if each is chosen else StepKind.ROLLBACK
            self._to_end += ((branch, kind) for branch in each)
        self._asked, self._batch_id = [], self._batch_id + 1

    def _replay(self, session: Session, decided: tuple[Xid, ...]) -> None:
        """Ask for the last batch again, with an unknown branch: the answer must be the recorded decision."""
        unknown = Xid(1, b"unknown", b"", self.name)
        again = TransactionSteps(session).decide(self.name, self._batch_id - 1, [unknown])
        if again != decided:
            self.history.odd("decision changed", f"{self.name} batch {self._batch_id - 1}: {decided}, now {again}")

    def _ask_for_history(self, session: Session) -> None:
        """Ask for a batch that was followed by a later one: it must be refused."""
        if self._batch_id < 2:
            return
        branches = self._prepare(session)
        self._to_end += ((branch, StepKind.ROLLBACK) for branch in branches)
        steps = self._step_of_all(branches)
        try:
            TransactionSteps(session).decide(self.name, self._batch_id - 2, _xids(branches))
        except TransactionError as error:
            for step in steps:
                self.history.step_ended(step, Outcome.FAILED, error.text)
            if error.code != CONFLICT and not self.shift.refusals_expected:
                self.history.odd("refused decision", f"{self.name} batch {self._batch_id - 2}: {error}")
        else:
            self.history.odd("late decision taken", f"{self.name} batch {self._batch_id - 2}")


def _xids(branches: BranchSet) -> tuple[Xid, ...]:
    return tuple(branch.xid for branch in branches)
