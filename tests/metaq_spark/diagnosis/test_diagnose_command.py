"""``metaq-spark diagnose`` beside a real broker: text, JSON, exit status, and what is refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import commit, offset, plan
from cli_commands import run_command
from doc_blocks_of import shell_line
from fix_broker import RunningBroker

from metaq.client.metaq import MetaQ
from metaq_spark.cli import main

pytestmark = pytest.mark.process


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def checkpoint(dev_broker: RunningBroker, tmp_path: Path) -> Path:
    """A query that has read both messages of the topic orders."""
    with MetaQ(str(dev_broker.address)) as mq:
        mq.producer().send_many("orders", [b"one tea", b"two scones"])
        ends = {str(one.partition): one.end for one in mq.cluster.describe("orders")}
    folder = tmp_path / "checkpoints" / "large_orders"
    folder.mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"query-1"}')
    for number in range(3):
        plan(folder, number, offset(orders=ends))
        commit(folder, number)
    for file in folder.glob("*/*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    return folder


def run(*arguments: object) -> tuple[int, str, str]:
    return run_command(main, "diagnose", *map(str, arguments))


def test_the_line_of_the_page(checkpoint: Path, dev_broker: RunningBroker, tmp_path: Path) -> None:
    line = shell_line("docs/diagnosis.md", "metaq-spark diagnose").replace("127.0.0.1:8123", str(dev_broker.address))
    program = [sys.executable, "-m", "metaq_spark.cli", *line.split()[1:]]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "query-1: IDLE" in done.stdout
    assert "not known: whether a driver runs" in done.stdout


def test_json_and_status(checkpoint: Path, dev_broker: RunningBroker) -> None:
    status, out, _ = run(checkpoint, "--brokers", dev_broker.address, "--json")
    tree: dict[str, Any] = json.loads(out)
    assert (status, tree["v"], tree["verdict"], tree["rule"]) == (0, 1, "idle", "A1")
    assert tree["lag"]["bytes"] == 0
    assert [one["evidence"] for one in tree["missing"]] == ["P"]
    assert tree["sources"][0]["partitions"][0]["topic"] == "orders"
    status, out, _ = run(checkpoint, "--sample", 0)
    assert status == 14
    assert "UNKNOWN" in out


@pytest.mark.parametrize(("kind", "cleared"), [("xterm", 1), ("dumb", 0)])
def test_watching_clears_a_terminal_that_can_be_cleared(
    kind: str, cleared: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr("metaq_spark.diagnosis.command.time", SimpleNamespace(sleep=interrupt))  # in no other thread
    monkeypatch.setenv("TERM", kind)
    assert main(["diagnose", str(checkpoint), "--watch"]) == 14
    assert (screen.getvalue().count("\x1b[H\x1b[J"), "UNKNOWN" in screen.getvalue()) == (cleared, True)


def test_messages_that_wait_without_a_driver(checkpoint: Path, dev_broker: RunningBroker, tmp_path: Path) -> None:
    with MetaQ(str(dev_broker.address)) as mq:
        mq.producer().send("orders", b"three cups")
    reports = tmp_path / "progress.jsonl"
    event = {"v": 1, "at_ms": 2_000_000_000_000, "id": "query-1", "runId": "run-1"}
    started = {**event, "event": "started", "name": "orders", "driver": {}}
    reports.write_text(json.dumps(started) + "\n" + json.dumps({**event, "event": "terminated", "exception": None}))
    given = (checkpoint, "--brokers", dev_broker.address, "--progress", reports, "--sample", 0)
    status, out, _ = run(*given)
    assert status == 13
    assert "orders: GONE" in out
    status, _, _ = run(*given, "--deadline", "0.001")
    assert status in (13, 14)


def test_a_server_that_is_not_there(checkpoint: Path) -> None:
    status, out, _ = run(checkpoint, "--brokers", "127.0.0.1:1", "--sample", 0)
    assert status == 14
    assert "127.0.0.1:1" in out
    assert "not known: what 127.0.0.1:1 holds" in out


@pytest.mark.parametrize(
    ("arguments", "words", "expected"),
    [
        (["nowhere"], "there is no folder offsets in it", 1),
        (["s3://bucket/x"], "another file system", 1),
        (["nowhere", "--option", "x"], "expected NAME=VALUE", 2),
        (["nowhere", "--brokers", "127.0.0.1:8123", "--option", "fetchByte=1"], "did you mean fetchBytes", 2),
        (["nowhere", "--brokers", "127.0.0.1"], "expected host:port", 2),
    ],
)
def test_refused(arguments: list[str], words: str, expected: int) -> None:
    status, _, err = run(*arguments)
    assert status in (1, expected)
    assert words in err
    assert len(err.splitlines()) == 1


def test_reports_that_cannot_be_read_are_named(checkpoint: Path, dev_broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_text("neither\n")
    for name, words in {"none": "No such file", "empty": "it is empty", "other": "no event and no progress"}.items():
        status, out, _ = run(checkpoint, "--brokers", dev_broker.address, "--progress", tmp_path / name)
        assert status == 0
        assert words in out
    _, out, _ = run(checkpoint, "--brokers", dev_broker.address, "--progress", "http://127.0.0.1:1/events")
    assert "http://127.0.0.1:1/events: " in out
