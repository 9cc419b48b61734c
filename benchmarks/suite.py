"""All benchmarks of the suite one after another, their tables on the terminal, their figures in a file and a plot.

    python benchmarks/suite.py [--all] [--only read,write] [--runs 5] [--scale 1] [--quick] [--out bench]
                               [--kafka HOST:PORT|local] [--java-broker HOST:PORT]

Writes ``results.json``, ``results.svg`` and ``results.png`` into the folder of ``--out``. A program that fails does not
keep the others from running; its name is printed at the end, and the exit status is 1. Nothing else should run on the
machine meanwhile: the load before and after is part of the results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from figures import Figure
from machine import command_line, commit, load, machine
from programs import FOLDER, QUICK_SCALE, SUITE, Peer, Program, Settings, UnknownProgram, chosen
from results import Outcome, Results

RESULTS: Final = "results.json"
SECONDS_MAX: Final = 600.0
"""After that long, a program has failed."""


def run(program: Program, arguments: Sequence[str], folder: Path = FOLDER, seconds_max: float = SECONDS_MAX) -> Outcome:
    """Run one program, its output going to the terminal, and collect its figures."""
    print(f"\n== {program.name}: {program.file} {' '.join(arguments)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="metaq-suite-") as temporary:
        file = Path(temporary) / "figures.json"
        command = [sys.executable, str(folder / program.file), *arguments, "--json", str(file)]
        started = time.perf_counter()
        failed = _failure(command, seconds_max)
        seconds = round(time.perf_counter() - started, 1)
        title = program.name
        figures: tuple[Figure, ...] = ()
        if failed is None:
            try:
                title, figures = _figures(file)
            except (OSError, ValueError, KeyError, TypeError) as wrong:
                failed = f"wrote no figures ({type(wrong).__name__}: {wrong})".replace(temporary, "")
    return Outcome(program.name, title, tuple(arguments), seconds, figures, failed)


def _failure(command: list[str], seconds_max: float) -> str | None:
    """Why the command failed, or ``None``. What it has started ends with it when it does not end in time."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"did not end within {seconds_max:g} s"
        except BaseException:  # an interrupt from the keyboard reaches this process only
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return None if status == 0 else f"exit status {status}"


def _figures(file: Path) -> tuple[str, tuple[Figure, ...]]:
    content = json.loads(file.read_text(encoding="utf-8"))
    figures = tuple(Figure(**figure) for figure in content["figures"])
    if not figures:
        raise ValueError("an empty table")
    return content["title"], figures


def run_all(programs: Sequence[Program], settings: Settings, whole: bool = True, folder: Path = FOLDER) -> Results:
    """Run the programs that have the peers they need, one after another."""
    before, started = load(), time.perf_counter()
    outcomes = [run(each, settings.arguments(each), folder) for each in programs if settings.has_peer_for(each)]
    about = {
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(folder),
        "seconds": round(time.perf_counter() - started, 1),
        "quick": settings.quick,
        "peers": [peer for peer, _ in settings.peers],
        "whole": whole,
        "machine": machine(),
        "load before": before,
        "load after": load(),
    }
    return Results(about, tuple(outcomes))


def print_end(results: Results, folder: Path) -> None:
    """How long everything took, what is where, which aims were missed and what failed."""
    aims = [figure.met for _, figure in results.figures() if figure.met is not None]
    took = ", ".join(f"{outcome.name} {outcome.seconds:.0f}" for outcome in results.outcomes)
    print(f"\n{results.about['seconds']:.0f} s ({took})")
    print(f"{sum(aims)} of {len(aims)} aims are met; {folder}/ has {RESULTS}, results.svg and results.png")
    for outcome in results.failed:
        print(f"FAILED: {outcome.name}: {outcome.failed}")
    sys.stdout.flush()


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help="these programs, separated by commas")
    parser.add_argument("--all", action="store_true", help="also those that are extra: start-up, planning, log-size")
    parser.add_argument("--runs", type=int, help="measured runs of each side, instead of each program's own number")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the amount of work (default 1)")
    parser.add_argument("--quick", action="store_true", help=f"see that all work: 1 run, scale {QUICK_SCALE:g}")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka broker to compare with, or 'local'")
    parser.add_argument("--java-broker", metavar="HOST:PORT", help="a MetaQ broker in Java to compare with")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the results (default: bench)")
    return parser.parse_args(arguments)


def peers_for(programs: Sequence[Program], given: Mapping[Peer, str | None]) -> tuple[tuple[Peer, str], ...]:
    """The peers that have an address.

    Raises:
        UnknownProgram: for one that none of the programs takes.
    """
    peers = tuple((peer, address) for peer, address in given.items() if address)
    for peer, _ in peers:
        if not any(peer in program.takes for program in programs):
            raise UnknownProgram(f"--{peer}: none of these programs takes it")
    return peers


def main(arguments: Sequence[str] | None = None, programs: Sequence[Program] = SUITE, folder: Path = FOLDER) -> int:
    """Run the suite; return the exit status."""
    given = options(arguments)
    try:
        wanted = chosen(programs, given.only, folder)
        if not given.only and not given.all:
            wanted = [program for program in wanted if not program.extra]
        peers = peers_for(wanted, {"kafka": given.kafka, "java-broker": given.java_broker})
    except UnknownProgram as unknown:
        print(unknown, file=sys.stderr)
        return 2
    settings = Settings(given.runs, given.scale, given.quick, peers)
    results = run_all(wanted, settings, given.all and not given.only, folder)
    results.write(given.out / RESULTS)
    _draw(results, given.out)
    print_end(results, given.out)
    return 1 if results.failed else 0


def _draw(results: Results, folder: Path) -> None:
    from plot import draw  # takes a second, and is not needed until here

    draw(results, folder / "results.svg", folder / "results.png")


if __name__ == "__main__":
    sys.exit(main())
