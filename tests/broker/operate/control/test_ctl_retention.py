"""``ctl retention run``: old segments go now, and readers are sent on; and what status says of a disk that is full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker
from operated import ask, ctl, get, put, refusal, report, stored

pytestmark = pytest.mark.process


@pytest.fixture
def rolled(ini: Path, start_broker: StartBroker) -> RunningBroker:
    """Topics ``orders`` (delete) and ``late`` (archive): segments of one message, the first two an hour old.

    The broker is restarted in between: what was put in a run is kept by the time that this run has lasted.
    """
    text = ini.read_text().replace("maxSegmentSize=1024*1024", "maxSegmentSize=50\ndeletePolicy=delete,1")
    ini.write_text(text.replace("unflushThreshold=10", "deletePolicy=archive,30m"))
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    for topic in ("orders", "late"):
        for _ in range(4):
            stored(client, topic, 0, b"x" * 80)
    broker.stop()
    for topic in ("orders", "late"):
        for number in range(2):
            path = broker.data / f"{topic}-0" / f"{number * 100:020d}.meta"
            past = path.stat().st_mtime - 3700
            os.utime(path, (past, past))
    return start_broker("start", "-f", ini)


def test_old_segments_go_now(rolled: RunningBroker) -> None:
    assert ask(rolled, "retention", "run", "orders")["removed"] == [
        {"topic": "orders", "index": 0, "how": "delete", "segments": 2, "bytes": 200, "failure": None}
    ]
    client = rolled.client()
    assert client.result(get("orders", 0)) == (301, "200")
    assert report(rolled, "retention", "run") == ["late-0: archive, 2 segments, 200 B"]
    assert report(rolled, "retention", "run") == ["nothing was old enough"]
    assert len(list((rolled.data / "late-0").glob("*.arc"))) == 2
    [late, orders] = ask(rolled, "topics")["topics"]
    assert orders["next_retention_ms"] == late["next_retention_ms"] > 1_700_000_000_000
    assert refusal(rolled, "retention", "run", "nothing") == "this broker has no topic 'nothing'"


def test_a_failure_is_reported(rolled: RunningBroker) -> None:
    (rolled.data / "late-0" / f"{0:020d}.meta.arc").mkdir()
    answer = ctl("--data", rolled.data, "retention", "run", "late")
    assert (answer.status, "late-0: FAILED: " in answer.out) == (1, True)


def test_a_moved_partition_goes_on_with_retention(rolled: RunningBroker) -> None:
    report(rolled, "close", "orders", "0")
    report(rolled, "move", "orders", "0", "--to", "1")
    report(rolled, "open", "orders", "1")
    assert ask(rolled, "retention", "run", "orders")["removed"][0]["segments"] == 2
    assert rolled.client().result(get("orders", 1)) == (301, "200")


def test_a_disk_without_space_is_reported(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text().replace("serverPort=0", "serverPort=0\ndiskFreeMinBytes=1024*1024*1024*1024*1024"))
    broker = start_broker("start", "-f", ini)
    assert broker.client().result(put("orders", 0, b"x"))[0] == 500
    [folder] = ask(broker, "status")["data"]
    assert "disk is nearly full" in folder["puts_refused"]
    assert f"PUTS REFUSED   {folder['puts_refused'][:20]}" in "\n".join(report(broker, "status"))
