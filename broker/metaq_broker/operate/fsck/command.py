"""``metaq-broker fsck``: checks every message on the disk and reports problems; ``--repair`` repairs them.

Exit status: 0 no problems, 1 problems (also repaired ones), 2 the check was not possible, or the disk failed in a
repair.

Source: docs/administration.md, "Checking the data".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from metaq_broker.clock import Clock
from metaq_broker.log.files.errors import StoreLocked
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.loading import LogSettings
from metaq_broker.log.partitions.log_store import TRANSACTIONS_NAME
from metaq_broker.operate.config.configuration import load
from metaq_broker.operate.fsck.checker import Checker, CheckTask
from metaq_broker.operate.fsck.report import EXIT_UNCHECKED, as_json, as_text, exit_status


def add_fsck_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    fsck = commands.add_parser("fsck", help="check the data of a broker, and repair it")
    where = fsck.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, metavar="DIR", help="the broker's data folder (dataPath)")
    where.add_argument("-f", "--file", type=Path, help="the broker's server.ini, which names its folders")
    fsck.add_argument("--topic", action="append", metavar="T", help="only this topic; may be given several times")
    fsck.add_argument("--repair", action="store_true", help="put right what is wrong; the broker must be stopped")
    fsck.add_argument("--json", action="store_true", help="machine-readable output")
    fsck.set_defaults(command=run_fsck, log_level="error", log_format="text")


def run_fsck(options: argparse.Namespace) -> int:
    """Check as the arguments say, print the findings; return the exit status.

    Raises:
        ConfigError: The configuration file is wrong.
    """
    terminal = sys.stderr if sys.stderr.isatty() else None
    try:
        findings = Checker(Files(), Clock(), _task(options), terminal).run()
    except StoreLocked as locked:
        return _refuse(f"{locked.path} cannot be repaired: process {locked.owner} is using it; stop that broker first")
    except OSError as error:
        return _refuse(f"{error.filename or 'the data'}: {error.strerror or error}")
    lines = [json.dumps(as_json(findings), indent=2)] if options.json else as_text(findings)
    try:
        for line in lines:
            print(line.encode(errors="backslashreplace").decode())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe; nothing must be flushed at the exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_status(findings)


def _task(options: argparse.Namespace) -> CheckTask:
    topics = frozenset(options.topic or ())
    if options.file is None:
        data = options.data.expanduser().absolute()
        return CheckTask([data], data / TRANSACTIONS_NAME, LogSettings(), topics, options.repair)
    config = load(options.file)
    system = config.system
    first, *others = map(Path, config.data_paths())
    folders = [first, *(path for path in others if path.is_dir())]  # created with their topic's first message
    settings = LogSettings(system.segment_bytes_max, system.index_interval_bytes)
    return CheckTask(folders, Path(system.data_log_path) / TRANSACTIONS_NAME, settings, topics, options.repair)


def _refuse(sentence: str) -> int:
    print(f"metaq-broker: {sentence}", file=sys.stderr)
    return EXIT_UNCHECKED
