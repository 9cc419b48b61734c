"""A listener that keeps the last reports of a session's queries: in a file, or by posting them to a URL.

::

    from metaq_spark.diagnosis.listener import ProgressListener
    spark.streams.addListener(ProgressListener("progress.jsonl"))

``metaq-spark diagnose CHECKPOINT --progress progress.jsonl`` reads them; ``progress`` describes the form. The
listener's thread also asks every few seconds for the status of the running queries: what a query waits for, and that
its driver is alive.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metaq_spark.background_listener import BackgroundListener
from metaq_spark.diagnosis.progress import URL, VERSION, newest, parse_events, this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

_LOGGER: Final = logging.getLogger("metaq_spark.diagnosis")
STATUS_S: Final = 5.0
FIRST_LOOK_S: Final = 0.2
"""Seconds from the first event to the first look: a short run ends before the second."""
WAITING_MAX: Final = 500
"""Limit on events that wait to be written or posted; the oldest are dropped."""
POST_S: Final = 5.0
FILE_BYTES_MAX: Final = 8 << 20
"""A longer file is rewritten, with the newest events of each query."""


class ProgressListener(BackgroundListener):
    """One listener serves all queries of a session.

    ``target``: a file to which a line of JSON is added for each event, or an http(s) URL to which a JSON list of events
    is posted, with ``headers``. A file keeps the newest events of each query. ``spark``: the session of the queries, by
    default the active one; it is asked every ``status_s`` seconds what each query does.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        spark: SparkSession | None = None,
        headers: Mapping[str, str] | None = None,
        status_s: float = STATUS_S,
    ) -> None:
        from pyspark.sql import SparkSession

        super().__init__("metaq-diagnosis", _LOGGER, "a report of a query was not kept")
        self._session = spark or SparkSession.getActiveSession()
        given = str(target)
        self._keep = _Post(given, headers or {}).keep if URL.match(given) else _File(Path(given)).keep
        self._status_s = status_s
        self._waiting: deque[dict[str, Any]] = deque(maxlen=WAITING_MAX)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Keep that a run began, and where its driver is."""
        self._guarded(lambda: self._begin(event))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Keep the progress."""

        def keep() -> None:
            tree = json.loads(event.progress.json)
            self._put("progress", tree["id"], tree["runId"], progress=tree)

        self._guarded(keep)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Keep that the query found nothing to do."""
        self._guarded(lambda: self._put("idle", str(event.id), str(event.runId)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep that the run ended, and its error."""
        self._guarded(lambda: self._end(event))

    def _begin(self, event: QueryStartedEvent) -> None:
        self._begin_run(str(event.runId), str(event.id))
        self._put("started", str(event.id), str(event.runId), name=event.name, driver=_driver(self._session))

    def _end(self, event: QueryTerminatedEvent) -> None:
        error_class = getattr(event, "errorClassOnException", None)
        self._put("terminated", str(event.id), str(event.runId), exception=event.exception, errorClass=error_class)
        self._end_run(str(event.runId))  # last, because the end of the program waits for it

    def _put(self, kind: str, query_id: str, run_id: str, **more: Any) -> None:
        event = {"v": VERSION, "event": kind, "at_ms": int(time.time() * 1000), "id": query_id, "runId": run_id, **more}
        with self._changed:
            if kind in ("progress", "idle"):  # a run may have begun before this listener was added
                self._begin_run(run_id, query_id)
            self._waiting.append(event)
            self._wake()

    def _serve(self) -> None:
        looked_s = time.monotonic() - self._status_s + FIRST_LOOK_S
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                left_s = looked_s + self._status_s - time.monotonic()
                self._changed.wait_for(lambda: bool(self._waiting), max(0.0, left_s))
                events, running = list(self._waiting), dict(self._running)
                self._waiting.clear()
                self._busy = True
            if time.monotonic() - looked_s >= self._status_s:
                looked_s = time.monotonic()
                for run_id, query_id in running.items():
                    self._guarded(partial(self._add_status, events, query_id, run_id))
            if events:
                self._guarded(partial(self._keep, events))

    def _add_status(self, events: list[dict[str, Any]], query_id: str, run_id: str) -> None:
        """Add the status of a run; nothing if it is not in this session, or has just ended."""
        query = None if self._session is None else self._session.streams.get(query_id)
        if query is None or str(query.runId) != run_id:
            return
        at_ms, status = int(time.time() * 1000), dict(query.status)
        event = {"v": VERSION, "event": "status", "at_ms": at_ms, "id": query_id, "runId": run_id, "status": status}
        events.append(event | execution_of(query))


def execution_of(query: StreamingQuery) -> dict[str, str]:
    """Return the trigger and the checkpoint of a query, where its driver can be asked: not with Spark Connect.

    Spark has no public way to either.
    """
    try:
        execution = query._jsq.streamingQuery()
        return {"trigger": execution.trigger().toString(), "checkpoint": execution.resolvedCheckpointRoot()}
    except Exception:
        return {}


def _driver(spark: SparkSession | None) -> dict[str, Any]:
    """Return where the driver is: host, machine, process, application, and its UI if it has one."""
    driver: dict[str, Any] = {"host": socket.gethostname(), "machine": this_machine(), "pid": os.getpid()}
    try:
        context = None if spark is None else spark.sparkContext
        return driver if context is None else driver | {"app": context.applicationId, "ui": context.uiWebUrl}
    except Exception:  # with Spark Connect there is no context
        return driver


class _File:
    """Lines of JSON in a file that several drivers may write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()  # a path that cannot be written is an error at once

    def keep(self, events: Sequence[Mapping[str, Any]]) -> None:
        data = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events).encode()
        lock = self._path.with_name(f".{self._path.name}.lock")
        with lock.open("ab") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            with self._path.open("ab") as file:
                file.write(data)
                size = file.tell()
            if size > FILE_BYTES_MAX:
                self._shorten()

    def _shorten(self) -> None:
        by_query: dict[str, list[Mapping[str, Any]]] = {}
        for event in parse_events(self._path.read_text(encoding="utf-8", errors="replace")):
            by_query.setdefault(event["id"], []).append(event)
        kept = sorted((one for events in by_query.values() for one in newest(events)), key=lambda one: one["at_ms"])
        while (size := sum(len(json.dumps(one)) for one in kept)) > FILE_BYTES_MAX // 2 and len(kept) > 1:
            kept = kept[len(kept) // 2 :] if size > FILE_BYTES_MAX else kept[len(kept) // 4 + 1 :]
        draft = self._path.with_name(f".{self._path.name}.draft")
        draft.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in kept), encoding="utf-8")
        draft.replace(self._path)


class _Post:
    """Posts events. After a failed post, its events are sent once more, together with the next ones."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, {"Content-Type": "application/json", **headers}
        self._again: list[Mapping[str, Any]] = []

    def keep(self, events: Sequence[Mapping[str, Any]]) -> None:
        given, self._again = [*self._again, *events], list(events)
        body = json.dumps(given).encode()
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        with urllib.request.urlopen(request, timeout=POST_S) as response:
            response.read(1 << 16)
        self._again = []
