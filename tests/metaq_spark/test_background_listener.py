"""What both listeners do when the program ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq_spark import background_listener
from metaq_spark.background_listener import BackgroundListener
from metaq_spark.diagnosis.listener import ProgressListener
from metaq_spark.lag.listener import MetaQLagListener


def run(number: int) -> Any:
    return SimpleNamespace(id="q", runId=f"run-{number}", name="orders", exception=None)


def progress(number: int) -> Any:
    tree = {"id": "q", "runId": f"run-{number}", "name": "orders", "batchId": 0, "sources": []}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(tree)))


@pytest.fixture(params=["lag", "progress"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> BackgroundListener:
    return MetaQLagListener() if request.param == "lag" else ProgressListener(tmp_path / "progress.jsonl")


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the program does at its end."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(background_listener.atexit, "register", registered.append)
    monkeypatch.setattr(background_listener, "EXIT_S", 0.2)
    return registered


def test_queries_in_turn_delay_the_end_once(
    listener: BackgroundListener, at_exit: list[Callable[[], None]]
) -> None:
    for number in range(3):
        listener.onQueryStarted(run(number))
        listener.onQueryTerminated(run(number))
    listener.onQueryStarted(run(3))  # runs still: each call at the end waits for it
    assert len(at_exit) == 1
    at_exit[0]()


def test_a_run_that_began_before_the_listener_is_waited_for(
    listener: BackgroundListener, at_exit: list[Callable[[], None]]
) -> None:
    listener.onQueryProgress(progress(0))
    assert len(at_exit) == 1
    listener.onQueryTerminated(run(0))
    at_exit[0]()
    assert listener.drain(0)
