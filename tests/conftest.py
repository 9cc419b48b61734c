"""Loads every theme of fixtures: the files fix_*.py beside this one; and keeps the log as each test found it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Undo what a test that runs a command in this process did to the root logger: its level and its stream."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler and each not in handlers]:
        root.removeHandler(handler)
