"""The end of an exactly-once write on the driver: from what the tasks report to a batch that can be read, or to none.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from metaq.model import Xid
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.contents import Contents, Counts
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan
from metaq_spark.backends.metaq.options import SinkOptions
from metaq_spark.errors import ExactlyOnceError
from metaq_spark.sink.backend import Messages

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenMessages(WriterCommitMessage):
    """What a task has stored: how many messages, and their bytes as frames.

    Exactly-once delivery: in which branches, of which batch, by which run of the query. They are prepared, and for the
    driver to commit. ``counts`` is what they contain, or would if the batch were not written already.
    """

    message_count: int
    frame_bytes: int
    batch: BatchName | None = None
    branches: tuple[Xid, ...] = ()
    counts: Counts = field(default_factory=dict)
    run: str = ""


def commit_stream(plan: TransactionPlan, messages: Messages, batch_id: int, sessions: RetryingSessions) -> None:
    """Finish a micro-batch. Spark tells the driver only its id; the query's name comes with the messages.

    A micro-batch without rows is decided as well: that ends what its earlier runs have left. One without tasks cannot
    have earlier runs.

    Raises:
        BatchSuperseded: Another run of the query went on.
        BatchConflict: The batch was written before, with other rows.
        MetaqError: A broker refused or could not be reached, even after retries. The next run finishes the batch.
    """
    reported = [message for message in messages if isinstance(message, WrittenMessages)]
    for batch in {message.batch for message in reported if message.batch is not None}:
        if batch.batch_id != batch_id:
            raise ExactlyOnceError(f"Spark commits batch {batch_id}, but its tasks wrote {batch}")
        _finish(plan, batch, messages, sessions)


def commit_write(plan: TransactionPlan, messages: Messages, sessions: RetryingSessions) -> None:
    """Finish a batch write. Raises as ``commit_stream``."""
    assert plan.batch is not None
    coordinator = _finish(plan, plan.batch, messages, sessions)
    if plan.single:
        coordinator.end(plan.batch)


def _finish(plan: TransactionPlan, batch: BatchName, messages: Messages, sessions: RetryingSessions) -> Coordinator:
    coordinator = Coordinator(plan.participants, sessions, accept_repeated=plan.accept_repeated)
    reported = [message for message in messages if isinstance(message, WrittenMessages)]
    run = reported[0].run if reported else ""
    coordinator.finish(batch, _branches(messages), Contents.of((message.counts for message in reported), run))
    return coordinator


def abort_write(plan: TransactionPlan, sessions: RetryingSessions) -> None:
    """Take a failed batch write back, if it can still be taken back.

    Spark calls this when tasks failed, and also when the commit did. A decision that the write consists of nothing
    settles which it is: either it is the first, and whatever was prepared is superseded, or the answer is what was
    decided, and that is driven to its end. A write that can be repeated is left for its repetition: here, a decision
    would make that one write nothing.

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


def _branches(messages: Iterable[WriterCommitMessage | None]) -> list[Xid]:
    """All branches, those of one task in their order."""
    return [key for message in messages if isinstance(message, WrittenMessages) for key in message.branches]


class MetaQTransaction:
    """Implements ``Transaction`` for a write with ``plan``."""

    def __init__(self, plan: TransactionPlan, options: SinkOptions) -> None:
        self.plan, self._options = plan, options

    def commit(self, messages: Messages, batch_id: int | None) -> None:
        """See ``Transaction``. Raises as ``commit_stream``."""
        sessions = RetryingSessions(self._options)
        if batch_id is None:
            commit_write(self.plan, messages, sessions)
        else:
            commit_stream(self.plan, messages, batch_id, sessions)

    def abort(self) -> None:
        """See ``Transaction``."""
        abort_write(self.plan, RetryingSessions(self._options))
