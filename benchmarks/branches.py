"""What each branch that exists for speed alone is worth to a user: a figure with it and without it.

    python benchmarks/branches.py [--only NAME,...] [--figures NAME;...] [--rocketmq 4.9.7] [--runs 3] [--scale 1]

A branch is switched off by a statement that every process executes when it has imported a module of the branch; the
product has no switch for it. The broker has a core of its own, where there are two. A branch and the figures that it is
said to serve are measured with the same broker command, in turn: with all branches, then without each; a figure is the
median. A branch stays if without it a figure falls by more than a fifth, or by more than a tenth and the branch has
fewer than 150 lines (docs/performance.md, "Branches for speed"). ``branch_figures.py`` measures the figures. With
``--rocketmq RELEASE``, RocketMQ's own client of that release is fetched with Maven, and what it sees is measured too.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from branch_figures import FIGURES
from figures import Figure, Report, arguments

from metaq.testing.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[1]
BROKER: Final = "metaq_broker"
DEADLINE_S: Final = 300.0


@dataclass(frozen=True)
class Branch:
    """``off`` maps a module to the statement that is executed after its import; ``files`` would be removed with the
    branch.

    ``wins`` are the figures that a user sees.
    """

    name: str
    wins: tuple[str, ...]
    files: tuple[str, ...]
    off: Mapping[str, str]

    @property
    def lines(self) -> int:
        """Number of lines of the files."""
        return sum(len((ROOT / file).read_text().splitlines()) for file in self.files)


LOG, SERVE, ROCKETMQ = f"broker/{BROKER}/log", f"broker/{BROKER}/serve", f"broker/{BROKER}/rocketmq"
REMOTING, COLUMNS, BACKENDS = "metaq/protocols/remoting", "metaq_spark/columns", "metaq_spark/backends"

SENDS: Final = ("send", "50 clients", "rocketmq 64 sends")

PLAIN_RESPONSES: Final = """\
from metaq.protocols.remoting.frames import encode
def _made(self, constant, names, remark=None):
    self.made = constant, names, remark
def _frame(self, opaque, values, body=b""):
    constant, names, remark = self.made
    fields = {**constant, **dict(zip(names, map(str, values)))}
    return encode(RemotingCommand(0, fields, body, opaque, RESPONSE_FLAG, remark))
