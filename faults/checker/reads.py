"""Checks of what readers saw on the way: what was served once stays, and what was acknowledged is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import EndSeen, Outcome, Put, Sighting
from faults.payload import MessageKey
from faults.stored import Place, StoredFrame


def check_reads(case: Case) -> list[Anomaly]:
    """Judge all reads, also those of earlier images."""
    found = [_conflict(sighting, frame) for sighting, frame in case.history.conflicts]
    found += _disappeared(case)
    if case.readable_at_once:
        found += _stale_ends(case)
    return found


def _conflict(sighting: Sighting, frame: StoredFrame) -> Anomaly:
    text = f"{sighting.place}: {sighting.frame}, later {frame}"
    return Anomaly(Kind.TWO_READ, text, sighting.place, _keys(sighting.frame.key, frame.key))


def _keys(*keys: MessageKey | None) -> tuple[MessageKey, ...]:
    return tuple(key for key in keys if key is not None)


def _disappeared(case: Case) -> Iterator[Anomaly]:
    for place, sightings in case.history.sightings.items():
        partition = case.image.get(place)
        stored = {frame.offset: frame for frame in partition.frames} if partition else {}
        for offset, sighting in sightings.items():
            frame = stored.get(offset)
            if frame == sighting.frame or case.gone(place, offset):
                continue
            now = f"now {frame}" if frame else "now nothing"
            keys = _keys(sighting.frame.key, frame.key if frame else None)
            kind = Kind.TWO_READ if frame else Kind.UNREAD
            yield Anomaly(kind, f"{place}: {sighting.frame} was read by {sighting.ended}, {now}", place, keys)


def _stale_ends(case: Case) -> Iterator[Anomaly]:
    acknowledged: dict[Place, list[Put]] = defaultdict(list)
    for put in case.history.puts:
        if put.outcome is Outcome.OK:
            acknowledged[put.place].append(put)
    ends: dict[Place, list[EndSeen]] = defaultdict(list)
    for end in case.history.ends_seen:
        ends[end.place].append(end)
    for place, seen in ends.items():
        yield from _stale_in(place, seen, acknowledged[place])


def _stale_in(place: Place, seen: Sequence[EndSeen], acknowledged: Sequence[Put]) -> Iterator[Anomaly]:
    puts = iter(sorted(acknowledged, key=lambda put: put.ended))
    waiting = next(puts, None)
    last: Put | None = None
    for end in sorted(seen, key=lambda each: each.started):
        while waiting is not None and waiting.ended < end.started:
            last = waiting if last is None or waiting.offset > last.offset else last
            waiting = next(puts, None)
        if last is not None and last.offset >= end.offset:
            text = f"{place}: nothing at {end.offset} when asked at {end.started}, but {last}"
            yield Anomaly(Kind.STALE_END, text, place, (last.messages[-1].key,))
