"""The lag as Prometheus gauges, for a registry that the application serves.

========================================== ============================ ==============================================
metaq_spark_lag_bytes                      query, topic, partition      bytes not yet read
metaq_spark_lag_messages                   query, topic, partition      messages not yet read; absent if not known
metaq_spark_lag_seconds                    query, topic, partition      age of the oldest unread message; absent so
metaq_spark_input_rows_per_second          query                        as in the query's progress
metaq_spark_processed_rows_per_second      query                        as in the query's progress
========================================== ============================ ==============================================

Gauges of lost partitions and of unknown numbers are removed, and all gauges of a query when it stops: a stale gauge
would look like a constant lag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from metaq_spark.lag.progress import QueryProgress
from metaq_spark.lag.unread import PartitionLag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

_Labels = tuple[str, ...]


class LagGauges:
    """Gauges in ``registry``; a registry has them once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Gauge

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"metaq_spark_{name}", text, ("query", *labels), registry=registry)

        place = ("topic", "partition")
        self._bytes = gauge("lag_bytes", "Bytes that the query has not read yet.", *place)
        self._messages = gauge("lag_messages", "Messages that the query has not read yet.", *place)
        self._seconds = gauge("lag_seconds", "Age of the oldest message that the query has not read yet.", *place)
        self._input = gauge("input_rows_per_second", "Rows that arrived in a second.")
        self._processed = gauge("processed_rows_per_second", "Rows that were processed in a second.")
        self._set: dict[str, set[tuple[Gauge, _Labels]]] = {}

    def show(self, progress: QueryProgress, lags: Iterable[PartitionLag]) -> None:
        """Set the gauges of one query, and remove its outdated ones."""
        query = progress.query
        values: dict[tuple[Gauge, _Labels], float | None] = {
            (self._input, (query,)): progress.input_rows_per_second,
            (self._processed, (query,)): progress.processed_rows_per_second,
        }
        for lag in lags:
            labels: _Labels = (query, lag.where.topic, str(lag.where.partition))
            values |= {(self._bytes, labels): lag.bytes, (self._messages, labels): lag.messages}
            values[self._seconds, labels] = lag.seconds
        known = {key: value for key, value in values.items() if value is not None}
        for (gauge, labels), value in known.items():
            gauge.labels(*labels).set(value)
        self._remove(self._set.get(query, set()) - known.keys())
        self._set[query] = set(known)

    def forget(self, query: str) -> None:
        """Remove everything of a query that has stopped."""
        self._remove(self._set.pop(query, set()))

    @staticmethod
    def _remove(keys: Iterable[tuple[Gauge, _Labels]]) -> None:
        for gauge, labels in keys:
            gauge.remove(*labels)
