"""The command ``metaq-spark`` in the test's process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from cli_commands import run_command

from metaq_spark.cli import main


@pytest.fixture
def command() -> Callable[..., tuple[int, str, str]]:
    return partial(run_command, main)
