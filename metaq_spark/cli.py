"""The ``metaq-spark`` command: tools for operators of the connector and its queries, outside of Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import metaq


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 1 refused or failed, 2 wrong arguments."""
    try:  # every installation has the command, but its packages are only in [spark]
        from metaq_spark.checkpoint.command import add_checkpoint_command, run, show_usage
        from metaq_spark.columns.compiling import add_compile_command
        from metaq_spark.finished_jobs import add_jobs_command
    except ModuleNotFoundError as error:
        sys.stderr.write(f"metaq-spark: {error}; install it with: pip install 'metaq-spark[spark]'\n")
        return 1
    parser = argparse.ArgumentParser(prog="metaq-spark", description="Looks after the connector and its queries.")
    parser.add_argument("--version", action="version", version=f"metaq-spark {metaq.__version__}")
    parser.set_defaults(command=lambda _: show_usage(parser))
    commands = parser.add_subparsers(metavar="COMMAND")
    add_checkpoint_command(commands)
    add_compile_command(commands)
    add_jobs_command(commands)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
