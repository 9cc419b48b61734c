"""The command ``metaq-spark`` in the test's process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaq_spark.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs it; returns its status, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return run
