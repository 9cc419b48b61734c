"""Which benchmark programs there are: those of the suite, with what they are given there, and those beside it.

One list for ``suite.py``, which runs them, ``check.py``, which runs one again, and ``report.py``, which says what each
of them shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).parent

Peer = Literal["kafka", "java-broker"]


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how the suite runs it.

    ``name`` is what ``--only`` takes. ``runs``, ``scale`` and ``more`` are chosen so that the suite takes about
    twelve minutes on two cores without those that are ``extra``, which only ``--all`` and ``--only`` run;
    ``quick`` replaces ``more`` in a smoke run. ``takes`` names the optional peers whose addresses it wants; with
    ``needs_peer`` it has nothing to do without.
    """

    name: str
    file: str
    shows: str
    runs: int = 5
    scale: float = 1.0
    more: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    takes: tuple[Peer, ...] = ()
    needs_peer: bool = False
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run of the suite does to all programs: ``runs`` replaces theirs, ``scale`` multiplies theirs."""

    runs: int | None = None
    scale: float = 1.0
    quick: bool = False
    peers: tuple[tuple[Peer, str], ...] = ()

    def arguments(self, program: Program) -> list[str]:
        """What the program is given, without ``--json``."""
        runs = 1 if self.quick else self.runs or program.runs
        scale = program.scale * (QUICK_SCALE if self.quick else self.scale)
        peers = [word for peer, address in self.peers if peer in program.takes for word in (f"--{peer}", address)]
        own = program.quick if self.quick else program.more
        return ["--runs", str(runs), "--scale", f"{scale:g}", *own, *peers]

    def has_peer_for(self, program: Program) -> bool:
        """Whether a program that needs a peer has one; true for all others."""
        return not program.needs_peer or any(peer in program.takes for peer, _ in self.peers)


QUICK_SCALE: Final = 0.02


class UnknownProgram(Exception):
    """A name that is in no list, or a program without a file. The text says which there are."""


def chosen(programs: Sequence[Program], names: Iterable[str], folder: Path = FOLDER) -> list[Program]:
    """The programs with these names, in the order of the list; all of them without a name.

    Raises:
        UnknownProgram: for a name that is not in the list, and for a program that does not exist.
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
        "batch reads whose bytes are sent, as if the broker were elsewhere",
        scale=0.5,
        more=("--network",),
        quick=("--network",),
        extra=True,
    ),
    Program("write", "spark_write.py", "batch writes, at least once"),
    Program(
        "write-network",
        "spark_write.py",
        "batch writes over the network",
        more=("--network",),
        quick=("--network",),
        extra=True,
    ),
    Program("exactly-once", "exactly_once.py", "writes exactly once beside at least once", scale=0.4),
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
    Program("latency", "latency.py", "from a put to the row in a sink, p50 and p99", scale=0.6),
    Program("start-up", "start_up.py", "a fresh query's way to its first row", runs=3, extra=True),
    Program(
        "scaling",
        "scaling.py",
        "reads and writes over 1 to 64 partitions, and of messages of 100 B to 100 KB",
        runs=3,
        scale=0.1,
    ),
    Program(
        "resources", "resources.py", "CPU seconds and peak memory of a read and of a write, per GB", runs=3, scale=0.2
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
    Program("broker", "broker_put.py", "the broker alone: puts, batched puts, gets", scale=0.8),
    Program("client", "client_get.py", "the client without Spark: reading a partition", runs=3),
    Program("codec", "codec.py", "the text protocol's codec, without any I/O"),
    Program("log-append", "log_append.py", "what the log adds to a bare write, and opening a log"),
)
"""In the order in which they run."""

BESIDE: Final[tuple[Program, ...]] = (
    Program(
        "open-log", "open_log.py", "how long a data folder takes to open: after a clean stop, after a kill, verified"
    ),
    Program("idle-memory", "idle_memory.py", "a broker's memory with 1,000 partitions and 10,000 idle connections"),
    Program(
        "fairness",
        "fairness.py",
        "how long a put waits beside 10 to 1,000 connections that send as fast as they can",
    ),
    Program(
        "many-partitions",
        "many_partitions.py",
        "a streaming query over 4,000 partitions: CPU while nothing comes, and the trigger with one row",
    ),
    Program(
        "read-memory", "read_memory.py", "the memory of a task that reads, and that it does not grow with what is read"
    ),
    Program(
        "zookeeper-away",
        "zookeeper_away.py",
        "micro-batches a second while ZooKeeper is up, refuses, is frozen, or is cut off in one direction",
    ),
    Program("cluster", "cluster.py", "ZooKeeper: registration, first plan, a client's first map, a lost master"),
)
"""Run by hand: they need room on the disk, many open files or time."""
