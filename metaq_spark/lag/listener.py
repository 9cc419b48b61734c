"""A listener that reports the lag of a session's queries: in the log, and as Prometheus gauges.

::

    from metaq_spark.lag.listener import MetaQLagListener
    spark.streams.addListener(MetaQLagListener({"brokers": "127.0.0.1:8123"}))

The listener's thread asks the brokers. If a query progresses faster than brokers answer, only its newest progress is
used.

Without Spark Connect the listener runs in the driver, with it in the client; it must be able to reach the brokers from
there. Without options it asks no broker and reports only what Spark reports: bytes in MetaQ, messages in RocketMQ.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from metaq.errors import MetaqError
from metaq_spark.backend import FORMATS, LagLookup, backend_named, format_of
from metaq_spark.background_listener import BackgroundListener
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
"""Default timeouts of look-ups."""
REFRESH_S: Final = 15.0
_STOPPED_MAX: Final = 1000
"""Limit on stopped runs that are remembered, so that a look-up in progress does not restore their gauges."""


class MetaQLagListener(BackgroundListener):
    """One listener serves all queries of a session.

    ``options``: how to reach the brokers, as for a read (``brokers``, timeouts, TLS); queries with another format, or
    all queries without options, have only Spark's own figures. ``logger`` gets one line for each progress at ``level``
    (``None``: no line). ``registry`` gets the gauges of ``lag.gauges``; ``start_http_server`` serves
    ``prometheus_client.REGISTRY``. The gauges of running queries are updated every ``refresh_s`` seconds, so that a
    hanging query shows a growing lag.

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
        super().__init__("metaq-lag", logger, "a lag could not be computed in full")
        given = {name.lower() for name in options or {}}
        patience = {name: value for name, value in _PATIENCE.items() if name.lower() not in given}
        named = [name for name, one in FORMATS.items() if one.brokers_option.lower() in given]
        self._format = named[0] if named else "metaq"
        self._lookup = self._lookup_with({**patience, **options}) if options else None
        self._level = level
        self._gauges = None if registry is None else LagGauges(registry)
        self._refresh_s = refresh_s if self._gauges is not None and self._lookup is not None else None
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._stopped: deque[str] = deque(maxlen=_STOPPED_MAX)
        self._shown: dict[str, QueryProgress] = {}

    def _lookup_with(self, options: Mapping[str, str]) -> LagLookup:
        return backend_named(self._format).lag_lookup(options)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Record that the query runs; there is no progress yet."""
        self._guarded(lambda: self._begin_run(str(event.runId), str(event.id)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Leave the progress for the listener's thread; a progress of the same run that still waits is dropped."""
        self._guarded(lambda: self._leave(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the event has no offsets."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove the gauges of the query. A pending progress is still logged."""
        self._guarded(lambda: self._forget(str(event.runId)))

    def _leave(self, tree: Mapping[str, Any]) -> None:
        with self._changed:
            self._begin_run(tree["runId"], tree["id"])  # it may have begun before this listener was added
            self._waiting[tree["runId"]] = tree
            self._wake()

    def _forget(self, run_id: str) -> None:
        with self._changed:
            self._stopped.append(run_id)
            shown = self._shown.pop(run_id, None)
            others = {progress.query for progress in self._shown.values()}
            if self._gauges is not None and shown is not None and shown.query not in others:
                self._gauges.forget(shown.query)
        self._end_run(run_id)

    def _serve(self) -> None:
        refreshed_s, refresh_s = time.monotonic(), self._refresh_s
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                left_s = None if refresh_s is None else max(0.0, refreshed_s + refresh_s - time.monotonic())
                self._changed.wait_for(lambda: bool(self._waiting), left_s)
                trees, self._waiting = self._waiting, {}
                is_due = refresh_s is not None and time.monotonic() - refreshed_s >= refresh_s
                again = [one for run_id, one in self._shown.items() if run_id not in trees] if is_due else []
                self._busy = True
            for tree in trees.values():
                self._guarded(partial(self._report, tree))
            for progress in again:
                self._guarded(partial(self._show, progress))
            if is_due:
                refreshed_s = time.monotonic()

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
