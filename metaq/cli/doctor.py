"""``metaq doctor``: checks a cluster, and prints one line for each check."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaq.cli.profile import Profile

TIMEOUT_S: Final = 5.0
"""Default of ``--timeout``, the time limit of each step."""

_WIDTH: Final = 45
"""Width of the second column; a longer entry shifts the rest of its line."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor``."""
    parser = commands.add_parser("doctor", help="look at each server of the cluster: is everything all right?")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, profile: Profile) -> int:
    status = 0
    with profile.connect() as mq:
        for finding in mq.checkup(TIMEOUT_S if profile.timeout is None else profile.timeout):
            if options.json:
                print(json.dumps(asdict(finding)), flush=True)
            else:
                print(f"{finding.level:<4}  {finding.what:<{_WIDTH}}  {finding.detail}", flush=True)
            status |= finding.level == "fail"
    return status
