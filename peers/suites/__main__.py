"""``python -m peers.suites [SUITE ...] --suites FOLDER``, which ``make test-peer-suites`` runs.

The original servers listen on every address, and the suites expect fixed ports, so everything runs in a network
namespace (``peers.isolation``). The exit status is 0 if every test had the expected outcome, 1 if one did not, 2 if
something is missing.
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
from peers.suites.admin_commands import COMMANDS
from peers.suites.folder import CompiledSuite, compiled_suite
from peers.suites.junit import console
from peers.suites.results import Exceptions, Results, read_exceptions, surprises, table
from peers.suites.servers import SUITES, Job, Suite

MODULE: Final = "peers.suites"
EXCEPTIONS: Final = Path(__file__).with_name("exceptions.toml")


def run_suite(suite: Suite, asked: argparse.Namespace, folder: Path) -> dict[str, Results]:
    """Run a suite on all of its sides, one after the other.

    Raises:
        Unavailable: The suite is not in the folder.
    """
    compiled = compiled_suite(asked.suites, suite.folder) if suite.folder else CompiledSuite(suite.name, folder)
    classes = [each for each in compiled.test_classes() if suite.has(each) and _is_wanted(each, asked.only)]
    sides = [side for side in suite.sides if not asked.side or side in asked.side]
    jar = console()
    return {
        side: suite.run(Job(compiled, side, classes, fresh(folder / f"{suite.name}-{number}"), jar))
        for number, side in enumerate(sides)
    }


def _is_wanted(name: str, only: Sequence[str] | None) -> bool:
    return only is None or any(text in name for text in only)


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
            expected = exceptions.of(side)
            if asked.only:
                expected = {name: why for name, why in expected.items() if name in results}
            surprising += surprises(suite.name, side, results, expected)
    for each in surprising:
        print(each)
    return 1 if surprising else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="The peers' own suites: docs/testing.md.")
    parser.add_argument("names", nargs="*", metavar="SUITE", help=", ".join(each.name for each in SUITES))
    parser.add_argument("--suites", type=Path, metavar="FOLDER", help="the compiled suites (or the variable SUITES)")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="classes of tests whose names have this text, or one of several"
    )
    sides = sorted({side for suite in SUITES for side in suite.sides})
    parser.add_argument("--side", action="append", choices=sides, help="one of the sides, as they are printed")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


def _fault(asked: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or ``None``."""
    wrong = [each for each in asked.names if each not in {suite.name for suite in SUITES}]
    if wrong:
        return f"{wrong[0]}: suites are {', '.join(each.name for each in SUITES)}"
    if all(suite.folder is None for suite in SUITES if suite.name in asked.names) and asked.names:
        return None
    if asked.suites is None or not asked.suites.is_dir():
        where = "SUITES names no folder" if asked.suites is None else f"{asked.suites} is no folder"
        return f"{where}; it has the compiled suites, see docs/testing.md"
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the suites; return the exit status."""
    asked = _parser().parse_args(arguments)
    asked.suites = asked.suites or (Path(os.environ["SUITES"]) if os.environ.get("SUITES") else None)
    if fault := _fault(asked):
        print(f"{MODULE}: {fault}", file=sys.stderr)
        return 2
    try:
        if not asked.inside:
            console()
            for version in COMMANDS:
                release(version)
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
