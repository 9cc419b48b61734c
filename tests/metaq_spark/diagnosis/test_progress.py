"""Events and progress in each form that is read, and a log of them in memory."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from metaq_spark.diagnosis.progress import KEPT, EventsUnreadable, ProgressLog, newest, read_events
from metaq_spark.diagnosis.reports import read_reports

REPORT: dict[str, Any] = {
    "id": "q",
    "runId": "r",
    "name": "orders",
    "timestamp": "2026-11-27T08:00:00.000Z",
    "batchId": 3,
    "durationMs": {"triggerExecution": 500},
    "sources": [],
}
BEGAN_MS = 1795766400000


def event(kind: str, at_ms: int, query: str = "q", **more: Any) -> dict[str, Any]:
    return {"v": 1, "event": kind, "at_ms": at_ms, "id": query, "runId": "r", **more}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(REPORT),
        json.dumps([REPORT]),
        json.dumps(REPORT, indent=2),
        json.dumps(REPORT) + "\n",
        json.dumps(event("progress", BEGAN_MS + 500, progress=REPORT)) + '\n{"v": 1, "event": "idl',
        "26/11/27 INFO MicroBatchExecution: Streaming query made progress: "
        + json.dumps(REPORT, indent=2)
        + "\n26/11/27 INFO more\n",
    ],
    ids=["report", "list", "pretty", "line", "events, the last cut off", "log"],
)
def test_each_form(text: str, tmp_path: Path) -> None:
    file = tmp_path / "reports"
    file.write_text(text)
    [found] = read_events(file)
    assert (found["event"], found["at_ms"], found["progress"]["batchId"]) == ("progress", BEGAN_MS + 500, 3)


def test_a_url(tmp_path: Path) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([REPORT]).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        [found] = read_events(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert found["id"] == "q"


@pytest.mark.parametrize(
    "tree",
    [
        1,
        "text",
        {},
        {"event": "other"},
        event("idle", -1),
        event("idle", True),
        {**event("idle", 1), "id": 5},
        event("progress", 1),
        event("status", 1, status=[]),
        {**REPORT, "timestamp": "yesterday"},
        [event("idle", 1), 5],
    ],
)
def test_what_is_refused(tree: Any) -> None:
    log = ProgressLog()
    with pytest.raises(ValueError, match=r"\w"):
        log.add(tree)
    assert log.queries() == {}


def test_a_log_is_bounded_and_knows_its_queries() -> None:
    log = ProgressLog(queries_max=2, events_max=10)
    for number in range(300):
        log.add(event("progress", number, progress=REPORT))
    log.add([event("status", 300, status={}, checkpoint="file:/c"), event("started", 1, "other", name="b")])
    assert len(log.events("q")) <= sum(KEPT.values())
    assert log.queries()["q"] == {"name": "orders", "run_id": "r", "last_at_ms": 300, "checkpoint": "file:/c"}
    log.add(event("idle", 2, "third"))
    assert set(log.queries()) == {"other", "third"}


def test_the_newest_of_each_kind_are_kept() -> None:
    events = [event("idle", number) for number in range(50)] + [event("started", 50)]
    kept = newest(events)
    assert [one["at_ms"] for one in kept] == [45, 46, 47, 48, 49, 50]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(EventsUnreadable, match="No such file"):
        read_events(tmp_path / "none")


def test_a_log_keeps_so_many_bytes_and_that_a_run_began() -> None:
    log = ProgressLog(bytes_max=5000)
    log.add(event("started", 1, name="orders"))
    for number in range(20):
        log.add(event("progress", 10 + number, progress={**REPORT, "batchId": number, "sources": ["x" * 900]}))
        log.add(event("status", 10 + number, status={"message": "Processing new data"}))
    kept = log.events("q")
    assert (kept[0]["event"], kept[-1]["event"]) == ("started", "status")
    batches = [one["progress"]["batchId"] for one in kept if one["event"] == "progress"]
    assert batches == list(range(batches[0], 20))
    assert len(json.dumps(kept)) < 6000
    log.add(event("progress", 100, progress={**REPORT, "sources": ["x" * 9000]}))
    assert [one["at_ms"] for one in log.events("q")] == [100]


@pytest.mark.parametrize("driver", ["host", 5, ["host"]])
def test_a_driver_that_is_no_object_is_unknown(driver: Any) -> None:
    reports = read_reports([event("started", BEGAN_MS, driver=driver)], "q", BEGAN_MS)
    assert reports is not None
    assert [run.driver for run in reports.runs] == [{}]


@pytest.mark.parametrize("state", [5, "state", {"numRowsTotal": "many"}, {"memoryUsedBytes": [1]}])
def test_a_report_with_a_malformed_state_is_left_out(state: Any) -> None:
    malformed = event("progress", BEGAN_MS + 500, progress={**REPORT, "stateOperators": [state]})
    good = event("progress", BEGAN_MS + 500, progress={**REPORT, "stateOperators": [{"numRowsTotal": 2}]})
    reports = read_reports([malformed, good], "q", BEGAN_MS)
    assert reports is not None
    assert [[one["numRowsTotal"] for one in trigger.states] for trigger in reports.triggers] == [[2]]
