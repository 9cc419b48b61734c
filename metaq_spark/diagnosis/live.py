"""Events of a query that is at hand, as a listener would have kept them. Runs in the driver."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from metaq_spark.diagnosis.progress import VERSION, Event, events_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def events_of_query(query: StreamingQuery) -> list[Event]:
    """Return the recent progress, the status and, if it has ended, the end of a query."""
    from metaq_spark.diagnosis.listener import execution_of

    now_ms = int(time.time() * 1000)
    of_all: dict[str, Any] = {"v": VERSION, "at_ms": now_ms, "id": str(query.id), "runId": str(query.runId)}
    reports = [json.loads(progress.json) for progress in query.recentProgress]
    events = list(events_of(reports))
    if query.isActive:
        events.append({**of_all, "event": "status", "status": dict(query.status), **execution_of(query)})
    else:
        error = query.exception()
        last_ms = max((int(event["at_ms"]) for event in events), default=now_ms)
        text = None if error is None else str(error)
        events.append({**of_all, "event": "terminated", "at_ms": last_ms, "exception": text, "errorClass": None})
    return events
