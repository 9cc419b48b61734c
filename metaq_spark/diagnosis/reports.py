"""Events of drivers become runs, triggers and a status of one query. Pure, but it checks whether a process runs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from metaq_spark.diagnosis.evidence import QueryRun, QueryStatus, Reports, SourceReport, Trigger
from metaq_spark.diagnosis.progress import Event, began_ms, ended_ms, this_machine, time_ms
from metaq_spark.errors import CheckpointError
from metaq_spark.offsets import Progress, read_progress

STATE_NUMBERS: Final = (
    "allUpdatesTimeMs",
    "commitTimeMs",
    "memoryUsedBytes",
    "numRowsDroppedByWatermark",
    "numRowsRemoved",
    "numRowsTotal",
    "numShufflePartitions",
)
"""What the rules read of a stateful operator's report."""


def read_reports(events: Iterable[Event], query_id: str | None, now_ms: int) -> Reports | None:
    """Return the reports of the query ``query_id``, by default of the only query; ``None`` without any event."""
    ordered = sorted(events, key=lambda event: int(event["at_ms"]))
    ids = list(dict.fromkeys(event["id"] for event in ordered))
    chosen = query_id if query_id is not None else (ids[0] if len(ids) == 1 else None)
    mine = [event for event in ordered if event["id"] == chosen]
    others = tuple(one for one in ids if one != chosen)
    if not ordered:
        return None
    triggers = [trigger for event in mine if (trigger := _trigger(event)) is not None]
    runs = _runs(mine)
    idle = [event["at_ms"] for event in mine if event["event"] == "idle" and runs and event["runId"] == runs[-1].run_id]
    return Reports(
        read_ms=now_ms,
        runs=tuple(runs),
        triggers=tuple(sorted(triggers, key=lambda one: one.ended_ms)),
        status=_status(mine, runs),
        idle_ms=max(idle, default=None),
        others=others,
        overlapping=_overlapping(mine, runs),
        heartbeat_s=_heartbeat_s(mine, runs),
    )


def _runs(events: Sequence[Event]) -> list[QueryRun]:
    """Return the runs in the order in which they began to report."""
    found: dict[str, QueryRun] = {}
    for event in events:
        run_id, at_ms = event["runId"], int(event["at_ms"])
        run = found.get(run_id) or QueryRun(run_id, event["id"], None, None, at_ms)
        run = replace(run, alive_ms=max(run.alive_ms, at_ms))
        match event["event"]:
            case "started":
                run = replace(run, started_ms=at_ms, name=event.get("name"), driver=_mapping(event.get("driver")))
            case "terminated":
                run = replace(run, ended_ms=at_ms, error=event.get("exception"), error_class=event.get("errorClass"))
            case "status":
                run = replace(run, trigger=event.get("trigger") or run.trigger)
            case "progress":
                run = replace(run, name=event["progress"].get("name") or run.name)
        found[run_id] = run
    return [replace(run, process_ended=not run.ended and _process_ended(run.driver)) for run in found.values()]


def _process_ended(driver: Mapping[str, Any]) -> bool:
    """Return whether the driver's process ran on this machine and has ended. The name of the machine proves nothing
    alone: other machines, and containers, may have it, too.
    """
    pid, here = driver.get("pid"), this_machine()
    is_here = driver.get("host") == socket.gethostname() and driver.get("machine", here) == here
    if not is_here or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _status(events: Sequence[Event], runs: Sequence[QueryRun]) -> QueryStatus | None:
    mine = [event for event in events if event["event"] == "status" and runs and event["runId"] == runs[-1].run_id]
    if not mine or runs[-1].ended:
        return None
    last, since_ms = mine[-1], mine[-1]["at_ms"]
    message = str(last["status"].get("message", ""))
    for event in reversed(mine):
        if str(event["status"].get("message", "")) != message:
            break
        since_ms = event["at_ms"]
    for event in events:  # a trigger that has ended is not the one of the status
        if event["event"] == "progress" and event["runId"] == last["runId"]:
            since_ms = max(since_ms, min(event["at_ms"], last["at_ms"]))
    available, active = (bool(last["status"].get(key)) for key in ("isDataAvailable", "isTriggerActive"))
    return QueryStatus(last["at_ms"], last["runId"], message, available, active, since_ms)


