"""``metaq-spark jobs``: the installed jobs for ``spark-submit``.

Source: docs/jobs.md.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Final

JOBS: Final = (
    "lines_to_topic",
    "topic_to_parquet",
    "error_rates",
    "mirror_topics",
    "replay_range",
    "archive_topics",
    "restore_topic",
)
_HERE: Final = Path(__file__).parent


def jobs_folder() -> Path:
    """Return the folder of the jobs: in an installation beside this module, in a clone at its top."""
    installed = _HERE / "jobs"
    return installed if installed.is_dir() else _HERE.parent / "jobs"


def add_arguments(jobs: argparse.ArgumentParser) -> None:
    """Add the arguments of ``metaq-spark jobs``."""
    jobs.add_argument("name", nargs="?", choices=JOBS, metavar="NAME", help=", ".join(JOBS))
    jobs.set_defaults(command=_jobs)


def _jobs(arguments: argparse.Namespace) -> int:
    folder = jobs_folder()
    if arguments.name is not None:
        print(folder / f"{arguments.name}.py")
        return 0
    for name in JOBS:
        summary = (ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) or "").partition("\n")[0]
        print(f"{name:17} {summary}")
    sys.stderr.write('\nRun one with: spark-submit "$(metaq-spark jobs NAME)" --help\n')
    return 0
