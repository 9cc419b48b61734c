"""Reads what Spark's own UI tells of a driver, through its REST API: cores, stages and tasks."""

from __future__ import annotations

import datetime
import json
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from metaq_spark.diagnosis.evidence import UiEvidence
from metaq_spark.diagnosis.progress import EventsUnreadable, within

STAGES_MAX: Final = 20
"""Limit on active stages whose tasks are looked at."""
ANSWER_BYTES_MAX: Final = 16 << 20


def read_ui(url: str, deadline_s: float) -> UiEvidence:
    """Return what the UI at ``url`` tells, such as ``http://127.0.0.1:4040``.

    Raises:
        EventsUnreadable: It does not answer in time, or not with what Spark's API answers.
    """
    found = within(lambda: _read(url.rstrip("/"), deadline_s), deadline_s)
    if isinstance(found, UiEvidence):
        return found
    reason = f"no answer within {deadline_s:g} s" if found is None else str(getattr(found, "reason", None) or found)
    raise EventsUnreadable(url, reason)


def _read(url: str, deadline_s: float) -> UiEvidence:
    api = f"{url}/api/v1/applications"
    applications = _get(api, deadline_s)
    if not isinstance(applications, list) or not applications:
        raise ValueError("there is no application")
    base = f"{api}/{quote(applications[0]['id'])}"
    stages = _get(f"{base}/stages?status=active&details=true", deadline_s)[:STAGES_MAX]
    executors = [one for one in _get(f"{base}/executors", deadline_s) if one.get("isActive", True)]
    conf = _get(f"{base}/environment", deadline_s).get("sparkProperties", [])
    now_s = time.time()
    running = [task for stage in stages for task in (stage.get("tasks") or {}).values() if task["status"] == "RUNNING"]
    done = [task for stage in stages for task in (stage.get("tasks") or {}).values() if task["status"] == "SUCCESS"]
    total, complete, active = (
        sum(int(stage[name]) for stage in stages) for name in ("numTasks", "numCompleteTasks", "numActiveTasks")
    )
    memory = [int(one["maxMemory"]) for one in executors if one.get("maxMemory")]
    return UiEvidence(
        read_ms=int(now_s * 1000),
        active_stages=len(stages),
        running_tasks=active,
        waiting_tasks=max(0, total - complete - active),
        cores=sum(int(one.get("totalCores") or 0) for one in executors),
        executors=len(executors),
        tasks_s=tuple(sorted(max(0.0, now_s - _launched_s(task)) for task in running)),
        done_tasks_s=tuple(sorted(int(task.get("duration") or 0) / 1000 for task in done)),
        other_jobs=len(_get(f"{base}/jobs?status=running", deadline_s)),
        conf=dict(conf),
        memory_bytes=min(memory, default=None),
    )


def _launched_s(task: Mapping[str, Any]) -> float:
    text = str(task["launchTime"]).replace("GMT", "+00:00")
    return datetime.datetime.fromisoformat(text).timestamp()


def _get(url: str, deadline_s: float) -> Any:
    with urllib.request.urlopen(url, timeout=deadline_s) as response:
        data = response.read(ANSWER_BYTES_MAX + 1)
    if len(data) > ANSWER_BYTES_MAX:
        raise ValueError(f"{url}: the answer has more than {ANSWER_BYTES_MAX} bytes")
    return json.loads(data)
