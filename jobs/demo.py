"""The demo behind ``make demo``: lines of text go through the broker and Spark and must come out as they went in.

    input ─> topic "lines" ─> Structured Streaming ─> topic "copied" ─> compared with the input, byte for byte
                                                   └> errors counted by component ─> a table

It starts a broker of its own on a free port, with a folder that is gone afterwards, and stops everything that it
started, also when it is interrupted or fails. Exit status: 0 when every byte came through, 1 when not, 2 for a wrong
input.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from demo_check import Comparison, Count, count
from demo_pipeline import COPIED, LINES, Input, Pipeline
from demo_stage import StageFailed, running_broker, spark_session, temporary_folder
from lines_to_topic import list_files
from log_generator import log_lines
from pyspark.errors import PySparkException
from pyspark.sql import Row

GENERATED_LINES, SEED = 300_000, 7
PARTITIONS = 2
PROGRESS_INTERVAL_S = 1.0
COMPONENTS_SHOWN = 10
LOG_LINES_SHOWN = 30


def main() -> int:
    source = parse_arguments().input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with temporary_folder() as folder:
            return perform(find_input(source, folder), folder)
    except KeyboardInterrupt:
        print("\nInterrupted. The broker and Spark are stopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    except (FileNotFoundError, StageFailed) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 2 if isinstance(problem, FileNotFoundError) else 1


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send lines through the broker and Spark and check every byte.")
    parser.add_argument("input", nargs="?", help="a file, or a folder of files (default: generated log lines)")
    return parser.parse_args(arguments)


def find_input(source: str | None, folder: Path) -> Input:
    """List and count the files of ``source``, or generate one.

    Raises:
        FileNotFoundError: There is no file.
    """
    if source is None:
        generated = folder / "generated.log"
        with generated.open("wb") as output:
            output.writelines(log_lines(GENERATED_LINES, SEED))
        source = str(generated)
    files = tuple(Path(path) for path, _ in list_files(source))
    return Input(source, files, count(files))


def perform(given: Input, folder: Path) -> int:
    """Run every step and show it; return the exit status."""
    say("input", f"{shown_count(given.held)} from {given.source}")
    with running_broker(folder, PARTITIONS) as address:
        say("broker", f"{address}, {PARTITIONS} partitions a topic, data in {folder}")
        try:
            with spark_session(folder) as spark:
                say("Spark", f"{spark.version}, two cores of this machine")
                return run_steps(Pipeline(spark, address, folder, given), given)
        except PySparkException:
            print_tail(folder / "spark.log")
            raise


def run_steps(pipeline: Pipeline, given: Input) -> int:
    headline(f'Sending every line to the topic "{LINES}"')
    sending_s = watch(pipeline.send, lambda: pipeline.share_in(LINES))
    headline(f'Streaming "{LINES}" to "{COPIED}", and counting errors on the way')
    streaming_s = watch(pipeline.stream, lambda: pipeline.share_in(COPIED))
    headline(f'Reading "{COPIED}" back and comparing it with the input')
    comparison, table = pipeline.compare(), pipeline.error_table()
    print_table(table)
    print_result(comparison, {"sending": sending_s, "streaming": streaming_s})
    everything_counted = sum(row.lines for row in table) == given.held.lines
    return 0 if comparison.equal and comparison.sent == given.held and everything_counted else 1


def watch(work: Callable[[], None], share: Callable[[], float]) -> float:
    """Do the work in another thread, tell once a second how far it is, and return the seconds that it took."""
    started = time.monotonic()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    try:
        working = executor.submit(work)
        while not concurrent.futures.wait([working], PROGRESS_INTERVAL_S).done:
            print(f"  {time.monotonic() - started:5.0f} s  {share():6.1%}", flush=True)
        working.result()
    finally:
        executor.shutdown(wait=False)
    return time.monotonic() - started


def headline(text: str) -> None:
    print(f"\n{text}", flush=True)


def say(what: str, value: str) -> None:
    print(f"  {what:<10}{value}", flush=True)


def shown_count(counted: Count) -> str:
    return f"{counted.lines:>11,} lines {counted.bytes:>15,} bytes"


def print_table(rows: Sequence[Row]) -> None:
    """The components with the highest error rates."""
    print(f"\n  {'component':<32}{'lines':>10}{'errors':>10}{'error rate':>13}")
    for row in rows[:COMPONENTS_SHOWN]:
        print(f"  {row.component:<32}{row.lines:>10,}{row.errors:>10,}{row.errors / row.lines:>13.1%}")


def print_result(result: Comparison, seconds: dict[str, float]) -> None:
    print()
    for what, took_s in seconds.items():
        rate = f"{result.sent.lines / took_s:,.0f} lines/s, {result.sent.bytes / took_s / 1e6:,.1f} MB/s"
        say(what, f"{took_s:.1f} s, {rate}")
    say("sent", shown_count(result.sent))
    say("received", shown_count(result.received))
    print()
    print(
        f"DIFFERENT: {result.difference}" if result.difference else "Every line came through, in order, byte for byte."
    )


def print_tail(log: Path) -> None:
    lines = log.read_text(errors="replace").splitlines()
    print("\nThe end of Spark's log:", *lines[-LOG_LINES_SHOWN:], sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
