"""The figures of a situation, as they are in the JSON of a diagnosis. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from metaq.model import TopicPartition
from metaq_spark.diagnosis.evidence import EvidenceKind
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.lag.unread import PartitionLag

PARTITIONS_MAX: Final = 10_000
"""Limit on partitions that are listed."""


def figures(situation: Situation) -> dict[str, Any]:
    """Return the figures of a situation, as they are in the tree."""
    folder, run = situation.folder, situation.run
    return {
        "at_ms": situation.now_ms,
        "checkpoint": folder.folder if folder is not None else None,
        "query_id": (folder.query_id if folder is not None else None) or (run.query_id if run is not None else None),
        "name": run.name if run is not None else None,
        "run_id": run.run_id if run is not None else None,
        "driver": str(situation.driver),
        "eta_s": _rounded(situation.eta_s),
        "lag": _lag(situation),
        "rates": _rates(situation),
        "progress": _progress(situation),
        "batch": _batch(situation),
        "evidence": _evidence(situation),
        "sources": list(_sources(situation)),
    }


def _lag(situation: Situation) -> dict[str, Any] | None:
    lag = situation.lag
    if lag is None:
        return None
    return {
        "bytes": lag.bytes,
        "messages": lag.messages,
        "seconds": _rounded(lag.seconds),
        "partitions": lag.partitions,
        "behind": lag.behind,
        "age_s": _rounded(lag.age_s),
    }


def _rates(situation: Situation) -> dict[str, Any] | None:
    speeds = situation.rates
    if speeds is None:
        return None
    return {
        "arrival_per_s": _rounded(speeds.arrival_per_s),
        "service_per_s": _rounded(speeds.service_per_s),
        "unit": speeds.unit,
        "window_s": _rounded(speeds.window_s),
    }


def _progress(situation: Situation) -> dict[str, Any] | None:
    triggers = situation.reports.of_last_run if situation.reports is not None else ()
    if not triggers:
        return None
    last = triggers[-1]
    return {
        "batch_id": last.batch,
        "rows": last.rows,
        "input_rows_per_s": _rounded(last.input_rows_per_s),
        "processed_rows_per_s": _rounded(last.processed_rows_per_s),
        "phases_ms": dict(last.phases_ms),
        "age_s": _rounded(situation.age_s(last.ended_ms)),
    }


def _batch(situation: Situation) -> dict[str, Any] | None:
    folder = situation.folder
    if folder is None or not folder.batches:
        return None
    last, running = folder.batches[-1], folder.planned is not None
    return {
        "number": last.number,
        "running": running,
        "age_s": _rounded(situation.age_s(last.planned_ms if running else last.committed_ms or last.planned_ms)),
        "usual_s": _rounded(situation.usual_s),
        "p95_s": _rounded(situation.p95_s),
    }


def _evidence(situation: Situation) -> dict[str, dict[str, Any] | None]:
    """How old each evidence is, and what it is of."""
    evidence, run, status = situation.evidence, situation.run, situation.status
    look, folder = situation.look, situation.folder
    ages: dict[str, dict[str, Any] | None] = dict.fromkeys(map(str, EvidenceKind))
    if folder is not None:
        ages["C"] = {"age_s": _rounded(situation.age_s(folder.read_ms)), "note": f"{len(folder.batches)} batches"}
    if run is not None:
        ages["P"] = {"age_s": _rounded(situation.age_s(run.alive_ms)), "note": f"driver {situation.driver}"}
    if look is not None:
        away = f", {len(look.away)} servers do not answer" if look.away else ""
        ages["B"] = {"age_s": _rounded(situation.age_s(look.at_ms)), "note": f"{len(look.all())} partitions{away}"}
    if status is not None:
        ages["S"] = {"age_s": _rounded(situation.age_s(status.at_ms)), "note": status.message}
    if evidence.ui is not None:
        ages["U"] = {"age_s": _rounded(situation.age_s(evidence.ui.read_ms)), "note": f"{evidence.ui.cores} cores"}
    return ages


def _sources(situation: Situation) -> Iterator[dict[str, Any]]:
    left = PARTITIONS_MAX
    for source in situation.folder.sources if situation.folder is not None else ():
        lags = {lag.where: lag for lag in situation.partition_lags.get(source.number, ())}
        planned = source.planned.offsets if source.planned is not None else {}
        read_to = source.read_to.offsets if source.read_to is not None else {}
        rows = []
        for where in sorted({*lags, *planned, *read_to})[:left]:
            rows.append(_partition(where, read_to.get(where), planned.get(where), lags.get(where)))
        left -= len(rows)
        yield {"number": source.number, "name": source.name, "format": source.format, "partitions": rows}


def _partition(
    where: TopicPartition, position: int | None, planned: int | None, lag: PartitionLag | None
) -> dict[str, Any]:
    available = lag.available if lag is not None else None
    return {
        "topic": where.topic,
        "partition": str(where.partition),
        "position": position,
        "planned_to": planned,
        "start": None if available is None else available.start,
        "end": None if available is None else available.end,
        "lag_bytes": None if lag is None else lag.bytes,
        "lag_messages": None if lag is None else lag.messages,
        "lag_seconds": None if lag is None else _rounded(lag.seconds),
        "remark": None if lag is None or lag.status_note is None else str(lag.status_note),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
