"""The plan of an exactly-once write, made by the driver before any task runs, and its use in a task."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metaq.net.retry import persist
from metaq_spark.backends.metaq.cluster import RetryingSessions, masters_of
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.history import NO_GAPS, GapRule
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, named_write, single_write
from metaq_spark.backends.metaq.exactly_once.participants import Participants, shared_participants
from metaq_spark.backends.metaq.options import SinkOptions
from metaq_spark.errors import BatchSuperseded, ExactlyOnceError, FullRefreshRefused
from metaq_spark.sink.backend import BATCH_ID, QUERY_ID

_FLOW: Final = re.compile(r".*/_checkpoints/(?:[^/]+/){2,}(\d+)/?")
"""The checkpoint of a flow below the ``storage`` of its pipeline: target, flow, and how often it was refreshed."""

RUN_ID: Final = "spark.jobGroup.id"
"""Of a streaming query, the job group is its run."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """Made on the driver, once for a write. ``batch`` is ``None`` in a stream: only its tasks can see the names.

    ``single``: a batch write that is never repeated, so its decision is deleted when it is finished. ``written``: the
    batch was decided before, so its tasks only report what they would have written. ``timeout_s_max``: the brokers'
    limit on the age of an open branch.
    """

    participants: Participants
    batch: BatchName | None = None
    single: bool = False
    written: bool = False
    timeout_s_max: int = 60
    accept_repeated: bool = False
    """Whether a batch that was written before may be repeated with other rows, which are dropped then."""
    gaps: GapRule = NO_GAPS
    """Which batches may be unknown to the brokers."""
    refreshed: str | None = None
    """The checkpoint of a flow of a pipeline that a full refresh has made, if its first batch is refused."""


def plan_transaction(
    options: SinkOptions, streaming: bool, sessions: RetryingSessions | None = None
) -> TransactionPlan:
    """Name the write and find the brokers that take part.

    Raises:
        ExactlyOnceError: A broker cannot take part.
        BatchSuperseded: A later ``txnVersion`` of this ``txnAppId`` was written.
        BatchesMissing: A broker does not know versions that were written before.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
        ZooKeeperAway, ZooKeeperRefused: ZooKeeper could not be asked, and could not before.
    """
    sessions = sessions or RetryingSessions(options)
    masters = persist(lambda: masters_of(options, sessions.pool), sessions.policy, sessions.clock)
    participants, timeout_s_max = shared_participants().find(masters, sessions)
    accept = options.repeated_batch == "accept"
    gone = options.gone_brokers or frozenset()
    gaps = GapRule(options.missing_batches, options.checkpoint_location, options.finds_brokers, gone)
    if streaming:
        refreshed = refreshed_flow(options.checkpoint_location) if options.full_refresh == "refuse" else None
        return TransactionPlan(
            participants, timeout_s_max=timeout_s_max, accept_repeated=accept, gaps=gaps, refreshed=refreshed
        )
    if options.txn_app_id is None or options.txn_version is None:
        return TransactionPlan(participants, single_write(), single=True, timeout_s_max=timeout_s_max)
    batch = named_write(options.txn_app_id, options.txn_version)
    coordinator = Coordinator(participants, sessions, gaps=gaps)
    last = coordinator.last_decided(batch.query)
    if last is not None and last > batch.batch_id:
        raise BatchSuperseded(str(batch), f"{BatchName(batch.query, last)} has been written")
    if last is not None and last < batch.batch_id:
        # The writer of that version may have died between its commits, and is not repeated. After the next decision it
        # would be too late: branches not listed there are rolled back.
        coordinator.finish(BatchName(batch.query, last), ())
    written = last == batch.batch_id
    return TransactionPlan(participants, batch, False, written, timeout_s_max, accept, gaps)


def batch_of_task(plan: TransactionPlan, local_property: Callable[[str], str | None]) -> BatchName:
    """Return the batch that a task writes. ``local_property`` is the task context's.

    Raises:
        ExactlyOnceError: Spark does not tell, or it is a write in ``foreachBatch`` without a name.
        FullRefreshRefused: It is the first one after a full refresh of a pipeline.
    """
    query, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if plan.single and batch_id is not None:
        raise ExactlyOnceError(
            "a write inside foreachBatch needs the options txnAppId (a name that no other write of the query has) and "
            "txnVersion (the batch id): a batch that Spark runs again could not be distinguished from a new one"
        )
    if plan.batch is not None:
        return plan.batch
    if query is None or batch_id is None:
        raise ExactlyOnceError(f"this Spark does not tell its tasks {QUERY_ID} and {BATCH_ID}, which name the batch")
    name = BatchName(query, int(batch_id))
    if plan.refreshed is not None and name.batch_id == 0:
        raise FullRefreshRefused(plan.refreshed)
    return name


def refreshed_flow(checkpoint: str | None) -> str | None:
    """Return the checkpoint's location if it belongs to a flow of a declarative pipeline that was refreshed in full.

    Spark gives such a flow a new checkpoint, so it is a new query, and nothing else tells it from one. Spark's name for
    the folder is not documented; a location of another form is taken for an ordinary query's.
    """
    found = None if checkpoint is None else _FLOW.fullmatch(checkpoint)
    return checkpoint if found is not None and int(found[1]) > 0 else None
