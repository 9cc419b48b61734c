"""Checks of transactions: committed ones are complete and contiguous per partition, others have stored nothing.

The required outcome of a transaction follows from its steps:

* A commit was acknowledged: it is committed.
* A rollback was acknowledged, or no commit was ever tried, or all were refused: it is rolled back.
* Commits are unanswered: either, but completely. If its PREPARE was acknowledged, no rollback was ever tried, and a
  later RECOVER does not list it, it is committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import pairwise

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import COMMITTING, NEVER, History, Outcome, StepKind, TransactionRecord
from faults.payload import MessageKey
from faults.stored import Image, PartitionKey, StoredFrame

Found = Mapping[MessageKey, Sequence[tuple[PartitionKey, StoredFrame]]]


class Fate(Enum):
    """The required outcome of a transaction."""

    COMMITTED = auto()
    ROLLED_BACK = auto()
    EITHER = auto()
    CONTRADICTORY = auto()


def check_transactions(case: Case) -> list[Anomaly]:
    """Check the messages of every transaction."""
    records = case.history.transactions.values()
    fates = {record.key: fate(record, case.history) for record in records}
    stored = _stored(case.image)
    found = [anomaly for record in records for anomaly in _outcome(case, record, fates[record.key], stored)]
    return found + list(_seen_too_early(case.history, fates))


def fate(record: TransactionRecord, history: History) -> Fate:
    commits = [step for step in record.of(*COMMITTING) if step.possible]
    rollbacks = [step for step in record.of(StepKind.ROLLBACK) if step.possible]
    committed = any(step.outcome is Outcome.OK for step in commits)
    rolled_back = any(step.outcome is Outcome.OK for step in rollbacks)
    if committed and rolled_back:
        return Fate.CONTRADICTORY
    if committed:
        return Fate.COMMITTED
    if rolled_back or not commits:
        return Fate.ROLLED_BACK
    prepared = any(step.outcome is Outcome.OK for step in record.of(StepKind.PREPARE))
    tried = commits[-1].started
    unlisted = any(
        listing.unique == record.unique and listing.started > tried and record.key not in listing.keys
        for listing in history.listings
    )
    return Fate.COMMITTED if prepared and unlisted and not rollbacks else Fate.EITHER


def _stored(image: Image) -> Found:
    stored: dict[MessageKey, list[tuple[PartitionKey, StoredFrame]]] = defaultdict(list)
    for partition_key, partition in image.items():
        for frame in partition.frames:
            if frame.key is not None:
                stored[frame.key].append((partition_key, frame))
    return stored


def _outcome(case: Case, record: TransactionRecord, what: Fate, stored: Found) -> Iterator[Anomaly]:
    present = [message.key for put in record.puts for message in put.messages if message.key in stored]
    if what is Fate.CONTRADICTORY:
        yield Anomaly(Kind.CONTRADICTION, record.key, transaction=record.key)
    elif what is Fate.ROLLED_BACK and present:
        yield _visible(record, f"{len(present)} messages are stored, {present[0]} first", present)
    elif what is Fate.COMMITTED or present:
        if not (case.commits_may_wait and _waits(record)):
            yield from _incomplete(case, record, stored)
        yield from _stored_in_part(record, stored)


def _waits(record: TransactionRecord) -> bool:
    return not any(step.outcome is Outcome.OK for step in record.of(StepKind.COMMIT))


def _visible(record: TransactionRecord, text: str, keys: Sequence[MessageKey]) -> Anomaly:
    return Anomaly(Kind.UNCOMMITTED, f"{record.key}: {text}", None, tuple(keys[:6]), record.key)


def _incomplete(case: Case, record: TransactionRecord, stored: Found) -> Iterator[Anomaly]:
    for put in record.puts:
        allowed = {Outcome.OK: (1,), Outcome.FAILED: (0,), Outcome.UNKNOWN: (0, 1)}[put.outcome]
        # The offset of such a message is never reported, so retention may have removed it from a shortened partition.
        countable = not case.removed(put.partition_key, 0)
        for message in put.messages:
            copies = stored.get(message.key, ())
            here = sum(partition_key == put.partition_key for partition_key, _ in copies)
            if here != len(copies) or (countable and here not in allowed):
                partition_keys = (
                    ", ".join(f"{partition_key} at {frame.offset}" for partition_key, frame in copies) or "nowhere"
                )
                text = f"{record.key}: {message.key} is stored {partition_keys}: {put}"
                yield Anomaly(Kind.NOT_WHOLE, text, put.partition_key, (message.key,), record.key)
            for partition_key, frame in copies:
                if (frame.flag, frame.checksum) != (message.flag, message.checksum):
                    yield Anomaly(
                        Kind.ALTERED, f"{partition_key}: {frame}, not {message}", partition_key, (message.key,)
                    )


def _stored_in_part(record: TransactionRecord, stored: Found) -> Iterator[Anomaly]:
    by_partition: dict[PartitionKey, list[StoredFrame]] = defaultdict(list)
    for put in record.puts:
        for message in put.messages:
            by_partition[put.partition_key] += [
                frame for partition_key, frame in stored.get(message.key, ()) if partition_key == put.partition_key
            ]
    for partition_key, frames in by_partition.items():
        for one, following in pairwise(frames):
            if one.end != following.offset:
                text = f"{record.key} in {partition_key}: {one}, then {following}"
                keys = tuple(key for key in (one.key, following.key) if key is not None)
                yield Anomaly(Kind.NOT_CONTIGUOUS, text, partition_key, keys, record.key)


def _seen_too_early(history: History, fates: Mapping[str, Fate]) -> Iterator[Anomaly]:
    """Yield messages that were read before their commit was requested, or that were rolled back."""
    inside = {m.key: record for record in history.transactions.values() for put in record.puts for m in put.messages}
    for partition_key, sightings in history.sightings.items():
        for sighting in sightings.values():
            record = inside.get(sighting.frame.key) if sighting.frame.key else None
            if record is None or sighting.frame.key is None:
                continue
            if fates[record.key] is Fate.ROLLED_BACK or sighting.ended < _first_commit(record):
                text = f"{partition_key}: {sighting.frame} was read by {sighting.ended}"
                yield _visible(record, text, [sighting.frame.key])


def _first_commit(record: TransactionRecord) -> int:
    return min((step.started for step in record.of(*COMMITTING) if step.possible), default=NEVER)
