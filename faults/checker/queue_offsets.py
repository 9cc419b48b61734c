"""Checks of queue offsets, which count the messages of a partition for RocketMQ's clients, from 0 without gaps."""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import NOT_REPORTED, Outcome
from faults.payload import MessageKey
from faults.stored import PartitionKey

Reported = tuple[PartitionKey, int, int, MessageKey]
"""Partition, queue offset, offset in bytes, message."""


def check_queue_offsets(case: Case) -> list[Anomaly]:
    """Compare the queue offsets in replies to sends and pulls with the order of the stored frames."""
    places = {
        (partition_key, frame.offset): (ordinal, frame.key)
        for partition_key, partition in case.image.items()
        if partition.start == 0  # retention has removed nothing before it
        for ordinal, frame in enumerate(partition.frames)
    }
    found = []
    for partition_key, queue_offset, offset, key in _answered(case):
        if (partition_key not in case.image or case.image[partition_key].start) and case.retention:
            continue
        stored = places.get((partition_key, offset))
        if stored != (queue_offset, key):
            text = f"{key} at {offset} of {partition_key}: answered {queue_offset}, stored {stored}"
            found.append(Anomaly(Kind.WRONG_QUEUE_OFFSET, text, partition_key, (key,)))
    return found


def _answered(case: Case) -> Iterator[Reported]:
    yield from case.history.pulled
    for put in case.history.puts:
        if put.outcome is Outcome.OK and put.queue_offset != NOT_REPORTED:
            yield put.partition_key, put.queue_offset, put.offset, put.messages[0].key
