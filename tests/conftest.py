"""Loads the fixtures in fix_*.py beside this file, keeps the process as each test found it, and orders the run."""

import gc
import importlib.metadata
import itertools
import logging
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from random import Random

import examples as cases
import kazoo.protocol.connection
import kazoo.retry
import pytest
from examples import FAST, LONG, examples
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_numbers = itertools.count()

pytest_plugins = ["pytester", *sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))]


SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false"
"""Most of a test's JVM is its start: no time for the optimising compiler, no threads for the garbage collector."""

for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, SHORT_LIVED_JVM)


def _java_home() -> Path | None:
    """Where the Java is that Spark takes: that of ``JAVA_HOME``, or the one on the path."""
    named = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{named}/bin/java" if named else "java")
    return Path(java).resolve().parents[1] if java else None


ARCHIVED_JAVA = Path(sys.prefix) / "java-from-archive"
"""Made by ``scripts/archive-spark``: the same Java, with Spark's classes in an archive; a start takes half the time."""

if (ARCHIVED_JAVA / "fits").exists() and (ARCHIVED_JAVA / "runtime").resolve() == _java_home():
    os.environ["JAVA_HOME"] = str(ARCHIVED_JAVA)


WORKERS_PATH = str(Path(__file__).parent / "spark_python")
"""Processes of Spark's find a compiled PySpark: see ``sitecustomize.py`` there."""

if WORKERS_PATH not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (WORKERS_PATH, os.environ.get("PYTHONPATH"))))


MEMORY = Path("/dev/shm")
"""A folder of Linux whose files are in memory."""

MEMORY_BYTES_MIN = 1 << 30

if FAST and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
    # Temporary folders of tests: a sync to a disk takes milliseconds, and the tests make tens of thousands.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
"""Brokers in memory have names that no name server knows; one that answers nothing is waited for a second, not ten."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Hypothesis fails a test in which another thread takes numbers of the ``random`` module, as kazoo's threads do.
for module in (kazoo.protocol.connection, kazoo.retry):
    module.random = Random()


settings.register_profile(
    "usual", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a first example may compile, and machines may be busy
settings.load_profile("usual")

USUAL_SECONDS = {"long": 60, "slow": 15, "spark": 3, "process": 1}
"""What a test with this mark takes, roughly; all others take nothing."""

TRY_FEWER = ("examples", "spread", "histories", "LONG", "each_call", "cut_at_every_call")
"""Names of ``tests/support/examples.py`` and ``stored.py`` in a file whose tests try more in ``make test-long``."""

IMPORTS_SINCE = {"test_pushdown.py": "4.1"}
"""Files that import what came with this version of Spark."""

MARKED_AS_A_WHOLE = re.compile(r"^pytestmark = .*\bmark\.(?:spark|process|slow)\b", re.MULTILINE)
"""In a file whose tests all start Spark or processes, or are slow."""

HAS_LONG = re.compile(
    r"\bmark\.(?:long|browser)\b|\bhypothesis\b|\b(?:each_call|cut_at_every_call)\b"
    r"|\bfrom examples import .*\b(?:examples|spread|histories|LONG|rarely)\b"
)
"""In a file with a test that ``make test-long`` runs: marked, or one that tries more cases there."""

ARCH = "tests/arch"

SPARK_PROCESSES = 2
"""Each test process that takes a test with Spark starts a session, eight seconds of a core and 400 MB."""

SHARES_SPARK = re.compile(r"\bSparkSession\b|\bfix_spark\b")
"""In a file whose tests use the session of their test process."""


def pytest_xdist_auto_num_workers() -> int | None:
    """Use more test processes than there are cores: most of their time they wait for brokers, Spark and the disk.

    Those of ``make test-fast`` are smaller, and wait for timeouts now and then.
    """
    return len(os.sched_getaffinity(0)) + (3 if FAST else 2)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Give a process a file at a time, but all of ``tests/arch`` to one: they share the syntax trees of all files."""
    return FilesAtATime(config, log) if config.getvalue("dist") == "loadfile" else None


class FilesAtATime(LoadFileScheduling):
    """Names what is run by one process: a file, or a folder. Few processes run what shares a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return ARCH if file.startswith(f"{ARCH}/") else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) >= SPARK_PROCESSES:
            for scope in self.workqueue:
                if not self._shares_spark(scope):
                    self.workqueue.move_to_end(scope, last=False)
                    break
        super()._assign_work_unit(node)

    def _shares_spark(self, scope: str) -> bool:
        file = self.config.rootpath / scope
        return file.is_file() and SHARES_SPARK.search(file.read_text(encoding="utf-8")) is not None


def _older_than(version: str) -> bool:
    """Whether the installed Spark is."""
    installed = re.findall(r"\d+", importlib.metadata.version("pyspark"))[:2]
    return [int(number) for number in installed] < [int(number) for number in version.split(".")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files none of whose tests `make test-fast` runs: importing them takes a fifth of its collection.

    Or those of which `make test-long` runs none, and those that the installed Spark cannot import.
    """
    if (since := IMPORTS_SINCE.get(collection_path.name)) is not None and _older_than(since):
        return True
    if not collection_path.match("test_*.py"):
        return None
    if LONG and config.option.markexpr == "long":
        return HAS_LONG.search(collection_path.read_text(encoding="utf-8")) is None or None
    if not FAST:
        return None
    return MARKED_AS_A_WHOLE.search(collection_path.read_text(encoding="utf-8")) is not None or None


def _tries_fewer(item: pytest.Item) -> bool:
    """Whether a test tries more cases in ``make test-long`` than in ``make test``."""
    names = vars(getattr(item, "module", item))
    is_property = hasattr(getattr(item, "obj", None), "hypothesis")
    return is_property or any(name in names and names[name] is getattr(cases, name, names[name]) for name in TRY_FEWER)


def _leave_out_long_ones(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that only ``make test-long`` runs, unless ``-m`` names the mark or an argument their file.

    Those in a browser are among them.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker("long")
    if LONG or re.search(r"\b(long|browser)\b", config.option.markexpr):
        return
    named = {(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args}
    left_out = {item for item in items if item.get_closest_marker("long") and item.path.resolve() not in named}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the files with most long tests first: test processes take files in order, and none is to end with one.

    Tests of what the installed Spark does not have are skipped. ``make test-long`` also runs those that try more cases
    there.
    """
    _leave_out_long_ones(config, items)
    for item in items if LONG else ():
        if _tries_fewer(item):
            item.add_marker("long")
    for item in items:
        if (mark := item.get_closest_marker("since")) is not None and _older_than(mark.args[0]):
            item.add_marker(pytest.mark.skip(reason=f"needs Spark {mark.args[0]}"))
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += sum(each for mark, each in USUAL_SECONDS.items() if item.get_closest_marker(mark))
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and tests out of all garbage collections: looking through them takes half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what consumers without ZooKeeper save on this machine apart: it is found by a broker's port, and another
    test's broker may have had the same one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{next(_numbers)}"))


def _remove_streams(log: logging.Logger) -> None:
    for handler in [each for each in log.handlers if type(each) is logging.StreamHandler]:
        log.removeHandler(handler)


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undo what a test that runs a command in this process did to signals, and to level and stream of the root log.

    A library that calls ``logging.warning`` in a thread, between two tests, adds a stream, too.
    """
    root = logging.getLogger()
    level = root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _remove_streams(root)
    yield
    root.setLevel(level)
    _remove_streams(root)
    for number, before in signals.items():
        if signal.getsignal(number) is not before:
            signal.signal(number, before)
