"""Every program of the suite and beside it measures something, with amounts of work that take no time.

The programs run in this process. Those that need Spark share one session, also where they would start others.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import first_row
import pytest
from figures import Figure, seconds
from pyspark.sql import SparkSession
from suite import BESIDE, SUITE, Program

SCALE = "0.0005"
TINY = {
    "open-log": ["--segment-mib", "1", "--scale", "0.005"],
    "fairness": ["--only", "10 connections", "--scale", "0.02"],
    "idle-memory": ["--scale", "0.01"],
    "cluster": ["--topics", "5"],
    "idle-clients": ["--seconds", "0.2"],
    "zookeeper-away": ["--seconds", "0.2", "--scale", "1"],
    "scaling": ["--scale", "0.0001"],
    "planning": ["--scale", "0.005"],
    "broker": ["--scale", "0.05"],
    "pair": ["--scale", "0.05"],
    "client": ["--scale", "0.02"],
    "log-size": ["--scale", "0.001", "--gib", "2"],
}
"""Where the scale that suits most programs is too small or leaves something long."""

LESS = {
    "IDLE_S": 0.1,
    "SETTLE_S": 0.1,
    "LEAD_S": 0.1,
    "BACK_S": 0.5,
    "WARM_UP_BATCHES": 0,
    "WARM_UP_MESSAGES": 0,
    "WARM_UP_S": 0.1,
    "FIRST_BATCHES": 2,
    "FAILOVERS": 1,
    "COUNTS": (1, 4),
    "SIZES": (100,),
    "PARTITION_COUNTS": (1, 2),
}
"""Constants of the programs that would only cost time here: pauses, what is not measured, numbers of similar points."""

SIMILAR = ("CASES", "ONCE_CASES", "SLOTS", "CHOICES", "COMMIT_MIB", "LAYOUTS")
"""Constants that are similar things to measure: the first one is measured here."""

WITHOUT_SPARK = (
    "broker",
    "pair",
    "client",
    "codec",
    "log-append",
    "open-log",
    "idle-memory",
    "idle-clients",
    "fairness",
    "busy-partition",
    "cluster",
)
PROGRAMS = [program for program in (*SUITE, *BESIDE) if not program.needs_peer]


def marked(program: Program) -> object:
    marks = [pytest.mark.long, pytest.mark.slow, pytest.mark.process]
    if program.name not in WITHOUT_SPARK:
        marks.append(pytest.mark.spark)
    return pytest.param(program, marks=marks, id=program.name)


def main_of(program: Program) -> tuple[ModuleType, Callable[[Sequence[str]], int | None]]:
    file, *part = program.command.split()
    module = importlib.import_module(file.removesuffix(".py"))
    return module, module.PARTS[part[0]] if part else module.main


def run_tiny(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Run the program; return its figures."""
    module, main = main_of(program)
    less = LESS | {"alternating": once, "medians": once_each}
    for name, value in less.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    for name in SIMILAR:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, first_of(getattr(module, name)))
    if program.name == "idle-clients":
        monkeypatch.setattr(module, "KINDS", one_for_each_need(module.KINDS))
    file = folder / "figures.json"
    own = program.quick or tuple(word for word in program.more if word == "--others")
    main(["--runs", "1", "--scale", SCALE, *own, *TINY.get(program.name, []), "--json", str(file)])
    return [Figure(**each) for each in json.loads(file.read_text())["figures"]]


def first_of(several: Sequence[Any] | Mapping[Any, Any]) -> Sequence[Any] | Mapping[Any, Any]:
    return dict([*several.items()][:1]) if isinstance(several, Mapping) else several[:1]


def one_for_each_need(kinds: Mapping[str, Any]) -> Mapping[str, Any]:
    """A client is a process of its own: of those that lose the same server, the first one."""
    firsts = {kind.needs: name for name, kind in reversed(kinds.items())}
    return {name: kinds[name] for name in firsts.values()}


def once(measures: Sequence[Callable[[], float]], *_: int, **__: int) -> list[float]:
    """Stands in for ``figures.alternating``: no round that does not count."""
    return [measure() for measure in measures]


def once_each(actions: Sequence[Callable[[], object]], _: int) -> list[float]:
    """Stands in for ``figures.medians``."""
    return once([partial(seconds, action) for action in actions])


@contextmanager
def shared(session: SparkSession, *_: object, **__: object) -> Iterator[SparkSession]:
    """Stands in for ``stage.spark``: whatever session is asked for, it is this one."""
    yield session


def in_this_process(command: Sequence[str], **_: str) -> float:
    """Stands in for ``first_row.seconds_of``: a process whose start is measured is a call, or does not count."""
    if "--side" not in command:
        return 1.0
    side, address = command[command.index("--side") + 1], command[command.index("--brokers") + 1]
    return first_row.first_row(side, address)


@pytest.mark.usefixtures("pools_closed")
@pytest.mark.parametrize("program", [marked(each) for each in PROGRAMS])
def test_it_measures(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if program.name not in WITHOUT_SPARK:
        session: SparkSession = request.getfixturevalue("spark")

        def spark(*_: object, **__: object) -> AbstractContextManager[SparkSession]:
            return shared(session)

        module, _ = main_of(program)
        if hasattr(module, "spark"):
            monkeypatch.setattr(module, "spark", spark)
        monkeypatch.setattr(first_row, "seconds_of", in_this_process)
    figures = run_tiny(program, tmp_path, monkeypatch)
    assert figures
    assert all(figure.ours >= 0 for figure in figures)
