"""Checks of plain and batched puts: each acknowledged one is where it was acknowledged, once, and nothing else is.

An attempt that was acknowledged claims the frames at its offset. What no acknowledged attempt claims must come from
attempts with unknown outcome, at most one copy from each; of a block whose put was never answered the front may be
stored without the rest, since a crash may tear it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import ANY_INDEX, History, Outcome, Put, Sent
from faults.payload import MessageKey
from faults.stored import Image, Place, StoredFrame


class Copies(NamedTuple):
    """A message of an attempt: the attempt's first key names all attempts to put the same messages."""

    unit: MessageKey
    position: int
    sent: Sent


Claims = dict[tuple[Place, int], Put]


def check_puts(case: Case) -> list[Anomaly]:
    """Judge everything that was put outside transactions."""
    claims: Claims = {}
    found = list(_claim(case, claims))
    attempts: dict[MessageKey, list[Put]] = defaultdict(list)
    for put in case.history.puts:
        attempts[put.messages[0].key].append(put)
    members = _members(case.history)
    inside = {m.key for each in case.history.transactions.values() for put in each.puts for m in put.messages}
    rest: dict[MessageKey, list[tuple[Place, StoredFrame]]] = defaultdict(list)
    for place, partition in case.image.items():
        for frame in partition.frames:
            if frame.key is None or (place, frame.offset) in claims or frame.key in inside:
                continue
            if frame.key in members:
                rest[members[frame.key].unit].append((place, frame))
            else:
                found.append(Anomaly(Kind.FOREIGN, f"{place}: {frame}", place, (frame.key,)))
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
    by_offset = {place: {frame.offset: frame for frame in partition.frames} for place, partition in case.image.items()}
    for put in case.history.puts:
        if put.outcome is not Outcome.OK or case.gone(put.place, put.offset):
            continue
        offset, frames = put.offset, by_offset.get(put.place, {})
        for position, sent in enumerate(put.messages):
            other = claims.setdefault((put.place, offset), put)
            if other is not put:
                text = f"{put.place} offset {offset}: {other} and {put}"
                yield Anomaly(Kind.SAME_OFFSET, text, put.place, (other.messages[0].key, sent.key))
            yield from _compare(put, position, sent, offset, frames.get(offset), case.image)
            offset += sent.frame_bytes


def _compare(
    put: Put, position: int, sent: Sent, offset: int, frame: StoredFrame | None, image: Image
) -> Iterator[Anomaly]:
    if frame is None or (frame.key is not None and frame.key != sent.key):
        yield _absent(put, sent.key, offset, image)
    elif frame.key is None or (frame.flag, frame.checksum) != (sent.flag, sent.checksum):
        yield Anomaly(Kind.ALTERED, f"{sent.key} in {put.place}: {frame}, not {sent}", put.place, (sent.key,))
    elif position == 0 and frame.message_id != put.message_id:
        yield Anomaly(Kind.WRONG_ID, f"{put}, stored: {frame}", put.place, (sent.key,))


def _absent(put: Put, key: MessageKey, offset: int, image: Image) -> Anomaly:
    elsewhere = [
        f"{place} at {frame.offset}"
        for place, partition in image.items()
        for frame in partition.frames
        if frame.key == key
    ]
    if elsewhere:
        text = f"{key} was acknowledged at {offset} of {put.place}, it is stored in {', '.join(elsewhere)}"
        return Anomaly(Kind.MOVED, text, put.place, (key,))
    return Anomaly(Kind.MISSING, f"{key}, acknowledged at {offset} of {put.place}", put.place, (key,))


def _unclaimed(
    attempts: Sequence[Put], stored: Sequence[tuple[Place, StoredFrame]], members: dict[MessageKey, Copies]
) -> Iterator[Anomaly]:
    """Judge the copies of one unit that no acknowledgement explains."""
    keys = tuple(sorted({frame.key for _, frame in stored if frame.key is not None}))
    place = stored[0][0]
    runs = list(_runs(stored, members))
    unknown = [put for put in attempts if put.outcome is Outcome.UNKNOWN]
    where = ", ".join(f"{each} at {frame.offset}" for each, frame in stored[:6])
    if not unknown and all(put.outcome is Outcome.FAILED for put in attempts):
        yield Anomaly(Kind.REFUSED_STORED, f"{attempts[0].messages[0].key}: {where}", place, keys)
    elif len(runs) > len(unknown) or not all(_may_come_from(unknown, run[0][0]) for run in runs):
        text = f"{attempts[0].messages[0].key}: {len(unknown)} attempts without an answer, stored unclaimed: {where}"
        yield Anomaly(Kind.TWICE, text, place, keys)
    for run in runs:
        yield from _run_faults(run, members)


def _may_come_from(attempts: Sequence[Put], place: Place) -> bool:
    return any(put.place == place or put.place == Place(place.topic, ANY_INDEX) for put in attempts)


Run = list[tuple[Place, StoredFrame]]


def _runs(stored: Sequence[tuple[Place, StoredFrame]], members: dict[MessageKey, Copies]) -> Iterator[Run]:
    """Cut the copies of one unit into pieces, one an attempt: a piece begins at the first message."""
    run: Run = []
    for place, frame in sorted(stored, key=lambda each: (each[0], each[1].offset)):
        assert frame.key is not None
        if run and (members[frame.key].position == 0 or place != run[-1][0]):
            yield run
            run = []
        run.append((place, frame))
    if run:
        yield run


def _run_faults(run: Run, members: dict[MessageKey, Copies]) -> Iterator[Anomaly]:
    end: int | None = None
    for expected, (place, frame) in enumerate(run):
        assert frame.key is not None
        copy = members[frame.key]
        if copy.position != expected or (end is not None and frame.offset != end):
            yield Anomaly(Kind.TORN_BATCH, f"{copy.unit}: {place} {frame} at position {expected}", place, (frame.key,))
            return
        if (frame.flag, frame.checksum) != (copy.sent.flag, copy.sent.checksum):
            yield Anomaly(Kind.ALTERED, f"{place}: {frame}, not {copy.sent}", place, (frame.key,))
        end = frame.end
