"""The end of an exactly-once write on the driver: makes the tasks' batch readable, or aborts it.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from metaq.model import Xid
from metaq.net.retry import RetryPolicy
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.contents import Contents, Counts
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan, plan_transaction
from metaq_spark.backends.metaq.options import SinkOptions
from metaq_spark.errors import ExactlyOnceError
from metaq_spark.sink.backend import Messages
from metaq_spark.sink.first_look import FirstLook

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenMessages(WriterCommitMessage):
    """What a task has stored: the number of messages, and their bytes as frames.

    With exactly-once delivery: the branches, the batch, and the run of the query. The branches are prepared; the driver
    commits them. ``counts`` is their content, or would be if the batch were not written already.
    """

    message_count: int
    frame_bytes: int
    batch: BatchName | None = None
    branches: tuple[Xid, ...] = ()
    counts: Counts = field(default_factory=dict)
    run: str = ""


def commit_batch(plan: TransactionPlan, messages: Messages, batch_id: int | None, sessions: RetryingSessions) -> None:
    """Finish micro-batch ``batch_id``, or a batch write where that is ``None``.

    Spark passes only the id of a micro-batch to the driver; the messages contain the query's name. A micro-batch
    without rows is decided, too: that cleans up after its earlier runs, and leaves no gap in the brokers' history.
    Spark runs a task even for an empty micro-batch, so every micro-batch has a message.

    Raises:
        BatchSuperseded: Another run of the query has continued.
        BatchConflict: The batch was written before, with other rows.
        BatchesMissing: A broker does not know batches that were written before.
        MetaqError: A broker refused or could not be reached, even after retries. The next run finishes the batch.
    """
    reported = [message for message in messages if isinstance(message, WrittenMessages)]
    coordinator = Coordinator(plan.participants, sessions, accept_repeated=plan.accept_repeated, gaps=plan.gaps)
    branches = [key for message in reported for key in message.branches]  # a task's are in order
    reports = (message.batch for message in reported if message.batch is not None)
    contents = Contents.of((message.counts for message in reported), reported[0].run if reported else "")
    for batch in {plan.batch} if plan.batch is not None else set(reports):
        if batch_id is not None and batch.batch_id != batch_id:
            raise ExactlyOnceError(f"Spark commits batch {batch_id}, but its tasks wrote {batch}")
        coordinator.finish(batch, branches, contents)
        if plan.single:
            coordinator.end(batch)


def abort_write(plan: TransactionPlan, sessions: RetryingSessions) -> None:
    """Undo a failed batch write, if that is still possible.

    Spark calls this after a failure of tasks, and also of the commit. A decision that the write has no branches
    distinguishes the two: either it is the first decision, and the prepared branches are superseded, or the answer is
    the earlier decision, which is completed. A repeatable write is left to its repetition: an empty decision would make
    that write nothing.

    Raises:
        MetaqError: A broker could not be reached, even after retries.
    """
    if not plan.single or plan.batch is None:
        _log.warning("%s failed; writing it again finishes it or replaces what it left behind", plan.batch)
        return
    coordinator = Coordinator(plan.participants, sessions)
    if coordinator.finish(plan.batch, ()).branches:
        _log.warning("the write failed after it was decided: all of its messages are in their topics, once")
    coordinator.end(plan.batch)


class MetaQTransaction:
    """Implements ``SinkTransaction`` for a write with ``options``; made on the driver."""

    def __init__(self, options: SinkOptions, streaming: bool) -> None:
        """Name the write and find out whether it was written before. Raises as ``plan_transaction``."""
        self._options, self._streaming = options, streaming
        self._first = FirstLook.of(lambda: self._find(options.first_policy), streaming=streaming)

    def plan(self, *, begun: bool) -> TransactionPlan:
        """Return the plan; ``begun``: the query has written before, so wait for a broker that is away.

        Raises:
            MetaqError: A broker is away.
        """
        return self._first.get(lambda: self._find(self._options.waiting_policy), begun=begun)

    def _find(self, policy: RetryPolicy) -> TransactionPlan:
        return plan_transaction(self._options, self._streaming, RetryingSessions(self._options, policy=policy))

    def commit(self, messages: Messages, batch_id: int | None) -> None:
        """Finish what tasks have written; raises as ``commit_batch``."""
        commit_batch(self.plan(begun=True), messages, batch_id, RetryingSessions(self._options))

    def abort(self) -> None:
        abort_write(self.plan(begun=True), RetryingSessions(self._options))