def _heartbeat_s(events: Sequence[Event], runs: Sequence[QueryRun]) -> float | None:
    times = [event["at_ms"] for event in events if event["event"] == "status" and event["runId"] == runs[-1].run_id]
    return median(later - earlier for earlier, later in pairwise(times)) / 1000 if len(times) > 1 else None


def _overlapping(events: Sequence[Event], runs: Sequence[QueryRun]) -> tuple[QueryRun, QueryRun] | None:
    """Return two runs of which the first still worked when the second had already reported work.

    Runs of one process follow each other: there, Spark reports a start at once, and the work before it later.
    """
    by_id = {run.run_id: run for run in runs}
    begun: list[str] = []
    for event in events:
        if event["event"] in ("started", "progress", "idle", "status") and event["runId"] not in begun:
            begun.append(event["runId"])
        elif event["event"] in ("progress", "idle", "status") and begun and event["runId"] != begun[-1]:
            first, second = by_id[event["runId"]], by_id[begun[-1]]
            if not _are_of_one_process(first, second):
                return first, second
    return None


def _are_of_one_process(first: QueryRun, second: QueryRun) -> bool:
    places = [(run.driver.get("host"), run.driver.get("pid")) for run in (first, second)]
    return places[0] == places[1] and None not in places[0]


def _trigger(event: Event) -> Trigger | None:
    if event["event"] != "progress":
        return None
    tree = event["progress"]
    try:
        return Trigger(
            run_id=event["runId"],
            batch=int(tree["batchId"]),
            began_ms=began_ms(tree),
            ended_ms=ended_ms(tree),
            rows=int(tree.get("numInputRows") or 0),
            input_rows_per_s=_number(tree.get("inputRowsPerSecond")),
            processed_rows_per_s=_number(tree.get("processedRowsPerSecond")),
            phases_ms={name: int(ms) for name, ms in (tree.get("durationMs") or {}).items()},
            sources=tuple(_source(source) for source in tree.get("sources") or ()),
            states=tuple(map(_state, tree.get("stateOperators") or ())),
            watermark_ms=_time(tree, "watermark"),
            event_time_max_ms=_time(tree, "max"),
            rows_out=(tree.get("sink") or {}).get("numOutputRows"),
            sink=str((tree.get("sink") or {}).get("description", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _state(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the report of a stateful operator.

    Raises:
        AttributeError, TypeError, ValueError: ``tree`` is not such a report.
    """
    numbers = {name: int(tree.get(name) or 0) for name in STATE_NUMBERS}
    return {**tree, **numbers, "customMetrics": _mapping(tree.get("customMetrics"))}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    """Return a rate; 0 for the texts NaN and Infinity, which Spark writes if there is none."""
    try:
        number = float(value or 0.0)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0


def _time(tree: Mapping[str, Any], key: str) -> int | None:
    text = (tree.get("eventTime") or {}).get(key)
    try:
        return None if text is None else time_ms(text)
    except (ValueError, OverflowError):
        return None


def _source(tree: Mapping[str, Any]) -> SourceReport:
    return SourceReport(
        str(tree.get("description", "")),
        int(tree.get("numInputRows") or 0),
        *(_progress(tree.get(key)) for key in ("startOffset", "endOffset", "latestOffset")),
    )


def _progress(value: Any) -> Progress | None:
    try:
        tree = json.loads(value) if isinstance(value, str) else value
        return read_progress(tree) if isinstance(tree, dict) and {"v", "topics"} <= tree.keys() else None
    except (CheckpointError, ValueError):
        return None
