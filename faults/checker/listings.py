"""Checks of prepared branches: RECOVER lists them until they are ended, not afterwards, and they can be ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import ENDING, NEVER, Listing, Outcome, Step, StepKind, TransactionRecord

UNKNOWN_BRANCH: Final = "has not been started"
"""Part of MetaQ's text of this refusal."""


class Span(NamedTuple):
    """The relevant stamps of a branch; ``NEVER`` for events that did not happen."""

    key: str
    prepare_tried: int
    prepared: int
    ending_tried: int
    ended: int


def check_listings(case: Case) -> list[Anomaly]:
    """Check every answer to RECOVER."""
    spans: dict[str | None, list[Span]] = defaultdict(list)
    for record in case.history.transactions.values():
        spans[record.unique].append(_span(record))
    found: list[Anomaly] = []
    for listing in case.history.listings:
        found += _branches(listing, spans[listing.unique])
        for key in sorted(listing.keys - case.history.transactions.keys()):
            found.append(Anomaly(Kind.NEVER_PREPARED, f"{key}, nobody began it", transaction=key))
    return found + [anomaly for record in case.history.transactions.values() for anomaly in _forgotten(record)]


def _forgotten(record: TransactionRecord) -> Iterator[Anomaly]:
    """Yield branches that were prepared and not ended, and that the broker no longer knew."""
    prepared = _first_ok(record.of(StepKind.PREPARE))
    for step in record.steps:
        if step.kind not in ENDING or step.started < prepared:
            continue
        if step.possible:
            return
        if UNKNOWN_BRANCH in step.reason:
            yield Anomaly(Kind.VANISHED, f"{record.key}: {step}", transaction=record.key)


def _span(record: TransactionRecord) -> Span:
    prepares = record.of(StepKind.PREPARE)
    ending = record.of(*ENDING)
    return Span(
        record.key,
        min((step.started for step in prepares), default=NEVER),
        _first_ok(prepares),
        min((step.started for step in ending if step.possible), default=NEVER),
        _first_ok(ending),
    )


def _first_ok(steps: Sequence[Step]) -> int:
    return min((step.ended for step in steps if step.outcome is Outcome.OK), default=NEVER)


def _branches(listing: Listing, spans: Sequence[Span]) -> Iterator[Anomaly]:
    for span in spans:
        if span.key not in listing.keys:
            if span.prepared < listing.started and span.ending_tried > listing.ended:
                yield _anomaly(Kind.VANISHED, span, listing)
        elif span.ended < listing.started:
            yield _anomaly(Kind.CAME_BACK, span, listing)
        elif span.prepare_tried > listing.ended:
            yield _anomaly(Kind.NEVER_PREPARED, span, listing)


def _anomaly(kind: Kind, span: Span, listing: Listing) -> Anomaly:
    text = f"{span.key}, asked at [{listing.started}-{listing.ended}]"
    return Anomaly(kind, text, transaction=span.key)