ResponseTemplate.__init__, ResponseTemplate.frame = _made, _frame
"""
NO_LOOP_SYNCS: Final = {f"{BROKER}.log.sync.sync_times": "SyncTimes.are_quick = lambda *_: False"}

BRANCHES: Final = (
    Branch(
        "blocks numbered by compiled code",
        ("spark write", "spark write, 1 KB"),
        ("metaq/formats/frame_loops.py",),
        {"metaq.formats.frame_block": "BLOCKS.went_without = lambda *_: None"},
    ),
    Branch("syncs on the event loop", SENDS, (f"{LOG}/sync/sync_times.py",), NO_LOOP_SYNCS),
    Branch(
        "lean transports",
        SENDS,
        (f"{SERVE}/socket_transport.py",),
        {f"{BROKER}.serve.socket_transport": "SocketWatch.is_supported = staticmethod(lambda: False)"},
    ),
    Branch(
        "sends stored in groups",
        ("rocketmq 64 sends",),
        (f"{ROCKETMQ}/sends/send_groups.py",),
        {
            f"{BROKER}.rocketmq.sends.send_groups": "SendGroups.add = "
            "lambda self, topic, queue, frames, done: self._store.append_frames(topic, queue, [(frames, done)])"
        },
    ),
    Branch(
        "templates of responses",
        ("rocketmq 64 sends", "rocketmq pulls"),
        (f"{REMOTING}/response_template.py",),
        {"metaq.protocols.remoting.response_template": PLAIN_RESPONSES},
    ),
    Branch(
        "compiled frames of RocketMQ's batches",
        ("rocketmq batches", "rocketmq spark write"),
        (f"{ROCKETMQ}/sends/batch_loop.py",),
        {f"{BROKER}.rocketmq.sends.batch_frames": "BATCHES.went_without = lambda *_: None"},
    ),
    Branch(
        "compiled records of RocketMQ's pulls",
        ("rocketmq pulls",),
        (f"{ROCKETMQ}/messages/compiled_records.py", f"{ROCKETMQ}/messages/record_loop.py"),
        {f"{BROKER}.rocketmq.messages.compiled_records": "RECORDS.went_without = lambda *_: None"},
    ),
    Branch(
        "private frame pulls",
        ("rocketmq spark read",),
        (
            f"{ROCKETMQ}/pulls/frame_pulls.py",
            "metaq/backends/rocketmq/reads/frame_pulls.py",
            "metaq/backends/rocketmq/reads/frame_reader.py",
            f"{COLUMNS}/rocketmq/frame_kernels.py",
        ),
        {
            "metaq.backends.rocketmq.reads.frame_reader": """\
            def _is_bundled(self):
                self._pulls_only = True
                return False
            _FrameReader._is_bundled = _is_bundled
            """
        },
    ),
    Branch(
        "small ranges of MetaQ together",
        ("micro-batches",),
        (f"{BACKENDS}/metaq/small_ranges.py",),
        {f"{BACKENDS}.metaq.small_ranges".replace("/", "."): "read_small = lambda *_: {}"},
    ),
    Branch(
        "small ranges of RocketMQ together",
        ("rocketmq micro-batches",),
        (f"{BACKENDS}/rocketmq/small_ranges.py",),
        {f"{BACKENDS}.rocketmq.small_ranges".replace("/", "."): "read_small = lambda *_: {}"},
    ),
    Branch(
        "compiled columns",
        ("spark write", "spark read", "rocketmq spark write", "rocketmq spark read"),
        (
            f"{COLUMNS}/kernels.py",
            f"{COLUMNS}/compiling.py",
            f"{COLUMNS}/engine.py",
            *(f"{COLUMNS}/rocketmq/{name}_kernels.py" for name in ("frame", "record", "element")),
        ),
        {"metaq_spark.columns.engine": "numba_kernels = lambda: None"},
    ),
    Branch(
        "light futures",
        ("submit",),
        ("metaq/client/sending/futures.py",),
        {
            "metaq.client.sending.futures": """\
            _light = future_of
            def future_of(row):
                future = _light(row)
                future._condition
                return future
            """
        },
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
    """Yield the environment of processes without a branch; with all of them for ``None``."""
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
def pinned_broker(environment: Mapping[str, str], core: int | None, partitions: int) -> Iterator[tuple[str, str]]:
    """Run a broker on one core; yield its addresses for MetaQ's and RocketMQ's clients."""
    with tempfile.TemporaryDirectory(prefix="branches-") as folder:
        rocketmq = free_port()
        command = [sys.executable, "-m", "metaq_broker.cli", "dev", folder, "--port", "0"]
        command += ["--rocketmq-port", str(rocketmq), "--partitions", str(partitions), "--log-level", "error"]
        pin: Callable[[], None] | None = None if core is None else lambda: os.sched_setaffinity(0, {core})
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=pin) as process:
            assert process.stdout is not None
            try:
                ready = re.search(r" ready on (\S+),", process.stdout.readline())
                assert ready is not None, "the broker did not get ready"
                yield ready[1], f"127.0.0.1:{rocketmq}"
            finally:
                process.terminate()
                process.wait(DEADLINE_S)


def rate(figure: str, branch: Branch | None, scale: float, release: str | None) -> float:
    """Measure once; return messages or rows a second."""
    cores = sorted(os.sched_getaffinity(0))
    core, others = (cores[-1], set(cores[:-1])) if len(cores) > 1 else (None, set(cores))
    wanted = FIGURES[figure]
    rows = max(1, round(wanted.rows * scale))
    with switched(branch) as environment, pinned_broker(environment, core, wanted.partitions) as addresses:
        program = str(ROOT / "benchmarks/branch_figures.py")
        command = [sys.executable, program, figure, *addresses, str(rows), *([release] if release else [])]
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


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--only", help="branches whose names contain one of these, separated by commas")
    parser.add_argument("--figures", help="figures whose names are these, separated by semicolons")
    parser.add_argument("--rocketmq", metavar="RELEASE", help="also what RocketMQ's client of this release sees")
    given = parser.parse_args(words)
    wanted = [word.strip() for word in given.only.split(",")] if given.only else [""]
    figures = given.figures.split(";") if given.figures else FIGURES
    branches = [branch for branch in BRANCHES if any(word in branch.name for word in wanted)]
    with Report("Branches for speed", given.json) as report:
        for figure in (each for each in figures if given.rocketmq or not FIGURES[each].needs_release):
            if not (serving := [branch for branch in branches if figure in branch.wins]):
                continue
            sides = [partial(rate, figure, branch, given.scale, given.rocketmq) for branch in (None, *serving)]
            runs = [[side() for side in sides] for _ in range(given.runs)]
            with_all, *without = map(statistics.median, zip(*runs, strict=True))
            for branch, found in zip(serving, without, strict=True):
                name = f"{figure}, without {branch.name} ({branch.lines} lines)"
                report.add(Figure(name, "1/s", found, with_all, "with it"))


if __name__ == "__main__":
    main()
