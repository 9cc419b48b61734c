"""The demo behind ``make demo``: lines of text pass through the broker and Spark and must come out unchanged.

    input ─> topic "lines" ─> Structured Streaming ─> topic "copied" ─> compared with the input, byte for byte
                                                                     └> Structured Streaming ─> table of error rates

With ``--protocol rocketmq`` Spark reads and writes over RocketMQ's protocol; the comparison reads the same log over
MetaQ's.

It starts its own broker on a free port, with a temporary folder, and stops everything at the end, also when it is
interrupted or fails. Exit status: 0 when every byte came through, 1 when not, 2 for a wrong input.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from demo_check import Comparison, Count, count
from demo_pipeline import COPIED, LINES, PARTITIONS, Input, Pipeline
from demo_protocols import PROTOCOLS
from demo_stage import Interrupted, StageFailed, obey_signals, running_broker, spark_session, temporary_folder
from lines_to_topic import list_files
from log_generator import log_lines
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from metaq_spark.diagnosis.listener import ProgressListener

GENERATED_LINES, SEED = 300_000, 7
PROGRESS_INTERVAL_S, QUIET_INTERVAL_S = 1.0, 5
COMPONENTS_SHOWN = 10
LOG_LINES_SHOWN = 30
LINES_FOR_A_RATE = 50_000
"""With fewer lines, a rate only shows how long Spark takes to plan a query."""


def main() -> int:
    given = parse_arguments()
    logging.getLogger().addHandler(logging.NullHandler())  # py4j logs each Ctrl-C at length
    obey_signals()
    try:
        with temporary_folder() as folder:
            return perform(find_input(given.input, folder), folder, given.protocol, given.dashboard)
    except Interrupted as interrupted:
        print("\nInterrupted. The broker and Spark are stopped.", file=sys.stderr)
        return 128 + interrupted.number
    except (FileNotFoundError, StageFailed) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2 if isinstance(problem, FileNotFoundError) else 1


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send lines through the broker and Spark and check every byte.")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="metaq", help="what Spark speaks with the broker")
    parser.add_argument("--dashboard", action="store_true", help="show it in a browser, until Ctrl-C")
    parser.add_argument("input", nargs="?", help="a file, or a folder of files (default: generated log lines)")
    return parser.parse_args(arguments)


def find_input(source: str | None, folder: Path) -> Input:
    """Find and count the files of ``source``, or generate one.

    Raises:
        FileNotFoundError: There is no file.
    """
    if source is None:
        source, name = str(folder / "generated.log"), f"generated log lines, seed {SEED}"
        with open(source, "wb") as output:
            output.writelines(log_lines(GENERATED_LINES, SEED))
    else:
        name = source
    files = tuple(Path(path) for path, _ in list_files(source))
    return Input(name, source, files, count(files))


def perform(given: Input, folder: Path, protocol: str, dashboard: bool = False) -> int:
    """Run every step and show its result; return the exit status. With ``dashboard``, the broker runs until Ctrl-C."""
    say("input", f"{counted(given.available)} ({given.name})")
    with running_broker(folder, PARTITIONS, dashboard) as addresses:
        address = addresses.rocketmq if protocol == "rocketmq" else addresses.metaq
        say("broker", f"{address}, {PARTITIONS} partitions a topic")
        if addresses.dashboard is not None:
            say("dashboard", addresses.dashboard)
        try:
            with spark_session(folder) as spark:
                say("Spark", f"{spark.version} on two cores of this machine")
                if addresses.dashboard is not None:
                    spark.streams.addListener(ProgressListener(f"{addresses.dashboard}v1/queries/events", spark=spark))
                pipeline = Pipeline(spark, addresses.metaq, PROTOCOLS[protocol](addresses), folder, given)
                status = run_steps(pipeline, given)
                if addresses.dashboard is not None:
                    say("dashboard", f"{addresses.dashboard}; Ctrl-C ends it")
                    threading.Event().wait()
                return status
        except (PySparkException, Py4JError):
            print_tail(folder / "spark.log")
            raise


def run_steps(pipeline: Pipeline, given: Input) -> int:
    headline("Warming up: Spark starts its Python processes, and they compile what they need")
    timed(pipeline.warm_up)
    headline(f'Sending every line to the topic "{LINES}"')
    sending_s = timed(pipeline.send, lambda: pipeline.share_in(LINES))
    headline(f'Streaming "{LINES}" to "{COPIED}"')
    streaming_s = timed(pipeline.stream, lambda: pipeline.share_in(COPIED))
    headline(f'Streaming "{COPIED}" into a table of error rates')
    timed(pipeline.count_errors)
    headline(f'Reading "{COPIED}" back and comparing it with the input')
    comparison, table = pipeline.compare(), pipeline.error_table()
    print_table(table)
    print_result(comparison, {"sending": sending_s, "streaming": streaming_s})
    everything_counted = sum(row.lines for row in table) == given.available.lines
    return 0 if comparison.equal and comparison.sent == given.available and everything_counted else 1


def timed(work: Callable[[], None], share: Callable[[], float] | None = None) -> float:
    """Do the work and show its progress; return its duration in seconds.

    The work stays in this thread: Spark knows its active session by thread, and Ctrl-C is delivered here.
    """
    started, finished = time.monotonic(), threading.Event()

    def report_progress() -> None:
        while not finished.wait(PROGRESS_INTERVAL_S):
            show_progress(time.monotonic() - started, share() if share else None)

    reporter = threading.Thread(target=report_progress, daemon=True)
    try:
        reporter.start()  # inside, because Ctrl-C may come at any moment
        work()
    finally:
        finished.set()
        if reporter.is_alive():
            reporter.join()
    took_s = time.monotonic() - started
    show_progress(took_s, share() if share else None, last=True)
    return took_s


def show_progress(after_s: float, share: float | None, last: bool = False) -> None:
    """Show the progress: on a terminal one line that changes, elsewhere a line from time to time."""
    text = f"  {after_s:5.1f} s" + ("" if share is None else f"  {share:6.1%}")
    if sys.stdout.isatty():
        print(f"\r{text}", end="\n" if last else "", flush=True)
    elif last or round(after_s) % QUIET_INTERVAL_S == 0:
        print(text, flush=True)


def headline(text: str) -> None:
    print(f"\n{text}", flush=True)


def say(what: str, value: str) -> None:
    print(f"  {what:<11}{value}", flush=True)


def counted(available: Count) -> str:
    return f"{available.lines:,} lines, {available.byte_count:,} bytes"


def print_table(rows: Sequence[Row]) -> None:
    """Print the components with the highest error rates."""
    print(f"\n  {'component':<32}{'lines':>10}{'errors':>10}{'error rate':>13}")
    for row in rows[:COMPONENTS_SHOWN]:
        print(f"  {row.component:<32}{row.lines:>10,}{row.errors:>10,}{row.errors / row.lines:>13.1%}")


def print_result(result: Comparison, seconds: dict[str, float]) -> None:
    print()
    for what, took_s in seconds.items():
        rate = f", {result.sent.lines / took_s:,.0f} lines/s, {result.sent.byte_count / took_s / 1e6:,.1f} MB/s"
        say(what, f"{took_s:.1f} s{rate if result.sent.lines >= LINES_FOR_A_RATE else ''}")
    say("sent", counted(result.sent))
    say("received", counted(result.received))
    print()
    print(
        f"DIFFERENT: {result.difference}" if result.difference else "Every line came through, in order, byte for byte."
    )


def print_tail(log: Path) -> None:
    lines = log.read_text(errors="replace").splitlines()
    print("\nThe end of Spark's log:", *lines[-LOG_LINES_SHOWN:], sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
