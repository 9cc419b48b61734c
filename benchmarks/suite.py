"""Runs all benchmarks of the suite one after another: tables on the terminal, figures in a file and a plot.

    python benchmarks/suite.py [--all] [--only read,write] [--runs 5] [--scale 1] [--quick] [--out bench]
                               [--kafka HOST:PORT|local] [--java-broker HOST:PORT] [--rocketmq VERSION]

Writes ``results.json``, ``results.svg`` and ``results.png`` into the folder of ``--out``. When a program fails, the
others still run; its name is printed at the end, and the exit status is 1. Nothing else should run on the machine
meanwhile: the load before and after is part of the results.

``SUITE`` lists the programs with their arguments, ``BESIDE`` the other programs. ``check.py`` and ``report.py`` read
the same lists.
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from figures import Figure, Outcome, Results
from machine import command_line, commit, load, machine

FOLDER: Final = Path(__file__).parent

Peer = Literal["kafka", "java-broker", "rocketmq"]


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how the suite runs it.

    ``name`` is for ``--only``. ``command`` is a file of this folder, and the part to run if it has several. ``runs``,
    ``scale`` and ``more`` are chosen so that the suite takes about twelve minutes on two cores without the ``extra``
    programs, which only ``--all`` and ``--only`` run; ``quick`` replaces ``more`` in a smoke run. ``takes`` names the
    optional peers whose addresses it accepts; with ``needs_peer``, it does nothing without the first.
    """

    name: str
    command: str
    shows: str
    runs: int = 5
    scale: float = 1.0
    more: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    takes: tuple[Peer, ...] = ()
    needs_peer: bool = False
    extra: bool = False

    @property
    def file(self) -> str:
        """The file's name."""
        return self.command.split()[0]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the suite for all programs: ``runs`` replaces theirs, ``scale`` multiplies theirs."""

    runs: int | None = None
    scale: float = 1.0
    quick: bool = False
    peers: tuple[tuple[Peer, str], ...] = ()

    def arguments(self, program: Program) -> list[str]:
        """Return the arguments of the program, without ``--json``."""
        runs = 1 if self.quick else self.runs or program.runs
        scale = program.scale * (QUICK_SCALE if self.quick else self.scale)
        peers = [word for peer, address in self.peers if peer in program.takes for word in (f"--{peer}", address)]
        own = program.quick if self.quick else program.more
        return ["--runs", str(runs), "--scale", f"{scale:g}", *own, *peers]

    def has_peer_for(self, program: Program) -> bool:
        """Return whether a program that needs a peer has one; true for all others."""
        return not program.needs_peer or program.takes[0] in [peer for peer, _ in self.peers]


QUICK_SCALE: Final = 0.02


class UnknownProgram(Exception):
    """A name that is in no list, or a program without a file. The text lists the known ones."""


def chosen(programs: Sequence[Program], names: Iterable[str], folder: Path = FOLDER) -> list[Program]:
    """Return the programs with these names, in the order of the list; all of them without a name.

    Raises:
        UnknownProgram: A name is not in the list, or a program does not exist.
    """
    wanted = set(names)
    if unknown := sorted(wanted - {program.name for program in programs}):
        raise UnknownProgram(f"no program {unknown[0]!r}; there are {', '.join(each.name for each in programs)}")
    found = [program for program in programs if not wanted or program.name in wanted]
    if missing := [program for program in found if not (folder / program.file).is_file()]:
        raise UnknownProgram(f"{missing[0].name}: there is no {missing[0].file}")
    return found


SUITE: Final[tuple[Program, ...]] = (
    Program("read", "spark_read.py", "batch reads: all columns, and choices of columns", scale=0.5),
    Program(
        "read-network",
        "spark_read.py",
        "batch reads, beside receiving alone",
        scale=0.5,
        more=("--network",),
        quick=("--network",),
        extra=True,
    ),
    Program("write", "spark_write.py write", "batch writes, at least once"),
    Program(
        "write-network",
        "spark_write.py write",
        "batch writes over the network",
        more=("--network",),
        quick=("--network",),
        extra=True,
    ),
    Program("exactly-once", "spark_write.py exactly-once", "writes exactly once beside at least once", scale=0.4),
    Program(
        "micro-batch",
        "micro_batch.py",
        "micro-batches of few rows",
        more=("--batches", "3"),
    ),
    Program(
        "micro-batch-others",
        "micro_batch.py",
        "micro-batches exactly once and over TCP, and queries with nothing to do",
        more=("--others", "--batches", "3"),
        quick=("--others",),
        extra=True,
    ),
    Program("latency", "first_row.py latency", "from a put to the row in a sink, p50 and p99", scale=0.6),
    Program("start-up", "first_row.py start-up", "a fresh query's way to its first row", runs=3, extra=True),
    Program(
        "scaling",
        "scaling.py scaling",
        "reads and writes over 1 to 64 partitions, and of messages of 100 B to 100 KB",
        runs=3,
        scale=0.1,
    ),
    Program(
        "resources",
        "resources.py per-gigabyte",
        "CPU seconds and peak memory of a read and of a write, per GB",
        runs=3,
        scale=0.2,
    ),
    Program(
        "planning",
        "planning.py",
        "planning over 1,000 partitions, in seconds and in round trips",
        runs=3,
        extra=True,
    ),
    Program(
        "log-size",
        "log_size.py",
        "whether cost depends on the size of the log (20 GiB), and on the number of messages",
        runs=9,
        more=("--gib", "20"),
        extra=True,
    ),
    Program(
        "kafka",
        "kafka_peer.py",
        "reads, writes and micro-batches beside Spark's Kafka connector and a Kafka; only with --kafka",
        runs=3,
        takes=("kafka",),
        needs_peer=True,
    ),
    Program(
        "java-broker",
        "java_peer.py",
        "puts, gets, reads and writes beside a Java MetaQ broker; only with --java-broker",
        takes=("java-broker",),
        needs_peer=True,
    ),
    Program(
        "rocketmq",
        "rocketmq_peer.py",
        "RocketMQ's source and sink beside its Java client, the MetaQ source and Kafka's; only with --rocketmq",
        runs=3,
        takes=("rocketmq", "kafka"),
        needs_peer=True,
    ),
    Program(
        "rocketmq-broker",
        "rocketmq_broker_peer.py",
        "RocketMQ's clients at our broker beside the same clients at RocketMQ's own; only with --rocketmq",
        runs=3,
        takes=("rocketmq",),
        needs_peer=True,
    ),
    Program(
        "client-kafka",
        "client_peer.py",
        "the Python client beside confluent-kafka and aiokafka; only with --kafka",
        runs=3,
        takes=("kafka",),
        needs_peer=True,
    ),
    Program("broker", "puts_and_gets.py broker", "the broker alone: puts, batched puts, gets", scale=0.8),
    Program("pair", "pair.py", "a pair that elects its master, beside a single broker: puts, batched puts", scale=0.5),
    Program("client", "puts_and_gets.py client", "the client without Spark: reading a partition", runs=3),
    Program("codec", "components.py codec", "the text protocol's codec, without any I/O"),
    Program("log-append", "components.py log-append", "what the log adds to a bare write, and opening a log"),
)
"""In the order in which they run."""

BESIDE: Final[tuple[Program, ...]] = (
    Program(
        "open-log",
        "components.py open-log",
        "how long a data folder takes to open: after a clean stop, after a kill, verified",
    ),
    Program(
        "idle-memory",
        "connections.py idle-memory",
        "a broker's memory with 1,000 partitions and 10,000 idle connections",
    ),
    Program(
        "fairness",
        "fairness.py",
        "how long an honest client of each protocol waits beside greedy ones, with compiled loops, without, with TLS",
    ),
    Program(
        "many-partitions",
        "scaling.py many-partitions",
        "a streaming query over 4,000 partitions: CPU while nothing comes, and the trigger with one row",
    ),
    Program(
        "busy-partition",
        "busy_partition.py",
        "how long a message of a quiet partition waits beside one that always has messages",
        runs=10,
    ),
    Program(
        "idle-clients",
        "idle_clients.py",
        "CPU of each kind of client while the broker, name server or ZooKeeper that it needs is away",
    ),
    Program(
        "read-memory",
        "resources.py read-memory",
        "the memory of a task that reads, and that it does not grow with what is read",
    ),
    Program(
        "zookeeper-away",
        "zookeeper.py away",
        "micro-batches a second while ZooKeeper is up, refuses, is frozen, or is cut off in one direction",
    ),
    Program(
        "cluster", "zookeeper.py cluster", "ZooKeeper: registration, first plan, a client's first map, a lost master"
    ),
)
"""Run by hand: they need disk space, many open files or time."""


RESULTS: Final = "results.json"
SECONDS_MAX: Final = 1800.0
"""A program that runs longer has failed: how long it may hang on a slow machine, not how long it takes."""


def run(program: Program, arguments: Sequence[str], folder: Path = FOLDER, seconds_max: float = SECONDS_MAX) -> Outcome:
    """Run one program, its output going to the terminal, and collect its figures."""
    print(f"\n== {program.name}: {program.command} {' '.join(arguments)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="metaq-suite-") as temporary:
        file = Path(temporary) / "figures.json"
        command = [
            sys.executable,
            str(folder / program.file),
            *program.command.split()[1:],
            *arguments,
            "--json",
            str(file),
        ]
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
    """Return why the command failed, or ``None``. If it does not end in time, its processes are killed."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"did not end within {seconds_max:g} s"
        except BaseException:  # an interrupt from the keyboard reaches only this process
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
    """Print the duration, the files, the missed aims and the failed programs."""
    aims = [figure.met for _, figure in results.figures() if figure.met is not None]
    took = ", ".join(f"{outcome.name} {outcome.seconds:.0f}" for outcome in results.outcomes)
    print(f"\n{results.about['seconds']:.0f} s ({took})")
    print(f"{sum(aims)} of {len(aims)} aims are met; {folder}/ has {RESULTS}, results.svg and results.png")
    for outcome in results.failed:
        print(f"FAILED: {outcome.name}: {outcome.failed}")
    sys.stdout.flush()


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help="these programs, separated by commas")
    parser.add_argument("--all", action="store_true", help="also the extra programs, which take long")
    parser.add_argument("--runs", type=int, help="measured runs of each side, instead of each program's own number")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the amount of work (default 1)")
    parser.add_argument("--quick", action="store_true", help=f"see that all work: 1 run, scale {QUICK_SCALE:g}")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka broker to compare with, or 'local'")
    parser.add_argument("--java-broker", metavar="HOST:PORT", help="a MetaQ broker in Java to compare with")
    parser.add_argument("--rocketmq", metavar="VERSION", help="a release of RocketMQ to start and to compare with")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the results (default: bench)")
    return parser.parse_args(arguments)


def peers_for(programs: Sequence[Program], given: Mapping[Peer, str | None]) -> tuple[tuple[Peer, str], ...]:
    """Return the peers that have an address.

    Raises:
        UnknownProgram: No program accepts a given peer.
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
        peers = peers_for(wanted, {"kafka": given.kafka, "java-broker": given.java_broker, "rocketmq": given.rocketmq})
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
    from plot import draw  # imported here: it takes a second

    draw(results, folder / "results.svg", folder / "results.png")


if __name__ == "__main__":
    sys.exit(main())
