"""Loads the fixtures in fix_*.py beside this file, keeps the process as each test found it, and orders the run."""

import gc
import itertools
import logging
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import FAST, examples
from hypothesis import settings

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


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


settings.register_profile("usual", settings.get_profile("default"), max_examples=examples(100))
settings.load_profile("usual")

LEFT_TO_THE_COLLECTOR = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""PySpark leaves sockets to the garbage collector. In all tests that do not start Spark, both warnings are errors."""


def _leaves_sockets(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None


def pytest_xdist_auto_num_workers() -> int | None:
    """Use more test processes than there are cores: most of their time they wait for brokers, Spark and the disk.

    Tests of ``make test-fast`` wait for nothing.
    """
    return None if FAST else len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow tests with Spark to leave sockets, and run the files with most long tests first.

    Test processes take files in order, and none is to end with a long one.
    """
    long_tests: Counter[Path] = Counter()
    for item in items:
        long_tests[item.path] += 5 * bool(item.get_closest_marker("slow")) + bool(item.get_closest_marker("spark"))
        if _leaves_sockets(item):
            for left in LEFT_TO_THE_COLLECTOR:
                item.add_marker(pytest.mark.filterwarnings(left))
    items.sort(key=lambda item: -long_tests[item.path])


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all garbage collections: looking through them takes half a second each time."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect what a test has left before the next one, if that must not leave anything."""
    if _leaves_sockets(item) and (nextitem is None or not _leaves_sockets(nextitem)):
        gc.collect()


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what consumers without ZooKeeper save on this machine apart: it is found by a broker's port, and another
    test's broker may have had the same one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{next(_numbers)}"))


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """Undo what a test that runs a command in this process did to signals, and to level and stream of the root log."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler and each not in handlers]:
        root.removeHandler(handler)
    for number, before in signals.items():
        if signal.getsignal(number) is not before:
            signal.signal(number, before)
