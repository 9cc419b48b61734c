"""Checks of plain and batched puts: each acknowledged one is stored once, where it was acknowledged, and no other is.

An acknowledged attempt claims the frames at its offset. Unclaimed frames must be from attempts with an unknown outcome,
at most one copy from each. A crash may tear an unanswered block, so a prefix of it may be stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import ANY_INDEX, NOT_REPORTED, History, Outcome, Put, Sent
from faults.payload import MessageKey
from faults.stored import Image, PartitionKey, StoredFrame


class Copies(NamedTuple):
    """A message of an attempt: the attempt's first key identifies all attempts to put the same messages."""

    unit: MessageKey
    position: int
    sent: Sent


Claims = dict[tuple[PartitionKey, int], Put]


def check_puts(case: Case) -> list[Anomaly]:
    """Check everything that was put outside transactions."""
    claims: Claims = {}
    found = list(_claim(case, claims))
    attempts: dict[MessageKey, list[Put]] = defaultdict(list)
    for put in case.history.puts:
        attempts[put.messages[0].key].append(put)
    members = _members(case.history)
    inside = {m.key for each in case.history.transactions.values() for put in each.puts for m in put.messages}
    rest: dict[MessageKey, list[tuple[PartitionKey, StoredFrame]]] = defaultdict(list)
    for partition_key, partition in case.image.items():
        for frame in partition.frames:
            if frame.key is None or (partition_key, frame.offset) in claims or frame.key in inside:
                continue
            if frame.key in members:
                rest[members[frame.key].unit].append((partition_key, frame))
            else:
                found.append(Anomaly(Kind.FOREIGN, f"{partition_key}: {frame}", partition_key, (frame.key,)))
    for unit, stored in rest.items():
        found += _unclaimed(attempts[unit], stored, members)
    return found


def _members(history: History) -> dict[MessageKey, Copies]:
    return {
        sent.key: Copies(put.messages[0].key, position, sent)
        for put in history.puts
        for position, sent in enumerate(put.messages)
    }


def _claim(case: Case, claims: Claims) -> Iterator[Anomaly]:
    by_offset = {
        partition_key: {frame.offset: frame for frame in partition.frames}
        for partition_key, partition in case.image.items()
    }
    for put in case.history.puts:
        if put.outcome is not Outcome.OK or case.removed(put.partition_key, put.offset):
            continue
        offset, frames = put.offset, by_offset.get(put.partition_key, {})
        for position, sent in enumerate(put.messages):
            other = claims.setdefault((put.partition_key, offset), put)
            if other is not put:
                text = f"{put.partition_key} offset {offset}: {other} and {put}"
                yield Anomaly(Kind.SAME_OFFSET, text, put.partition_key, (other.messages[0].key, sent.key))
            yield from _compare(put, position, sent, offset, frames.get(offset), case.image)
            offset += sent.frame_bytes


def _compare(
    put: Put, position: int, sent: Sent, offset: int, frame: StoredFrame | None, image: Image
) -> Iterator[Anomaly]:
    if frame is None or (frame.key is not None and frame.key != sent.key):
        yield _absent(put, sent.key, offset, image)
    elif frame.key is None or not _looks_like(frame, sent):
        yield Anomaly(
            Kind.ALTERED, f"{sent.key} in {put.partition_key}: {frame}, not {sent}", put.partition_key, (sent.key,)
        )
    elif position == 0 and put.message_id not in (NOT_REPORTED, frame.message_id):
        yield Anomaly(Kind.WRONG_ID, f"{put}, stored: {frame}", put.partition_key, (sent.key,))


def _looks_like(frame: StoredFrame, sent: Sent) -> bool:
    """Return whether a frame is the one that was sent, as far as the client knows it. The payload has a checksum."""
    return sent.checksum == NOT_REPORTED or (frame.flag, frame.checksum) == (sent.flag, sent.checksum)


def _absent(put: Put, key: MessageKey, offset: int, image: Image) -> Anomaly:
    elsewhere = [
        f"{partition_key} at {frame.offset}"
        for partition_key, partition in image.items()
        for frame in partition.frames
        if frame.key == key
    ]
    if elsewhere:
        text = f"{key} was acknowledged at {offset} of {put.partition_key}, it is stored in {', '.join(elsewhere)}"
        return Anomaly(Kind.MOVED, text, put.partition_key, (key,))
    return Anomaly(Kind.MISSING, f"{key}, acknowledged at {offset} of {put.partition_key}", put.partition_key, (key,))


def _unclaimed(
    attempts: Sequence[Put], stored: Sequence[tuple[PartitionKey, StoredFrame]], members: dict[MessageKey, Copies]
) -> Iterator[Anomaly]:
    """Check the copies of one unit that no acknowledgement explains."""
    keys = tuple(sorted({frame.key for _, frame in stored if frame.key is not None}))
    partition_key = stored[0][0]
    runs = list(_runs(stored, members))
    unknown = [put for put in attempts if put.outcome is Outcome.UNKNOWN]
    where = ", ".join(f"{each} at {frame.offset}" for each, frame in stored[:6])
    if not unknown and all(put.outcome is Outcome.FAILED for put in attempts):
        yield Anomaly(Kind.REFUSED_STORED, f"{attempts[0].messages[0].key}: {where}", partition_key, keys)
    elif len(runs) > len(unknown) or not all(_may_come_from(unknown, run[0][0]) for run in runs):
        text = f"{attempts[0].messages[0].key}: {len(unknown)} attempts without an answer, stored unclaimed: {where}"
        yield Anomaly(Kind.TWICE, text, partition_key, keys)
    for run in runs:
        yield from _run_faults(run, members)


def _may_come_from(attempts: Sequence[Put], partition_key: PartitionKey) -> bool:
    return any(
        put.partition_key == partition_key or put.partition_key == PartitionKey(partition_key.topic, ANY_INDEX)
        for put in attempts
    )


Run = list[tuple[PartitionKey, StoredFrame]]


def _runs(stored: Sequence[tuple[PartitionKey, StoredFrame]], members: dict[MessageKey, Copies]) -> Iterator[Run]:
    """Divide the copies of one unit into attempts: each begins at the first message."""
    run: Run = []
    for partition_key, frame in sorted(stored, key=lambda each: (each[0], each[1].offset)):
        assert frame.key is not None
        if run and (members[frame.key].position == 0 or partition_key != run[-1][0]):
            yield run
            run = []
        run.append((partition_key, frame))
    if run:
        yield run


def _run_faults(run: Run, members: dict[MessageKey, Copies]) -> Iterator[Anomaly]:
    end: int | None = None
    for expected, (partition_key, frame) in enumerate(run):
        assert frame.key is not None
        copy = members[frame.key]
        if copy.position != expected or (end is not None and frame.offset != end):
            yield Anomaly(
                Kind.TORN_BATCH,
                f"{copy.unit}: {partition_key} {frame} at position {expected}",
                partition_key,
                (frame.key,),
            )
            return
        if not _looks_like(frame, copy.sent):
            yield Anomaly(Kind.ALTERED, f"{partition_key}: {frame}, not {copy.sent}", partition_key, (frame.key,))
        end = frame.end
