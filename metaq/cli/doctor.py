"""``metaq doctor``: checks a cluster, and prints one line for each check."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from metaq.cli.colours import GREEN, RED, YELLOW, painted
from metaq.cli.command import JSON, command

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile

TIMEOUT_S: Final = 5.0
"""Default of ``--timeout``, the time limit of each step."""

_COLOURS: Final = {"ok": GREEN, "warn": YELLOW, "fail": RED}
_WIDTH: Final = 45
"""Width of the second column; a longer entry shifts the rest of its line."""


@command(
    "doctor",
    "look at each server of the cluster: is everything all right?",
    JSON,
    examples=("",),
    abilities=(("`doctor`", "yes", "without clock", "yes"),),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    status = 0
    with profile.connect() as mq:
        for finding in mq.checkup(TIMEOUT_S if profile.timeout is None else profile.timeout):
            if options.json:
                print(json.dumps(asdict(finding)), flush=True)
            else:
                level = painted(f"{finding.level:<4}", _COLOURS[finding.level], sys.stdout)
                print(f"{level}  {finding.what:<{_WIDTH}}  {finding.detail}", flush=True)
            status |= finding.level == "fail"
    return status
