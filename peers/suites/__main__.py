"""``python -m peers.suites [SUITE ...] --suites FOLDER``: what ``make test-peer-suites`` runs.

The servers of the originals listen on every address, and the suites expect fixed ports, so all runs in a network
namespace of its own (``peers.isolation``). The exit status is 0 if every test did what is expected of it, 1 if one did
not, 2 if something is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peers.isolation import isolated, raise_loopback
from peers.jvm import fresh
from peers.maven import Unavailable
from peers.rocketmq.jars import release
from peers.suites.folder import compiled_suite
from peers.suites.junit import console
from peers.suites.results import Exceptions, Results, read_exceptions, surprises, table
from peers.suites.servers import REAL_ROCKETMQ, SUITES, Job, Suite

MODULE: Final = "peers.suites"
EXCEPTIONS: Final = Path(__file__).with_name("exceptions.toml")


def run_suite(suite: Suite, asked: argparse.Namespace, folder: Path) -> dict[str, Results]:
    """Run a suite on all of its sides, one after the other.

    Raises:
        Unavailable: The suite is not in the folder.
    """
    compiled = compiled_suite(asked.suites, suite.folder)
    classes = [each for each in compiled.test_classes() if suite.has(each) and (asked.only or "") in each]
    sides = [side for side in suite.sides if not asked.side or side in asked.side]
    jar = console()
    return {
        side: suite.run(Job(compiled, side, classes, fresh(folder / f"{suite.name}-{number}"), jar))
        for number, side in enumerate(sides)
    }


def _run_all(asked: argparse.Namespace, folder: Path) -> int:
    known = read_exceptions(EXCEPTIONS)
    surprising: list[str] = []
    for suite in SUITES:
        if asked.names and suite.name not in asked.names:
            continue
        exceptions = known.get(suite.name, Exceptions())
        sides = run_suite(suite, asked, folder)
        print("\n".join(table(suite.name, sides, exceptions)), flush=True)
        for side, results in sides.items():
            expected = {
                name: why for name, why in exceptions.of(side).items() if (asked.only or "") in name.split(".")[0]
            }
            surprising += surprises(suite.name, side, results, expected)
    for each in surprising:
        print(each)
    return 1 if surprising else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="The peers' own suites: docs/testing.md.")
    parser.add_argument("names", nargs="*", metavar="SUITE", help=", ".join(each.name for each in SUITES))
    parser.add_argument("--suites", type=Path, metavar="FOLDER", help="the compiled suites (or the variable SUITES)")
    parser.add_argument("--only", metavar="TEXT", help="classes of tests whose names have this text")
    parser.add_argument("--side", action="append", help="one of the sides, as they are printed")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the suites; return the exit status."""
    asked = _parser().parse_args(arguments)
    named = asked.suites or (Path(os.environ["SUITES"]) if os.environ.get("SUITES") else None)
    wrong = [each for each in asked.names if each not in {suite.name for suite in SUITES}]
    if wrong:
        print(f"{MODULE}: {wrong[0]}: suites are {', '.join(each.name for each in SUITES)}", file=sys.stderr)
        return 2
    if named is None or not named.is_dir():
        where = "SUITES names no folder" if named is None else f"{named} is no folder"
        print(f"{MODULE}: {where}; it has the compiled suites, see docs/testing.md", file=sys.stderr)
        return 2
    asked.suites = named
    try:
        if not asked.inside:
            console()
            release(REAL_ROCKETMQ)
            command = [sys.executable, "-m", MODULE, "--inside", *arguments]
            return subprocess.run(isolated(command)).returncode
        raise_loopback()
        if asked.folder is not None:
            return _run_all(asked, asked.folder.resolve())
        with tempfile.TemporaryDirectory(prefix="metaq-suites-") as folder:
            return _run_all(asked, Path(folder))
    except Unavailable as error:
        print(f"{MODULE}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
