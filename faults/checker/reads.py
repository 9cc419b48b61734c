"""Checks of what readers saw during the run: a frame that was served stays, and an acknowledged one is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.history import EndSeen, FirstRead, Outcome, Put
from faults.payload import MessageKey
from faults.stored import PartitionKey, StoredFrame


def check_reads(case: Case) -> list[Anomaly]:
    """Check all reads, including reads of earlier images."""
    found = [_conflict(sighting, frame) for sighting, frame in case.history.conflicts]
    found += _disappeared(case)
    if case.readable_at_once:
        found += _stale_ends(case)
    return found


def _conflict(sighting: FirstRead, frame: StoredFrame) -> Anomaly:
    text = f"{sighting.partition_key}: {sighting.frame}, later {frame}"
    return Anomaly(Kind.TWO_READ, text, sighting.partition_key, _keys(sighting.frame.key, frame.key))


def _keys(*keys: MessageKey | None) -> tuple[MessageKey, ...]:
    return tuple(key for key in keys if key is not None)


def _disappeared(case: Case) -> Iterator[Anomaly]:
    for partition_key, sightings in case.history.sightings.items():
        partition = case.image.get(partition_key)
        stored = {frame.offset: frame for frame in partition.frames} if partition else {}
        for offset, sighting in sightings.items():
            frame = stored.get(offset)
            if frame == sighting.frame or case.removed(partition_key, offset):
                continue
            now = f"now {frame}" if frame else "now nothing"
            keys = _keys(sighting.frame.key, frame.key if frame else None)
            kind = Kind.TWO_READ if frame else Kind.UNREAD
            yield Anomaly(
                kind, f"{partition_key}: {sighting.frame} was read by {sighting.ended}, {now}", partition_key, keys
            )


def _stale_ends(case: Case) -> Iterator[Anomaly]:
    acknowledged: dict[PartitionKey, list[Put]] = defaultdict(list)
    for put in case.history.puts:
        if put.outcome is Outcome.OK:
            acknowledged[put.partition_key].append(put)
    ends: dict[PartitionKey, list[EndSeen]] = defaultdict(list)
    for end in case.history.ends_seen:
        ends[end.partition_key].append(end)
    for partition_key, seen in ends.items():
        yield from _stale_in(partition_key, seen, acknowledged[partition_key])


def _stale_in(partition_key: PartitionKey, seen: Sequence[EndSeen], acknowledged: Sequence[Put]) -> Iterator[Anomaly]:
    puts = iter(sorted(acknowledged, key=lambda put: put.ended))
    waiting = next(puts, None)
    last: Put | None = None
    for end in sorted(seen, key=lambda each: each.started):
        while waiting is not None and waiting.ended < end.started:
            last = waiting if last is None or waiting.offset > last.offset else last
            waiting = next(puts, None)
        if last is not None and last.offset >= end.offset:
            text = f"{partition_key}: nothing at {end.offset} when asked at {end.started}, but {last}"
            yield Anomaly(Kind.STALE_END, text, partition_key, (last.messages[-1].key,))
