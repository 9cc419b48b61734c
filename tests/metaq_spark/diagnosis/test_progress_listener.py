"""What the listener keeps, without Spark: files that stay small, posts that fail, errors that never reach Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fix_broker import wait_until

from metaq_spark.diagnosis import listener as module
from metaq_spark.diagnosis.listener import ProgressListener
from metaq_spark.diagnosis.progress import read_events


def progress(batch: int, run: str = "r") -> Any:
    tree = {"id": "q", "runId": run, "name": "orders", "timestamp": "2026-11-27T08:00:00Z", "batchId": batch}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(tree)))


def about(run: str = "r", **more: Any) -> Any:
    return SimpleNamespace(id="q", runId=run, name="orders", **more)


class FakeQuery:
    """A query of a session that says what it waits for."""

    id, runId = "q", "r"
    status = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}


SESSION = cast(Any, SimpleNamespace(streams=SimpleNamespace(get=lambda _: FakeQuery()), sparkContext=None))


def test_a_file_has_the_events_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "new" / "progress.jsonl"
    listener = ProgressListener(file, spark=SESSION, status_s=0.05)
    listener.onQueryStarted(about())
    listener.onQueryProgress(progress(0))
    listener.onQueryIdle(about())
    assert listener.drain(10)
    wait_until(lambda: "status" in [event["event"] for event in read_events(file)], "a status")
    listener.onQueryTerminated(about(exception="it failed", errorClassOnException="CLASS"))
    assert listener.drain(10)
    events = read_events(file)
    assert {event["event"] for event in events} == {"started", "progress", "idle", "status", "terminated"}
    assert events[0]["driver"]["pid"] > 0
    [end] = [event for event in events if event["event"] == "terminated"]
    assert (end["exception"], end["errorClass"]) == ("it failed", "CLASS")


def test_a_run_that_began_before_the_listener_is_asked_too(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    listener = ProgressListener(file, spark=SESSION, status_s=0.05)
    listener.onQueryProgress(progress(0))
    assert listener.drain(10)
    wait_until(lambda: "status" in [event["event"] for event in read_events(file)], "a status")
    listener.onQueryTerminated(about(exception=None))


def test_a_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 4000)
    file = tmp_path / "progress.jsonl"
    listener = ProgressListener(file)
    for batch in range(200):
        listener.onQueryProgress(progress(batch))
        assert listener.drain(10)
    assert file.stat().st_size < 5000
    assert read_events(file)[-1]["progress"]["batchId"] == 199


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        ProgressListener(tmp_path)


def test_a_broken_event_does_not_reach_spark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listener = ProgressListener(tmp_path / "progress.jsonl")
    for _ in range(3):
        listener.onQueryProgress(cast(Any, SimpleNamespace(progress=SimpleNamespace(json="no JSON"))))
    assert len(caplog.records) == 1


class Server:
    """Takes posts; answers with the next of ``codes``, then 200."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.posts: list[tuple[list[Any], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.posts.append((body, self.headers["Authorization"]))
                self.send_response(outer.codes.pop(0) if outer.codes else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/events"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_events_are_posted_and_a_failed_post_is_tried_again_with_the_next(server: Server) -> None:
    server.codes = [503]
    listener = ProgressListener(server.url, headers={"Authorization": "Bearer x"})
    listener.onQueryProgress(progress(0))
    assert listener.drain(10)
    listener.onQueryProgress(progress(1))
    assert listener.drain(10)
    batches = [[event["progress"]["batchId"] for event in body] for body, _ in server.posts]
    assert batches == [[0], [0, 1]]
    assert {token for _, token in server.posts} == {"Bearer x"}
