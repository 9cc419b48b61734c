"""Loads the fixtures in fix_*.py beside this file, keeps the log as each test found it, and orders the run."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))


SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false"
"""Most of a test's JVM is its start: no time for the optimising compiler, no threads for the garbage collector."""

for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, SHORT_LIVED_JVM)


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
