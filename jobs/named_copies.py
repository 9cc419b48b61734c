"""Writes copies in one transaction with a name, which is written once; for jobs that tell whether it was written.

Used on the driver only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from job_report import JobReport, append
from pyspark.sql import DataFrame

from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.contents import Contents
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.options.table import Use


def copy_once(
    report: JobReport,
    read: DataFrame,
    transform: Callable[[DataFrame], DataFrame],
    options: Mapping[str, Any],
    compared: bool = True,
) -> str:
    """Write what ``read`` has, unless its name (``txnAppId``) was written before; return what was done.

    ``compared``: if it was written before, it must have been the same messages.

    Raises:
        ValueError: It was written before, with other messages; nothing was written.
        MetaqError: A broker could not be asked.
    """
    name, before = options["txnAppId"], written_before(options)
    if before is None or compared:
        try:
            report.write(read, transform, lambda rows: append(rows, options))
        except Exception as error:
            if before is None or "they are not the same messages" not in str(error):
                raise
            raise ValueError(
                f"{name} was written before, with {before}; now it has other messages, and nothing was written. To "
                "write them, choose another --name"
            ) from None
    if before is None:
        return f"{name}: the messages are in topic {options['topic']} once; the same again writes nothing"
    report.rows_out = 0
    return f"{name} was written before, with {before}; nothing was written now. To write again, choose another --name"


def written_before(options: Mapping[str, Any]) -> str | None:
    """Return what the write with ``options`` has written before, as text; ``None``: nothing.

    A write that was interrupted after its decision is completed.

    Raises:
        MetaqError: A broker could not be asked.
    """
    parsed = parse_sink_options({name: str(value) for name, value in options.items()}, Use.BATCH_WRITE)
    sessions = RetryingSessions(parsed)
    plan = plan_transaction(parsed, streaming=False, sessions=sessions)
    if plan.batch is None or not plan.written:
        return None
    decided = Coordinator(plan.participants, sessions, gaps=plan.gaps).finish(plan.batch, ())
    try:
        return str(Contents.from_json(decided.contents))
    except ValueError:  # of an older version
        return "unknown contents"
