"""Computes the lag, and a log line, from the JSON of a query's progress. Pure.

For each source Spark reports where the batch ended (``endOffset``) and, because the source implements
``reportLatestOffset``, where its partitions end (``latestOffset``). Both have the form of ``offsets``, as JSON inside
the JSON. The description of every Python source is the same class name, so a source is recognised by this form; other
connectors' sources are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq_spark.errors import CheckpointError
from metaq_spark.lag.unread import PartitionLag, lags
from metaq_spark.offsets import Progress, read_progress, unit_of


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source: read up to ``end``; ``latest`` is where its partitions ended then, ``None`` if not reported."""

    end: Progress
    latest: Progress | None

    @property
    def known(self) -> Iterable[TopicPartition]:
        """Every partition that is named."""
        return {*self.end.offsets, *(self.latest.offsets if self.latest is not None else ())}

    def lags(self) -> list[PartitionLag]:
        """Return the lag in offsets from the progress alone; empty if ``latest`` is unknown.

        A partition is assumed to start at 0, so a new or recreated one may have less than reported.
        """
        if self.latest is None:
            return []
        born = self.latest.incarnations
        return lags(
            self.end,
            {where: PartitionState(OffsetRange(0, at), born.get(where)) for where, at in self.latest.offsets.items()},
        )


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The parts of a query's progress that the lag needs. ``query`` is its name, or its id if it has none."""

    query: str
    run_id: str
    batch_id: int
    input_rows_per_second: float
    processed_rows_per_second: float
    sources: tuple[SourceProgress, ...]


def read_query_progress(tree: Mapping[str, Any]) -> QueryProgress:
    """Read the JSON of Spark's ``StreamingQueryProgress``.

    Raises:
        KeyError: It is not that.
    """
    sources = (_source(source) for source in tree["sources"])
    return QueryProgress(
        query=tree.get("name") or tree["id"],
        run_id=tree["runId"],
        batch_id=tree["batchId"],
        input_rows_per_second=float(tree.get("inputRowsPerSecond", 0.0)),
        processed_rows_per_second=float(tree.get("processedRowsPerSecond", 0.0)),
        sources=tuple(source for source in sources if source is not None),
    )


def summarize(progress: QueryProgress, lags: Sequence[PartitionLag]) -> str:
    """``query=orders batch=7 lag_bytes=2100 lag_messages=100 lag_seconds=1.5 partitions=4 behind=1 ...``.

    Bytes and messages are left out unless known of every partition, seconds unless known of one; the partition that is
    furthest behind, and remarks, are named if there are any.
    """
    words = [f"query={progress.query}", f"batch={progress.batch_id}"]
    sizes = [lag.bytes for lag in lags if lag.bytes is not None]
    if len(sizes) == len(lags):
        words.append(f"lag_bytes={sum(sizes)}")
    counts = [lag.messages for lag in lags if lag.messages is not None]
    if lags and len(counts) == len(lags):
        words.append(f"lag_messages={sum(counts)}")
    ages_s = [lag.seconds for lag in lags if lag.seconds is not None]
    if ages_s:
        words.append(f"lag_seconds={max(ages_s):.1f}")
    behind = [lag for lag in lags if len(lag.unread)]
    words += [f"partitions={len(lags)}", f"behind={len(behind)}"]
    if behind:
        words.append(f"furthest={max(behind, key=lambda lag: len(lag.unread)).where}")
    words += [f"{lag.status_note}={lag.where}" for lag in lags if lag.status_note is not None]
    words.append(f"input_rows_per_s={progress.input_rows_per_second:.1f}")
    return " ".join(words)


def merged(groups: Iterable[Iterable[PartitionLag]]) -> list[PartitionLag]:
    """The lags of several sources as one list; of a partition that two sources read, the one further behind."""
    furthest: dict[TopicPartition, PartitionLag] = {}
    for group in groups:
        for lag in group:
            if lag.where not in furthest or len(lag.unread) > len(furthest[lag.where].unread):
                furthest[lag.where] = lag
    return [furthest[where] for where in sorted(furthest, key=_order)]


def _order(where: TopicPartition) -> tuple[str, str, TopicPartition]:
    """Names of partitions of two systems cannot be compared."""
    return where.topic, unit_of(where), where


def _source(tree: Mapping[str, Any]) -> SourceProgress | None:
    end = _progress(tree.get("endOffset"))
    return None if end is None else SourceProgress(end, _progress(tree.get("latestOffset")))


def _progress(value: Any) -> Progress | None:
    """Parse an offset, an object, JSON text, or null; return ``None`` for another connector's."""
    try:
        tree = json.loads(value) if isinstance(value, str) else value
        return read_progress(tree) if isinstance(tree, dict) else None
    except (CheckpointError, json.JSONDecodeError):
        return None
