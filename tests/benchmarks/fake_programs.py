"""Benchmark programs that measure nothing: they write the figures, and end with the status, that a test asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import Figure, Outcome, Results
from suite import Program

SCRIPT = """
import json, pathlib, sys
turns = pathlib.Path(__file__).with_suffix(".turns")
turn = len(turns.read_text()) if turns.exists() else 0
turns.write_text("x" * (turn + 1))
pathlib.Path(__file__).with_suffix(".given").write_text(json.dumps(sys.argv[1:]))
print("table of", pathlib.Path(__file__).stem)
all_turns = {turns!r}
if {figures!r}:
    figures = json.loads(all_turns[min(turn, len(all_turns) - 1)])
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(figures))
sys.exit({status})
"""


def fake(folder: Path, name: str, *rounds: list[Figure], status: int = 0, **more: Any) -> Program:
    """A program in ``folder`` whose first run gives the first figures, the second the second, and so on."""
    texts = [json.dumps({"title": name.title(), "figures": [asdict(each) for each in turn]}) for turn in rounds]
    script = SCRIPT.replace("{turns!r}", repr(texts)).replace("{figures!r}", repr(bool(rounds)))
    (folder / f"{name}.py").write_text(script.replace("{status}", str(status)))
    return Program(name, f"{name}.py", f"what {name} shows", **more)


def given_to(folder: Path, program: Program) -> list[str]:
    """The arguments of the program's last run, without the file for its figures."""
    arguments = json.loads((folder / f"{program.name}.given").read_text())
    at = arguments.index("--json")
    return arguments[:at] + arguments[at + 2 :]


def turns_of(folder: Path, program: Program) -> int:
    file = folder / f"{program.name}.turns"
    return len(file.read_text()) if file.exists() else 0


def read(ours: float, name: str = "read, 100 B", **more: Any) -> Figure:
    """A throughput beside a peer of 100."""
    return Figure(name, "MB/s", ours, 100.0, "ceiling", **more)


def wait(ours: float, name: str = "latency, p50", **more: Any) -> Figure:
    """A time beside a peer of 10."""
    return Figure(name, "ms", ours, 10.0, "trivial", "less", **more)


def results_of(*outcomes: Outcome, **about: Any) -> Results:
    """Results that say of their run what a test does not."""
    usual = {
        "command": "python benchmarks/suite.py",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789ab",
        "seconds": 600.0,
        "quick": False,
        "peers": [],
        "whole": True,
        "machine": {"processor": "a fast one", "cores": "2 of 2"},
        "load before": [0.1, 0.2, 0.3],
        "load after": [1.5, 0.2, 0.3],
    }
    return Results(usual | about, outcomes)


def outcome(name: str, *figures: Figure, failed: str | None = None, arguments: tuple[str, ...] = ()) -> Outcome:
    return Outcome(name, name.title(), arguments, 12.3, figures, failed)
