"""``metaq-spark diagnose``: arguments in, a verdict as text or JSON out; the exit status says which."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Final

from metaq.cli.colours import is_terminal
from metaq.errors import MetaqError
from metaq_spark.checkpoint.command import add_brokers, raw_options
from metaq_spark.diagnosis.diagnosis import DEADLINE_S, RESTING, SAMPLE_S, Watch
from metaq_spark.diagnosis.report import Diagnosis
from metaq_spark.diagnosis.verdict import EXIT_CODES

WATCH_S: Final = 5.0
SECONDS_MAX: Final = 3600.0


def add_arguments(diagnose: argparse.ArgumentParser) -> None:
    """Add the arguments of ``metaq-spark diagnose``."""
    codes: dict[int, list[str]] = {}
    for verdict, code in EXIT_CODES.items():
        codes.setdefault(code, []).append(verdict)
    diagnose.epilog = "Exit status: " + "; ".join(f"{code} {', '.join(names)}" for code, names in codes.items())
    diagnose.add_argument("folder", metavar="CHECKPOINT", help="the checkpointLocation: a local path or file: URI")
    diagnose.add_argument(
        "--progress",
        metavar="FILE|URL",
        help="what the driver reported: a file or URL of a ProgressListener, progress as JSON, or the driver's log",
    )
    add_brokers(diagnose, required=False)
    diagnose.add_argument("--ui", metavar="URL", help="Spark's UI, such as http://127.0.0.1:4040")
    diagnose.add_argument(
        "--watch", nargs="?", type=_seconds, const=WATCH_S, metavar="SECONDS", help="look again and again (default 5)"
    )
    diagnose.add_argument(
        "--sample", type=_seconds, default=SAMPLE_S, metavar="SECONDS", help="time between the two looks (2)"
    )
    diagnose.add_argument(
        "--deadline",
        type=_seconds,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="longest wait for a server (10)",
    )
    diagnose.add_argument("--json", action="store_true", help="answer in JSON; with --watch, a line for each look")
    diagnose.set_defaults(command=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> int:
    options = raw_options(arguments) or None
    watch = Watch(
        arguments.folder, options=options, progress=arguments.progress, ui=arguments.ui, deadline_s=arguments.deadline
    )
    if arguments.watch is not None:
        return _watch(watch, arguments)
    found = watch.look()
    if found.verdict not in RESTING:
        time.sleep(arguments.sample)
        found = watch.look()
    _print(found, arguments)
    return found.exit_code


def _watch(watch: Watch, arguments: argparse.Namespace) -> int:
    """Print the verdict at each look, until Ctrl-C."""
    code = 0
    try:
        while True:
            try:
                found = watch.look()
            except (MetaqError, OSError) as error:  # the folder may come back
                sys.stderr.write(f"metaq-spark: {error}\n")
                code = 1
            else:
                if not arguments.json and is_terminal(sys.stdout):
                    sys.stdout.write("\x1b[H\x1b[J")
                _print(found, arguments)
                code = found.exit_code
            sys.stdout.flush()
            time.sleep(arguments.watch)
    except KeyboardInterrupt:
        return code


def _print(found: Diagnosis, arguments: argparse.Namespace) -> None:
    sys.stdout.write((json.dumps(found.tree()) if arguments.json else found.text()) + "\n")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0 to {SECONDS_MAX:g}")
    return value
