"""The history checker: pure functions from records and stored frames to anomalies; a correct broker has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from faults.checker.anomaly import Anomaly, Case, Check, Kind
from faults.checker.images import check_images
from faults.checker.listings import check_listings
from faults.checker.order import check_order
from faults.checker.puts import check_puts
from faults.checker.queue_offsets import check_queue_offsets
from faults.checker.reads import check_reads
from faults.checker.transactions import check_transactions

CHECKS: Final[tuple[Check, ...]] = (
    check_images,
    check_puts,
    check_order,
    check_queue_offsets,
    check_reads,
    check_transactions,
    check_listings,
)
LINES_MAX: Final = 40


def check(case: Case) -> list[Anomaly]:
    """Check a history against the stored frames at its end. All operations must have ended, or must be unable to end
    later.
    """
    odd = [Anomaly(Kind.ODD, f"{kind}: {text}") for kind, text in case.history.oddities]
    return odd + [anomaly for find in CHECKS for anomaly in find(case)]


def lines_about(anomaly: Anomaly, case: Case) -> list[str]:
    """Return the lines of the history and of the stored frames that belong to an anomaly, at most ``LINES_MAX``."""
    lines = list(_lines(anomaly, case))
    rest = len(lines) - LINES_MAX
    return lines[:LINES_MAX] + ([f"... and {rest} more"] if rest > 0 else [])


def _lines(anomaly: Anomaly, case: Case) -> Iterator[str]:
    keys = set(anomaly.keys)
    record = case.history.transactions.get(anomaly.transaction or "")
    if record is not None:
        yield f"transaction {record.key}"
        yield from map(str, record.steps)
        yield from map(str, record.puts)
        yield from (
            f"[{listing.started}-{listing.ended}] listed as prepared: {record.key in listing.keys}"
            for listing in case.history.listings
            if listing.unique == record.unique
        )
        keys.update(message.key for put in record.puts for message in put.messages)
    yield from (str(put) for put in case.history.puts if any(message.key in keys for message in put.messages))
    for image in case.image.values():
        yield from (f"stored in {image.partition_key}: {frame}" for frame in image.frames if frame.key in keys)
