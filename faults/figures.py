"""Counts what was done in a run, from the histories; printed at the end."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from faults.history import COMMITTING, NOT_REPORTED, History, Outcome, StepKind


@dataclass(slots=True)
class Figures:
    """Counts of one run. ``restarts_s`` are the seconds from each start until the broker was ready."""

    rounds: int = 0
    kills: int = 0
    kills_at_start: int = 0
    stops: int = 0
    restarts_s: list[float] = field(default_factory=list)
    messages: int = 0
    """Acknowledged messages, also by the commit of their transaction."""
    unknown_puts: int = 0
    refused_puts: int = 0
    messages_read: int = 0
    committed: int = 0
    rolled_back: int = 0
    prepared: int = 0
    prepared_over_a_kill: int = 0
    sent_by_rocketmq: int = 0
    """Acknowledged messages of RocketMQ's clients."""
    pulled: int = 0
    deleted_bytes: int = 0
    """What retention removed."""

    def add(self, history: History) -> None:
        for put in history.puts:
            if put.outcome is Outcome.OK:
                self.messages += len(put.messages)
                self.sent_by_rocketmq += put.queue_offset != NOT_REPORTED
            elif put.outcome is Outcome.UNKNOWN:
                self.unknown_puts += 1
            else:
                self.refused_puts += 1
        self.pulled += len(history.pulled)
        self.messages_read += sum(map(len, history.sightings.values()))
        for record in history.transactions.values():
            ended = {step.kind for step in record.steps if step.outcome is Outcome.OK}
            committed = not ended.isdisjoint(COMMITTING)
            self.committed += committed
            self.rolled_back += StepKind.ROLLBACK in ended
            self.prepared += StepKind.PREPARE in ended
            if committed:
                self.messages += sum(len(put.messages) for put in record.puts if put.outcome is Outcome.OK)

    def lines(self) -> list[str]:
        """Return the summary, a line for each subject."""
        lines = [
            f"messages      {self.messages:,} acknowledged and found, {self.messages_read:,} read on the way",
            f"puts          {self.unknown_puts:,} without an answer, {self.refused_puts:,} refused",
            f"transactions  {self.committed:,} committed, {self.rolled_back:,} rolled back",
            f"branches      {self.prepared:,} prepared, {self.prepared_over_a_kill:,} times one waited through a kill",
            f"broker        {self.kills:,} kills, {self.kills_at_start:,} while it started; {self.stops:,} clean stops",
        ]
        if self.sent_by_rocketmq:
            lines.append(f"RocketMQ      {self.sent_by_rocketmq:,} of the messages sent, {self.pulled:,} pulled")
        if self.deleted_bytes:
            lines.append(f"retention     {self.deleted_bytes / 1e6:,.1f} MB deleted")
        if self.restarts_s:
            median, longest = statistics.median(self.restarts_s), max(self.restarts_s)
            lines.append(f"restart       {median:.2f} s median, {longest:.2f} s longest, until it was ready")
        return lines
