"""The ``metaq-spark`` command: tools for operators of the connector and its queries, outside of Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import metaq
from metaq.cli.parser import SuggestingParser
from metaq.errors import MetaqError


@dataclass(frozen=True, slots=True)
class _Command:
    """A row: the name, its help, and the module whose ``add_arguments`` fills its parser.

    The module is imported when the command is asked for: some need packages that only ``[spark]`` installs, and
    ``--help`` works without them.
    """

    name: str
    help: str
    module: str


COMMANDS: Final = (
    _Command("checkpoint", "look at a stopped query's checkpoint, or move the query", "metaq_spark.checkpoint.command"),
    _Command("diagnose", "why does a query not move: a verdict, and what to do", "metaq_spark.diagnosis.command"),
    _Command(
        "compile",
        "compile the loops of the connector now: when it is installed, or an image is built",
        "metaq_spark.columns.compiling",
    ),
    _Command("jobs", "list the jobs for spark-submit, or say where one is", "metaq_spark.finished_jobs"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 1 refused or failed, 2 wrong arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = SuggestingParser(prog="metaq-spark", description="Looks after the connector and its queries.")
    parser.add_argument("--version", action="version", version=f"metaq-spark {metaq.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    try:
        for row in COMMANDS:
            command = commands.add_parser(row.name, help=row.help)
            if given[:1] == [row.name]:
                import_module(row.module).add_arguments(command)
    except ModuleNotFoundError as error:
        return _complain(f"{error}; install it with: pip install 'metaq-spark[spark]'", 1)
    return _run(parser, parser.parse_args(given))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if "command" not in options:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = options.command(options)
        return status
    except (MetaqError, OSError) as error:
        return _complain(error, 1)
    except ValueError as error:
        return _complain(error, 2)


def _complain(error: object, status: int) -> int:
    sys.stderr.write(f"metaq-spark: {error}\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
