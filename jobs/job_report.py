"""Reports the progress of a job on standard error: a line every few seconds, and one at its end.

    topic_to_parquet: 1200000 rows in, 1200000 rows out, 10 s
    topic_to_parquet: done: 2400000 rows in, 2400000 rows out, 19.4 s

Rows out were written to the target. A task that Spark ran twice may count twice.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

EVERY_S: Final = 5.0
POLL_S: Final = 1.0
"""Spark keeps the last 100 micro-batches, so asking once a second is enough to miss none."""
OBSERVED: Final = "rows_out"


def count_rows_out(frame: DataFrame) -> DataFrame:
    """Return ``frame`` with a counter, for a query that ``JobReport.follow`` follows."""
    return frame.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))


def append(frame: DataFrame, options: Mapping[str, Any]) -> None:
    frame.write.format("metaq").mode("append").options(**options).save()


class JobReport:
    """The counts of one run; a context manager around the work."""

    def __init__(self, name: str, every_s: float = EVERY_S) -> None:
        self._name, self._every_s = name, every_s
        self.rows_in = self.rows_out = 0
        self._since_s = time.monotonic()
        self._over = threading.Event()
        self._lines = threading.Thread(target=self._print_progress, name="job-report", daemon=True)

    def __enter__(self) -> JobReport:
        self._since_s = time.monotonic()
        self._lines.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._lines.join()
        end = "done" if kind is None else "ended early"
        self._print(f"{end}: {self._counts()}, {time.monotonic() - self._since_s:.1f} s")

    def write(
        self, read: DataFrame, transform: Callable[[DataFrame], DataFrame], save: Callable[[DataFrame], None]
    ) -> None:
        """Read, transform and save in a batch, and count the rows on both sides."""
        before, after = Observation(), Observation()
        rows = F.count(F.lit(1)).alias("rows")
        save(transform(read.observe(before, rows)).observe(after, rows))
        self.rows_in += before.get["rows"]
        self.rows_out += after.get["rows"]

    def follow(self, query: StreamingQuery, rows_out: Callable[[], int] | None = None) -> None:
        """Wait for the end of ``query``. ``rows_out`` counts the rows that a ``foreachBatch`` wrote.

        Raises:
            StreamingQueryException: The query failed.
        """
        seen: dict[int, tuple[int, int]] = {}
        over = False
        while not over:
            try:
                over = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]  # Spark takes fractions
            finally:
                self._add(query, seen)
                if rows_out is not None:
                    self.rows_out = rows_out()

    def _add(self, query: StreamingQuery, seen: dict[int, tuple[int, int]]) -> None:
        """Add the micro-batches that have ended. Spark reports an empty one repeatedly with the same number."""
        for progress in query.recentProgress:
            observed = progress.observedMetrics.get(OBSERVED)
            counts = progress.numInputRows, 0 if observed is None else observed["rows"]
            before = seen.get(progress.batchId, (0, 0))
            seen[progress.batchId] = max(before[0], counts[0]), max(before[1], counts[1])
            self.rows_in += seen[progress.batchId][0] - before[0]
            self.rows_out += seen[progress.batchId][1] - before[1]

    def _print_progress(self) -> None:
        while not self._over.wait(self._every_s):
            self._print(f"{self._counts()}, {time.monotonic() - self._since_s:.0f} s")

    def _counts(self) -> str:
        return f"{self.rows_in} rows in, {self.rows_out} rows out"

    def _print(self, line: str) -> None:
        print(f"{self._name}: {line}", file=sys.stderr, flush=True)
