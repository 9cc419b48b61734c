"""Loads the fixtures in fix_*.py beside this file, keeps the log as each test found it, and orders the run."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with long tests first: processes take files in order, and none is to end with a long one."""
    long_files = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path not in long_files)


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Undo what a test that runs a command in this process did to the root logger: its level and its stream."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler and each not in handlers]:
        root.removeHandler(handler)
