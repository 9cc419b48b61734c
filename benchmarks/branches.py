"""What each branch that exists for speed alone is worth to a user: a figure with it and without it, in pairs.

    python benchmarks/branches.py [--only NAME,...] [--runs 5] [--scale 1] [--json FILE]

A branch is switched off by a statement that every process executes when it has imported a module of the branch; the
product has no switch for it. The broker has a core of its own, where there are two. Each pair is measured with the same
broker command, in turn; the figures are medians. A branch stays if without it a figure falls by more than a fifth, or
by more than a tenth and the branch has fewer than 150 lines (docs/performance.md, "Branches for speed").
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from figures import Figure, Report, arguments

ROOT: Final = Path(__file__).resolve().parents[1]
TOPIC: Final = "branches"
PARTITIONS: Final = 2
ROWS: Final = {"spark write": 1_500_000, "spark read": 3_000_000, "submit": 100_000, "consume": 300_000, "send": 400}
PAYLOAD_BYTES: Final = 100
BROKER: Final = "metaq_broker"
DEADLINE_S: Final = 300.0


@dataclass(frozen=True)
class Branch:
    """``off`` maps a module to what is executed when it is imported; ``files`` are those that would go with the branch.

    ``wins`` is the figure that a user sees.
    """

    name: str
    wins: str
    files: tuple[str, ...]
    off: Mapping[str, str]

    @property
    def lines(self) -> int:
        """Lines of the files."""
        return sum(len((ROOT / file).read_text().splitlines()) for file in self.files)


LOG, SERVE = f"broker/{BROKER}/log", f"broker/{BROKER}/serve"

BRANCHES: Final = (
    Branch(
        "blocks numbered by compiled code",
        "spark write",
        ("metaq/formats/frame_loops.py",),
        {"metaq.formats.frame_block": "BlockPasses.went_without = lambda *_: None"},
    ),
    Branch(
        "index entries by compiled code",
        "spark write",
        (f"{LOG}/segments/block_entries.py", f"{LOG}/segments/index_loop.py"),
        {f"{BROKER}.log.segments.index": "ENTRIES.went_without = lambda *_: None"},
    ),
    Branch(
        "syncs by the kernel",
        "send",
        (f"{LOG}/sync/kernel_syncs.py", f"{LOG}/sync/kernel_jobs.py"),
        {f"{BROKER}.log.sync.kernel_jobs": "KernelJobs.submit = lambda *_: False"},
    ),
    Branch(
        "syncs on the event loop",
        "send",
        (f"{LOG}/sync/sync_times.py",),
        {f"{BROKER}.log.sync.sync_times": "SyncTimes.are_quick = lambda *_: False"},
    ),
    Branch(
        "own selector of the event loop",
        "send",
        (f"{SERVE}/broker_loop.py",),
        {f"{BROKER}.serve.broker_loop": "new_loop = asyncio.new_event_loop"},
    ),
    Branch(
        "light futures",
        "submit",
        ("metaq/client/futures.py",),
        {
            "metaq.client.futures": """\
            _light = future_of
            def future_of(row):
                future = _light(row)
                future._condition
                return future
            """
        },
    ),
    Branch(
        "reads of the broker's files",
        "spark read",
        ("metaq/backends/metaq/local_file.py", "metaq/backends/segment_files.py", "metaq/protocols/file_location.py"),
        {f"{BROKER}.text.session": "TextSession._file_location = lambda *_: (UNAVAILABLE, 'switched off')"},
    ),
)

CUSTOMIZE: Final = '''\
"""Executes statements when modules have been imported."""
import importlib.util, json, os, sys

STATEMENTS = json.loads(os.environ["METAQ_SWITCHED_OFF"])

class Switch:
    def find_spec(self, name, path=None, target=None):
        if name not in STATEMENTS:
            return None
        statement = STATEMENTS.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            exec(statement, module.__dict__)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Switch())
'''


@contextmanager
def switched(branch: Branch | None) -> Iterator[dict[str, str]]:
    """The environment of processes without a branch, or with all of them."""
    environment = {name: value for name, value in os.environ.items() if name != "METAQ_SWITCHED_OFF"}
    if branch is None:
        yield environment
        return
    statements = {module: textwrap.dedent(statement) for module, statement in branch.off.items()}
    with tempfile.TemporaryDirectory(prefix="branches-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(CUSTOMIZE)
        path = os.pathsep.join(filter(None, (folder, environment.get("PYTHONPATH"))))
        yield environment | {"PYTHONPATH": path, "METAQ_SWITCHED_OFF": json.dumps(statements)}


@contextmanager
def pinned_broker(environment: Mapping[str, str], core: int | None) -> Iterator[str]:
    """Run a broker on one core; yield its address."""
    with tempfile.TemporaryDirectory(prefix="branches-") as folder:
        command = [sys.executable, "-m", "metaq_broker.cli", "dev", folder, "--port", "0"]
        command += ["--partitions", str(PARTITIONS), "--log-level", "error"]
        pin: Callable[[], None] | None = None if core is None else lambda: os.sched_setaffinity(0, {core})
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=pin) as process:
            assert process.stdout is not None
            try:
                ready = re.search(r" ready on (\S+),", process.stdout.readline())
                assert ready is not None, "the broker did not get ready"
                yield ready[1]
            finally:
                process.terminate()
                process.wait(DEADLINE_S)


def rate(figure: str, branch: Branch | None, rows: int) -> float:
    """One measurement: messages or rows a second."""
    cores = sorted(os.sched_getaffinity(0))
    core, others = (cores[-1], set(cores[:-1])) if len(cores) > 1 else (None, set(cores))
    with switched(branch) as environment, pinned_broker(environment, core) as address:
        command = [sys.executable, __file__, "--figure", figure, address, str(rows)]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=DEADLINE_S,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, others),
        )
        return float(done.stdout.split()[-1])


# ---- the figures, each in a process of its own


def client_rate(does: str, address: str, rows: int) -> float:
    """What ``client_work.py`` takes to send messages one by one, or to read them."""
    from client_work import Work, metaq_consume, metaq_produce

    work = Work(address, TOPIC, rows, PAYLOAD_BYTES)
    metaq_produce(work)
    if does == "consume":
        metaq_consume(work)
    return rows / work.times["wall_s"]


def send_rate(address: str, rows: int) -> float:
    """Durable sends of a client that waits for each."""
    from metaq import MetaQ

    with MetaQ(address) as queue:
        producer, body = queue.producer(), bytes(PAYLOAD_BYTES)
        for _ in range(50):
            producer.send(TOPIC, body)
        began = time.perf_counter()
        for _ in range(rows):
            producer.send(TOPIC, body)
        return rows / (time.perf_counter() - began)


def spark_rate(does: str, address: str, rows: int) -> float:
    """A batch write, or a batch read of what was written, with one task slot; the second of two runs."""
    from stage import spark

    with spark(slots=1) as session:
        value = f"cast(lpad(string(id), {PAYLOAD_BYTES}, '0123456789abcdef') as binary) value"
        frame = session.range(rows, numPartitions=PARTITIONS).selectExpr(value)
        seconds = 0.0
        for _ in range(2 if does == "spark write" else 1):
            began = time.perf_counter()
            frame.write.format("metaq").mode("append").options(brokers=address, topic=TOPIC).save()
            seconds = time.perf_counter() - began
        for _ in range(2 if does == "spark read" else 0):
            began = time.perf_counter()
            stored = session.read.format("metaq").options(brokers=address, subscribe=TOPIC).load()
            stored.write.format("noop").mode("overwrite").save()
            seconds = time.perf_counter() - began
        return rows / seconds


def figure_of(name: str, address: str, rows: int) -> float:
    """Measure one figure in this process."""
    if name == "send":
        return send_rate(address, rows)
    return spark_rate(name, address, rows) if name.startswith("spark") else client_rate(name, address, rows)


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    if len(sys.argv) == 5 and sys.argv[1] == "--figure":
        print(figure_of(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return
    parser = arguments(__doc__)
    parser.add_argument("--only", help="branches whose names contain one of these, separated by commas")
    given = parser.parse_args(words)
    wanted = [word.strip() for word in given.only.split(",")] if given.only else [""]
    with Report("Branches for speed", given.json) as report:
        for branch in (each for each in BRANCHES if any(word in each.name for word in wanted)):
            rows = max(1, int(ROWS[branch.wins] * given.scale))
            pairs = [(rate(branch.wins, None, rows), rate(branch.wins, branch, rows)) for _ in range(given.runs)]
            with_it, without = (statistics.median(side) for side in zip(*pairs, strict=True))
            name = f"{branch.wins}, without {branch.name} ({branch.lines} lines)"
            report.add(Figure(name, "k/s", without / 1e3, with_it / 1e3, "with it"))


if __name__ == "__main__":
    main()
