"""A listener that reports how far the queries of a session are behind: in the log, and as Prometheus gauges.

::

    from metaq_spark.lag.listener import MetaQLagListener
    spark.streams.addListener(MetaQLagListener({"brokers": "127.0.0.1:8123"}))

Spark calls a listener for one event after the other, so one that waits for a broker would hold up the events of every
query. Here a call only leaves the event in a mailbox; a thread of the listener's own asks the brokers. Of a
query that makes progress faster than brokers answer, the newest progress counts. Nothing that goes wrong here
reaches Spark.

Without Spark Connect the listener runs in the driver, with it in the client; it must be able to reach the brokers from
there. Without options it asks nobody and knows only what Spark reports: bytes in MetaQ, messages in RocketMQ.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from metaq.errors import MetaqError
from metaq_spark.backend import FORMATS, LagLookup, backend_named, format_of
from metaq_spark.lag.gauges import LagGauges
from metaq_spark.lag.progress import QueryProgress, SourceProgress, merged, read_query_progress, summarize
from metaq_spark.lag.unread import PartitionLag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_LOGGER: Final = logging.getLogger("metaq_spark.lag")
_PATIENCE: Final = {"connectTimeoutMs": "2000", "requestTimeoutMs": "5000"}
"""Deadlines of lookups unless the caller gives others."""
REFRESH_S: Final = 15.0
EXIT_S: Final = 2.0
"""How long the end of a program waits for the end of its queries to be reported, and then for their last lags."""
_STOPPED_MAX: Final = 1000
"""Runs that are remembered as stopped, so that a lookup that was under way does not bring their gauges back."""


class MetaQLagListener(StreamingQueryListener):
    """One listener serves all queries of a session.

    ``options``: how to reach the brokers, as for a read (``brokers``, timeouts, TLS); queries that read another
    format, and all without options, show only what Spark reports of them. ``logger``
    gets one line for each progress at ``level`` (``None``: no line). ``registry`` gets the gauges of ``lag.gauges``;
    ``prometheus_client.REGISTRY`` is the one that ``start_http_server`` serves. Every ``refresh_s`` seconds the
    gauges of running queries are brought up to date, so that a query that hangs shows a lag that grows.

    Raises:
        OptionError: An option cannot be used.
        ModuleNotFoundError: ``registry`` is given and prometheus_client is not installed.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        logger: logging.Logger = _LOGGER,
        level: int | None = logging.INFO,
        registry: CollectorRegistry | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        given = {name.lower() for name in options or {}}
        patience = {name: value for name, value in _PATIENCE.items() if name.lower() not in given}
        named = [name for name, one in FORMATS.items() if one.brokers_option.lower() in given]
        self._format = named[0] if named else "metaq"
        self._lookup = self._lookup_with({**patience, **options}) if options else None
        self._logger, self._level = logger, level
        self._gauges = None if registry is None else LagGauges(registry)
        self._refresh_s = refresh_s if self._gauges is not None and self._lookup is not None else None
        self._logged_kinds: set[str] = set()
        self._changed = threading.Condition()
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._busy = self._started = False
        self._stopped: deque[str] = deque(maxlen=_STOPPED_MAX)
        self._shown: dict[str, QueryProgress] = {}
        self._running: set[str] = set()

    def _lookup_with(self, options: Mapping[str, str]) -> LagLookup:
        return backend_named(self._format).lag_lookup(options)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember that the query runs. Nothing is known of it yet."""
        self._guarded(lambda: self._note_start(str(event.runId)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Leave the progress for the listener's thread; a progress of the same run that still waits is dropped."""
        self._guarded(lambda: self._leave(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark gives no offsets with it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove what is shown of the query. A progress that still waits is logged."""
        self._guarded(lambda: self._forget(str(event.runId)))

    def drain(self, timeout_s: float) -> bool:
        """Wait until all reported progress is logged; whether it was in time. For programs about to end."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def _finish(self) -> None:
        """The program ends. Spark reports the last progress and the end of a query after ``awaitTermination``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, EXIT_S)
        self.drain(EXIT_S)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            self._log_once(error)

    def _note_start(self, run_id: str) -> None:
        with self._changed:
            if not self._running and not self._stopped:
                atexit.register(self._finish)
            self._running.add(run_id)

    def _leave(self, tree: Mapping[str, Any]) -> None:
        with self._changed:
            self._waiting[tree["runId"]] = tree
            if not self._started:
                threading.Thread(target=self._serve, name="metaq-lag", daemon=True).start()
                self._started = True
            self._changed.notify_all()

    def _forget(self, run_id: str) -> None:
        with self._changed:
            self._stopped.append(run_id)
            self._running.discard(run_id)
            shown = self._shown.pop(run_id, None)
            others = {progress.query for progress in self._shown.values()}
            if self._gauges is not None and shown is not None and shown.query not in others:
                self._gauges.forget(shown.query)
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting), self._refresh_s)
                trees = [self._waiting.pop(run_id) for run_id in list(self._waiting)]
                again = [] if trees else list(self._shown.values())
                self._busy = True
            for tree in trees:
                self._guarded(partial(self._report, tree))
            for progress in again:
                self._guarded(partial(self._show, progress))

    def _report(self, tree: Mapping[str, Any]) -> None:
        progress = read_query_progress(tree)
        if not progress.sources:
            return
        lags = self._show(progress)
        if self._level is not None:
            self._logger.log(self._level, "%s", summarize(progress, lags))

    def _show(self, progress: QueryProgress) -> list[PartitionLag]:
        """Measure, and set the gauges unless the query has stopped meanwhile."""
        lags = merged(self._lags(source) for source in progress.sources)
        with self._changed:
            if progress.run_id not in self._stopped:
                self._shown[progress.run_id] = progress
                if self._gauges is not None:
                    self._gauges.show(progress, lags)
        return lags

    def _lags(self, source: SourceProgress) -> list[PartitionLag]:
        if self._lookup is not None and format_of(source.end) == self._format:
            try:
                return self._lookup.lags(source.end, source.known)
            except MetaqError as error:
                self._log_once(error)
        return source.lags()

    def _log_once(self, error: Exception) -> None:
        """Each kind of failure is logged once: a broker that is away for an hour is one line, not thousands."""
        kind = type(error).__name__
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            self._logger.warning("a lag could not be computed in full: %s (%s is not logged again)", error, kind)
