"""``python -m faults.put_back``: parses the arguments, runs the rounds, prints the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from faults import console
from faults.console import count, report, run
from faults.put_back.rounds import BROKERS, PutBackRun, schedule

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return run("put back", options, partial(_run, options))


def _run(options: argparse.Namespace, base: Path) -> None:
    formats = [options.format] if options.format else list(BROKERS)
    spark = session()
    try:
        for number, name in enumerate(formats):
            put_back = PutBackRun(spark, base / name, options.seed, name, report)
            put_back.run(schedule(name, options.rounds // len(formats) + (number < options.rounds % len(formats))))
            for line in put_back.figures.lines():
                report(f"format {name}: {line}")
    finally:
        spark.stop()


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF")
    builder = builder.config("spark.python.authenticate.socketTimeout", "10m")  # workers of a busy machine start late
    return builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = console.parser(
        "faults.put_back", "Restore the brokers of an exactly-once query from older copies, and check that it notices."
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"default {ROUNDS}, divided among the formats")
    parser.add_argument("--format", choices=list(BROKERS), help="only this one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
