"""``metaq dashboard`` as a process: it serves pages until it is stopped, and says in one sentence why it cannot."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fix_broker import RunningBroker, first_line

pytestmark = pytest.mark.process

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts the command with some arguments."""
    pytest.importorskip("uvicorn")
    monkeypatch.setenv("METAQ_CONFIG", str(tmp_path / "config.ini"))
    with ExitStack() as stack:

        def begin(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "metaq.cli.main", "dashboard", *arguments]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def address(process: subprocess.Popen[str]) -> str:
    match = re.fullmatch(r"metaq console ready on (http://127\.0\.0\.1:\d+/)\n", first_line(process))
    assert match is not None
    return match[1]


def test_it_serves_until_it_is_stopped(start: Start, dev_broker: RunningBroker) -> None:
    process = start("-c", str(dev_broker.address), "--port", "0")
    with urllib.request.urlopen(address(process), timeout=60) as answer:
        assert b"<title>Overview" in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--port", "x"], 2, "'x': expected a port, 0 to 65535"),
        (["--host", "0.0.0.0"], 2, "host '0.0.0.0': other machines reach it, so a token is required"),
        (["--profile", "nothing"], 2, "profile 'nothing'"),
        (["-c", "rocketmq:/x"], 1, "rocketmq:/x"),
        (["--token-file", "/nothing/here"], 2, "token file /nothing/here: No such file or directory"),
    ],
)
def test_what_keeps_it_from_starting_is_said(start: Start, arguments: list[str], status: int, sentence: str) -> None:
    out, err = start("--port", "0", *arguments).communicate(timeout=60)
    assert sentence in err
    assert "Traceback" not in err
    assert out == ""
