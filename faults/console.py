"""The command line of the programs ``python -m faults...``: their common arguments, and how they report."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerTrouble
from metaq.errors import MetaqError

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class PromiseBroken(Exception):
    """The program has found a violation. ``report`` lists it in lines, ``folder`` has the data."""

    def __init__(self, folder: Path, report: Sequence[str]) -> None:
        self.folder, self.report = folder, report
        super().__init__(f"{len(report)} lines of findings, data in {folder}: {report[0]}")


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for ``python -m NAME`` with the arguments that ``run`` needs."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    parser.add_argument("--folder", help="put the data here (default: a temporary folder, removed on success)")
    return parser


class _Stopped(BaseException):
    """The program was told to stop, by the signal with this ``number``."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise ``_Stopped`` in the block at the first signal, also if the shell has had SIGINT ignored, as it does for
    processes in the background; further ones are ignored.
    """

    def stop(number: int, _frame: object) -> None:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    before = {each: signal.signal(each, stop) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def run(title: str, options: argparse.Namespace, work: Callable[[Path], None], *others: type[Exception]) -> int:
    """Run ``work`` in a folder, which is removed on success; return the exit status: 0 success, 1 a finding.

    Findings are ``PromiseBroken``, ``BrokerTrouble``, ``MetaqError`` and ``others``. At SIGTERM or SIGINT, ``work``
    ends by an exception, so that it undoes what it has done to this machine; the status is 128 and the signal's number.
    """
    findings: tuple[type[Exception], ...] = (BrokerTrouble, MetaqError, *others)
    base = Path(options.folder or tempfile.mkdtemp(prefix=f"metaq-{title.replace(' ', '-')}-"))
    report(f"{title}: seed {options.seed}, data in {base}")
    try:
        with _stopped_by_signals():
            work(base)
    except _Stopped as stopped:
        if not options.folder:
            shutil.rmtree(base, ignore_errors=True)
        report(f"{title}: stopped by {signal.Signals(stopped.number).name}")
        return 128 + stopped.number
    except PromiseBroken as broken:
        return complain(title, [*broken.report, f"kept: {broken.folder}"], options.seed)
    except findings as trouble:
        return complain(title, [str(trouble), f"kept: {base}"], options.seed)
    if not options.folder:
        shutil.rmtree(base)
    report(f"{title}: passed")
    return EXIT_OK


def report(line: str) -> None:
    """Print a line and flush."""
    print(line, flush=True)


def complain(title: str, lines: Sequence[str], seed: int) -> int:
    """Print the findings and how to reproduce them; return the exit status."""
    for line in lines:
        print(line, file=sys.stderr)
    print(f"{title}: failed; reproduce with --seed {seed}", file=sys.stderr)
    return EXIT_FOUND


def count(text: str) -> int:
    """Parse a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)
