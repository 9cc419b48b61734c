"""``python -m faults.put_back``: parses the arguments, runs the rounds, prints the results."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from faults.broker_process import BrokerTrouble
from faults.console import EXIT_OK, complain, count, report
from faults.put_back.rounds import BROKERS, PromiseBroken, PutBackRun, schedule
from metaq.errors import MetaqError

ROUNDS: Final = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 no guarantee was broken, 1 one was, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    base = Path(options.folder or tempfile.mkdtemp(prefix="metaq-put-back-"))
    report(f"put back: seed {options.seed}, data in {base}")
    formats = [options.format] if options.format else list(BROKERS)
    spark = session()
    try:
        for number, name in enumerate(formats):
            run = PutBackRun(spark, base / name, options.seed, name, report)
            run.run(schedule(name, options.rounds // len(formats) + (number < options.rounds % len(formats))))
            for line in run.figures.lines():
                report(f"format {name}: {line}")
    except (PromiseBroken, BrokerTrouble, MetaqError) as trouble:
        return complain("put back", [str(trouble), f"kept: {base}"], options.seed)
    finally:
        spark.stop()
    if not options.folder:
        shutil.rmtree(base)
    report("put back: every promise was kept")
    return EXIT_OK


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF")
    return builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults.put_back",
        description="Put the brokers of an exactly-once query back to older copies and see that it notices.",
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"default {ROUNDS}, shared out over the formats")
    parser.add_argument("--format", choices=list(BROKERS), help="only this one")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="default: random, printed")
    parser.add_argument("--folder", help="put data folders here (default: a temporary folder, removed if all is well)")
    return parser
