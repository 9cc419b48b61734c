"""The lag of a query in one line of log."""

from __future__ import annotations

from collections.abc import Sequence

from metaq_spark.lag.progress import QueryProgress
from metaq_spark.lag.unread import PartitionLag


def summarize(progress: QueryProgress, lags: Sequence[PartitionLag]) -> str:
    """``query=orders batch=7 lag_bytes=2100 lag_messages=100 lag_seconds=1.5 partitions=4 behind=1 ...``.

    Messages are left out unless known of every partition, seconds unless known of one; the partition that is furthest
    behind, and remarks, are named if there are any.
    """
    words = [f"query={progress.query}", f"batch={progress.batch_id}", f"lag_bytes={sum(lag.bytes for lag in lags)}"]
    counts = [lag.messages for lag in lags if lag.messages is not None]
    if lags and len(counts) == len(lags):
        words.append(f"lag_messages={sum(counts)}")
    ages_s = [lag.seconds for lag in lags if lag.seconds is not None]
    if ages_s:
        words.append(f"lag_seconds={max(ages_s):.1f}")
    behind = [lag for lag in lags if lag.bytes]
    words += [f"partitions={len(lags)}", f"behind={len(behind)}"]
    if behind:
        words.append(f"furthest={max(behind, key=lambda lag: lag.bytes).where}")
    words += [f"{lag.status_note}={lag.where}" for lag in lags if lag.status_note is not None]
    words.append(f"input_rows_per_s={progress.input_rows_per_second:.1f}")
    return " ".join(words)
