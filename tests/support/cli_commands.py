"""Arguments for every command of ``metaq``, by the names in its parser, and servers that behave badly.

The examples are those of the commands' rows. One may have ``{folder}``, a folder of the test's, and ``{cluster}``,
the cluster that it talks to.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest
from checkpoints import offset, query

from metaq.cli.commands import all_commands
from metaq.cli.completion import words_of
from metaq.cli.main import main, whole_parser

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {name: row.examples for name, row in all_commands().items()}
LOCAL: Final = ("completion bash", "completion zsh", "completion fish")
"""Examples that ask no server."""


def run_command(main: Callable[[list[str]], int], *arguments: object) -> tuple[int, str, str]:
    """Run a command that prints text in this process; return its status, output and errors."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
    return status, out.getvalue(), error.getvalue()


class CapturedCommand:
    """Runs ``metaq`` in this process, with ``first`` before all other arguments."""

    def __init__(self, captured: pytest.CaptureFixture[bytes], *first: str) -> None:
        self._first, self._captured = first, captured

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = main([*self._first, *arguments])
        out, err = self._captured.readouterr()
        return status, out.decode(), err.decode()

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        status, out, err = self(*arguments, "--json")
        assert (status, err) == (0, ""), err or out
        return [json.loads(line) for line in out.splitlines()]


def commands() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Each command of the parser, and the values allowed for those of its arguments that have such."""
    top, *others = list(words_of(whole_parser()))
    choices = {one.path[0]: tuple(kind for kind in one.arguments if isinstance(kind, tuple)) for one in others}
    assert set(choices) == set(top.commands)
    return choices


def examples(*names: str) -> list[str]:
    """All examples, or those of the commands named, as command lines."""
    return [f"{name} {rest}".strip() for name in names or EXAMPLES for rest in EXAMPLES[name]]


def argument_list(line: str, cluster: str, folder: Path) -> list[str]:
    """What to call ``main`` with for an example."""
    return ["-c", cluster, *(word.format(cluster=cluster, folder=folder) for word in line.split())]


def write_files(folder: Path, partition: str) -> None:
    """The files that examples name: a line of JSON, and a Spark query that has read a message of ``partition``."""
    (folder / "lines").write_text('{"value": "x"}\n')
    query(folder / "query", offset(t={partition: 1}))


def hang(connection: socket.socket) -> None:
    """Say nothing."""


def close_at_once(connection: socket.socket) -> None:
    connection.close()


def answer_malformed(connection: socket.socket) -> None:
    """Answer, whatever is asked, what is no frame of any protocol, and go."""
    with connection:
        connection.settimeout(5.0)
        connection.recv(1 << 16)
        connection.sendall(b"\xff\xfeHTTP/1.1 418 \x00nonsense\r\n\r\n" * 8)
