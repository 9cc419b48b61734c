"""The exactly-once delivery of one task attempt: blocks are put into its branches, and are not readable yet.

Between two record batches Spark may keep the task waiting for minutes, longer than a broker keeps a branch open. So a
thread prepares old branches; the next block then begins another one. One lock guards all of it.

If the batch turns out to be decided when everything is prepared, the attempt rolls its branches back and reports none.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from metaq.errors import MetaqError
from metaq.model import Address, TopicPartition, Xid
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.branches import BranchLimits, BrokerBranches
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, BranchName
from metaq_spark.backends.metaq.exactly_once.plan import RUN_ID, TransactionPlan, batch_of_task
from metaq_spark.backends.metaq.options import SinkOptions
from metaq_spark.columns.blocks import EncodedBlock
from metaq_spark.sink.backend import WriteTask

AGE_SHARE: Final = 0.25
"""How much of its timeout a branch may use before it is prepared. The rest is for blocks and answers in flight."""


def branch_limits(options: SinkOptions, timeout_s_max: int) -> BranchLimits:
    """Return when a task must prepare its branches; ``timeout_s_max`` is the brokers' limit on timeouts."""
    timeout_s = -(-options.transaction_timeout_ms // 1000)
    return BranchLimits(timeout_s, AGE_SHARE * min(timeout_s, timeout_s_max))


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Which run of which task of a batch; the numbers are Spark's."""

    batch: BatchName
    task: int
    attempt: int


class TransactionalPuts:
    """Implements ``BlockPuts``. ``finish`` returns when every branch is prepared; only a decision makes them count."""

    def __init__(self, attempt: TaskAttempt, limits: BranchLimits, sessions: RetryingSessions) -> None:
        self._attempt, self._limits, self._sessions = attempt, limits, sessions
        self._nonce = uuid4().hex[:16]
        self._brokers: dict[int, BrokerBranches] = {}
        self._lock = threading.Lock()
        self._failure: MetaqError | None = None
        self._watch: _Watch | None = None

    def put(self, target: TopicPartition, address: Address, block: EncodedBlock) -> None:
        with self._lock:
            self._raise_failure()
            self._broker(target, address).put(target, block)
            self._prepare_aged()

    def finish(self) -> tuple[Xid, ...]:
        self._stop_watch()
        self._raise_failure()
        for broker in self._brokers.values():
            broker.prepare_last()
        for broker in self._brokers.values():
            broker.settle()
        if self._is_decided():
            for broker in self._brokers.values():
                broker.roll_back()
        for broker in self._brokers.values():
            broker.close()
        return tuple(key for broker in self._brokers.values() for key in broker.prepared)

    def _is_decided(self) -> bool:
        """Whether the batch was decided before this attempt has reported: then no decision can list its branches.

        It is a repetition, or the slower of two attempts. There may be no later batch that cleans up, so the attempt
        does so itself.
        """
        batch_id = self._attempt.batch.batch_id
        return any(broker.decided is not None and broker.decided >= batch_id for broker in self._brokers.values())

    def give_up(self, error: BaseException) -> None:
        """Roll the prepared branches back: no decision can list them."""
        self._stop_watch()
        for broker in self._brokers.values():
            broker.give_up(error)

    def _broker(self, target: TopicPartition, address: Address) -> BrokerBranches:
        broker_id = target.partition.broker_id
        return self._brokers.get(broker_id) or self._connect(broker_id, address)

    def _connect(self, broker_id: int, address: Address) -> BrokerBranches:
        named = partial(self._key, broker_id)
        self._brokers[broker_id] = BrokerBranches(self._sessions, broker_id, address, named, self._limits)
        if self._watch is None:
            self._watch = _Watch(self._limits.age_s_max / 2, self._look_after)
            self._watch.start()
        return self._brokers[broker_id]

    def _key(self, broker_id: int, sequence: int) -> Xid:
        attempt = self._attempt
        return BranchName(attempt.batch, attempt.task, attempt.attempt, broker_id, sequence, self._nonce).xid

    # ---- branches that get old

    def _look_after(self) -> None:
        with self._lock:
            if self._failure is None:
                try:
                    self._prepare_aged()
                except MetaqError as failure:
                    self._failure = failure  # for the task's own thread

    def _prepare_aged(self) -> None:
        for broker in self._brokers.values():
            if broker.aged:
                broker.prepare()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()


class UnsentPuts:
    """Sends nothing, because the batch was written before: only reports what would have been written."""

    def put(self, target: TopicPartition, address: Address, block: EncodedBlock) -> None: ...

    def finish(self) -> tuple[Xid, ...]:
        return ()

    def give_up(self, error: BaseException) -> None: ...


class AttemptPuts(NamedTuple):
    """Where a task attempt puts its blocks: ``batch`` and ``run`` (of the query) are reported with the contents."""

    puts: TransactionalPuts | UnsentPuts
    batch: BatchName
    run: str


def begin_attempt(
    plan: TransactionPlan, options: SinkOptions, task: WriteTask, sessions: RetryingSessions
) -> AttemptPuts:
    """Begin one task attempt of the plan; nothing is sent yet.

    Raises:
        ExactlyOnceError: The batch has no name that distinguishes it from others.
    """
    batch, run = batch_of_task(plan, task.local_property), task.local_property(RUN_ID) or ""
    if plan.written:
        return AttemptPuts(UnsentPuts(), batch, run)
    attempt = TaskAttempt(batch, task.number, task.attempt)
    return AttemptPuts(TransactionalPuts(attempt, branch_limits(options, plan.timeout_s_max), sessions), batch, run)


class _Watch(threading.Thread):
    """Calls ``look`` every ``interval_s`` seconds until it is stopped."""

    def __init__(self, interval_s: float, look: Callable[[], None]) -> None:
        super().__init__(name="metaq-branches", daemon=True)
        self._interval_s, self._look = interval_s, look
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._look()

    def stop(self) -> None:
        self._ended.set()
        self.join()
