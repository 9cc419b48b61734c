"""Checks of order: the log of a partition must not contradict the order that clients observed.

* A message that was acknowledged before the put of another began is before it in the log.
* The messages of one connection to one partition are in the order in which they were sent, acknowledged or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import COMMITTING, NEVER, Outcome, Put, StepKind, TransactionRecord
from faults.payload import MessageKey
from faults.stored import PartitionKey


class Stored(NamedTuple):
    """A stored message or transaction at ``offset``, and the stamps between which it was stored."""

    started: int
    ended: int
    offset: int
    key: MessageKey
    lane: str


def check_order(case: Case) -> list[Anomaly]:
    """Check the order of all messages whose position in the log is certain."""
    by_partition = stored_by_partition(case)
    found: list[Anomaly] = []
    for partition_key, stored in by_partition.items():
        found += _real_time(partition_key, stored)
        found += _lanes(partition_key, stored)
    return found


def stored_by_partition(case: Case) -> dict[PartitionKey, list[Stored]]:
    """Return the stored records of each partition: acknowledged puts, unanswered puts that were stored, transactions.
    """
    first_offset: dict[tuple[PartitionKey, MessageKey], int] = {}
    for partition_key, partition in case.image.items():
        for frame in partition.frames:
            if frame.key is not None:
                first_offset.setdefault((partition_key, frame.key), frame.offset)
    tried: dict[MessageKey, int] = defaultdict(int)
    for put in case.history.puts:
        tried[put.messages[0].key] += 1
    by_partition: dict[PartitionKey, list[Stored]] = defaultdict(list)
    for put in case.history.puts:
        offset = _offset(put, tried[put.messages[0].key], first_offset)
        if offset is not None:
            by_partition[put.partition_key].append(
                Stored(put.started, put.ended, offset, put.messages[0].key, put.lane)
            )
    for record in case.history.transactions.values():
        for partition_key, stored in _committed(record, first_offset):
            by_partition[partition_key].append(stored)
    return by_partition


def _offset(put: Put, attempts: int, first_offset: dict[tuple[PartitionKey, MessageKey], int]) -> int | None:
    if put.outcome is Outcome.OK:
        return put.offset
    if put.outcome is Outcome.FAILED or attempts > 1:
        return None  # with several attempts, it is unknown which one was stored
    return first_offset.get((put.partition_key, put.messages[0].key))


def _committed(
    record: TransactionRecord, first_offset: dict[tuple[PartitionKey, MessageKey], int]
) -> Iterator[tuple[PartitionKey, Stored]]:
    commits = record.of(*COMMITTING)
    if not commits:
        return
    answered = (step.ended for step in record.of(StepKind.COMMIT) if step.outcome is Outcome.OK)
    ended = min(answered, default=NEVER)
    for put in record.puts:
        offset = first_offset.get((put.partition_key, put.messages[0].key))
        if offset is not None:
            yield put.partition_key, Stored(commits[0].started, ended, offset, put.messages[0].key, record.key)


def _real_time(partition_key: PartitionKey, stored: Sequence[Stored]) -> Iterator[Anomaly]:
    by_end = iter(sorted((each for each in stored if each.ended != NEVER), key=lambda each: each.ended))
    waiting = next(by_end, None)
    last: Stored | None = None
    for each in sorted(stored):
        while waiting is not None and waiting.ended < each.started:
            last = waiting if last is None or waiting.offset > last.offset else last
            waiting = next(by_end, None)
        if last is not None and last.offset > each.offset:
            text = f"{partition_key}: {each.key} at {each.offset}, {last.key} at {last.offset}"
            yield Anomaly(Kind.ORDER, text, partition_key, (each.key, last.key))


def _lanes(partition_key: PartitionKey, stored: Sequence[Stored]) -> Iterator[Anomaly]:
    lanes: dict[str, list[Stored]] = defaultdict(list)
    for each in sorted(stored):
        lanes[each.lane].append(each)
    for lane, sent in lanes.items():
        for one, next_one in pairwise(sent):
            if one.offset > next_one.offset and one.started != next_one.started:
                text = f"{partition_key}, {lane}: {one.key} at {one.offset}, then {next_one.key} at {next_one.offset}"
                yield Anomaly(Kind.LANE_ORDER, text, partition_key, (one.key, next_one.key))
