"""A ZooKeeper: one record with a version, sessions, and all that may happen to a request on its way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from metaq_broker.replication.pair.events import ChangeOutcome
from metaq_broker.replication.pair.record import PairRecord

from faults.simulation.events import Schedule, between

SESSION_US = 600_000
"""How long a session lasts that does not report."""

ANSWER_US = 300_000
"""After how long a client gives up waiting for an answer."""


class StoredVersion(NamedTuple):
    record: PairRecord
    version: int


class Proposal(NamedTuple):
    version: int | None
    record: PairRecord


class ZooKeeper:
    """``cut_to`` and ``cut_from``: members whose requests, or whose answers, are lost."""

    def __init__(self, schedule: Schedule, random: Random, note: Callable[[str], None]) -> None:
        self._schedule, self._random, self._note = schedule, random, note
        self.stored: StoredVersion | None = None
        self.versions: list[StoredVersion] = []
        self._readable: list[StoredVersion] = []
        self.pending: list[Proposal] = []
        self.is_down = False
        self.cut_to: set[int] = set()
        self.cut_from: set[int] = set()
        self.lost_answers = 0.0
        self.sessions: dict[int, int] = {}
        self.watchers: dict[int, Callable[[], None]] = {}
        self.on_store: Callable[[PairRecord], None] = lambda record: None
        self.on_growth: Callable[[PairRecord], None] | None = None

    # ---- requests; ``answer`` is called once, in the member's own time

    def read(self, member: int, answer: Callable[[StoredVersion | None, bool], None]) -> None:
        """Answer with the record, and whether it could be read. Another server may be behind."""
        if not self._reaches(member) or not self._answers(member):
            self._schedule.after(ANSWER_US, answer, None, False)
            return

        def arrive() -> None:
            stored = self.stored
            if self._random.random() < 0.05:
                stored = self._readable[-3:][0] if self._readable else None
            self._schedule.after(self._delay(), answer, stored, True)

        self._schedule.after(self._delay(), arrive)

    def change(self, member: int, proposal: Proposal, answer: Callable[[ChangeOutcome, int], None]) -> None:
        """Answer with the outcome. A request whose answer is lost may arrive long afterwards."""
        if not self._reaches(member):
            if self._random.random() < 0.3:  # it was sent, and is on its way
                self._send(proposal, self._random.randint(1_000, 1_500_000), lambda outcome, version: None)
            self._schedule.after(ANSWER_US, answer, ChangeOutcome.UNKNOWN, -1)
        elif not self._answers(member):
            late = 0 if self._random.random() < 0.5 else self._random.randint(1_000, 1_500_000)
            self._send(proposal, self._delay() + late, lambda outcome, version: None)
            self._schedule.after(ANSWER_US, answer, ChangeOutcome.UNKNOWN, -1)
        else:
            self._send(proposal, self._delay(), answer)

    def _send(self, proposal: Proposal, delay: int, answer: Callable[[ChangeOutcome, int], None]) -> None:
        self.pending.append(proposal)

        def arrive() -> None:
            if proposal not in self.pending:
                return  # this ZooKeeper was put back meanwhile
            self.pending.remove(proposal)
            version = None if self.stored is None else self.stored.version
            if proposal.version != version:
                self._schedule.after(self._delay(), answer, ChangeOutcome.CONFLICT, -1)
                return
            grows = self.stored is not None and proposal.record.in_sync > self.stored.record.in_sync
            self.store(proposal.record, 0 if version is None else version + 1)
            if grows and self.on_growth is not None:
                notify, self.on_growth = self.on_growth, None
                notify(proposal.record)
                return  # and the answer is lost
            self._schedule.after(self._delay(), answer, ChangeOutcome.CHANGED, 0 if version is None else version + 1)

        self._schedule.after(delay, arrive)

    def store(self, record: PairRecord, version: int) -> None:
        self.stored = StoredVersion(record, version)
        self.versions.append(self.stored)
        self._readable.append(self.stored)
        self._note(f"zookeeper  {version}: epoch {record.epoch} master {record.master} {sorted(record.in_sync)}")
        self.on_store(record)
        for member, notify in self.watchers.items():
            if self._reaches(member) and member not in self.cut_from:
                self._schedule.after(self._delay(), notify)

    def put_back(self, to: StoredVersion | None) -> None:
        """Restore an older state, or none; requests on their way are lost."""
        self.pending.clear()
        self.stored = to
        self._readable = [] if to is None else [to]
        self._note(f"zookeeper  put back to {to}")

    # ---- sessions

    def has_session(self, member: int) -> bool:
        return self._schedule.now - self.sessions.get(member, -SESSION_US) < SESSION_US

    def report(self, member: int) -> None:
        """A member reports; its session begins, or goes on."""
        if self._reaches(member) and member not in self.cut_from:
            self.sessions[member] = self._schedule.now

    def _reaches(self, member: int) -> bool:
        return not self.is_down and member not in self.cut_to

    def _answers(self, member: int) -> bool:
        return member not in self.cut_from and self._random.random() >= self.lost_answers

    def _delay(self) -> int:
        return between(self._random, 300, 3_000)
