"""Manifests of an archive of topics: pure values, and the rules by which they are made and checked.

A batch of the archive has one manifest: which bytes of which partitions are in which files, and what those files hold::

    {"v": 1, "batch": 12, "ranges": [
        {"topic": "orders", "partition": "0-3", "incarnation": "5f0c...", "start": 4096, "end": 9000,
         "messages": 57, "first_offset": 4096, "last_offset": 8911, "bytes": 4904, "replaced_attributes": 0,
         "damaged_bytes": 0, "files": ["9a41.../part-00000-....parquet"], "last": "0000..."}],
     "lost": []}

``[start, end)`` are byte offsets of the partition, ``bytes`` the sizes of the archived messages as the broker stores
them, so that ``bytes`` + ``damaged_bytes`` is ``end`` - ``start`` if nothing is missing in between; this is unknown
(``damaged_bytes`` is null) where an attribute that is not UTF-8 was replaced. ``lost`` has ranges that the broker no
longer had, and new incarnations of a partition: the next range begins at its ``end``. ``last`` identifies the message
before ``end``, where that is known; manifests of older versions do not have it, and their ``files`` have no folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition

FORM = 1

Manifest = Mapping[str, Any]


class ArchiveError(ValueError):
    """The archive cannot be continued; the text says why, and what to do."""


class ArchivedUpTo(NamedTuple):
    """The end of a partition's archive: the next byte, the incarnation (``None``: its broker has none), and what
    identifies the message before ``end`` (``None``: unknown).
    """

    incarnation: str | None
    end: int
    last: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Bytes of a partition to archive; or lost ones, if ``loss`` says why."""

    where: TopicPartition
    incarnation: str | None
    offsets: OffsetRange
    loss: str | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of one file for one partition: a count, the first and the last offset, and bytes as frames."""

    messages: int
    first_offset: int
    last_offset: int
    frame_bytes: int
    replaced_attributes: int


FilesOf = Mapping[TopicPartition, Mapping[str, Contents]]
"""The files of a batch by partition and name."""


def where_of(entry: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(entry["topic"], Partition.parse(entry["partition"]))


def archived_after(manifests: Sequence[Manifest]) -> dict[TopicPartition, ArchivedUpTo]:
    """Return the archived end of every partition, from all manifests in order."""
    return {
        where_of(entry): ArchivedUpTo(entry["incarnation"], entry["end"], entry.get("last"))
        for manifest in manifests
        for entry in (*manifest["lost"], *manifest["ranges"])
    }


def plan(
    available: Mapping[TopicPartition, PartitionState], archived: Mapping[TopicPartition, ArchivedUpTo]
) -> list[PlannedRange]:
    """Return what to archive next and what is lost, by partition; a loss is before the range after it.

    Raises:
        ArchiveError: A partition ends before its archived end.
    """
    return [part for where, found in sorted(available.items()) for part in _plan_one(where, found, archived.get(where))]


def _plan_one(where: TopicPartition, found: PartitionState, done: ArchivedUpTo | None) -> Iterator[PlannedRange]:
    start, end, incarnation = found.offsets.start, found.offsets.end, found.incarnation
    if done is not None and None not in (incarnation, done.incarnation) and incarnation != done.incarnation:
        why = f"deleted and made anew; what came after offset {done.end} of its former incarnation was not archived"
        yield PlannedRange(where, incarnation, OffsetRange(start, start), why)
    elif done is not None and end < done.end:
        raise ArchiveError(
            f"{where}: ends at offset {end}, before {done.end}, up to which it has been archived; if its broker is "
            "being restored or replaced, run again later; if these messages are gone for good, begin another archive"
        )
    elif done is not None and start > done.end:
        why = "deleted by the broker before it was archived"
        yield PlannedRange(where, incarnation, OffsetRange(done.end, start), why)
    elif done is not None:
        start = done.end
    if start < end:
        yield PlannedRange(where, incarnation, OffsetRange(start, end))


def last_archived(
    available: Mapping[TopicPartition, PartitionState], archived: Mapping[TopicPartition, ArchivedUpTo]
) -> dict[TopicPartition, tuple[int, str]]:
    """Return for each partition the message that was archived last: the offset after it, and what identifies it."""
    return {
        where: (done.end, done.last)
        for where, done in archived.items()
        if done.last is not None
        and where in available
        and available[where].incarnation == done.incarnation
        and available[where].offsets.start < done.end <= available[where].offsets.end
    }


def refuse_older_copies(differing: Iterable[TopicPartition], archived: Mapping[TopicPartition, ArchivedUpTo]) -> None:
    """Refuse to continue at brokers that were restored from an older copy, which now have other messages there.

    Raises:
        ArchiveError: There are such partitions, ``differing``.
    """
    names = [f"{where}, offset {archived[where].end}" for where in sorted(differing)]
    if names:
        raise ArchiveError(
            f"{'; '.join(names)}: the message before it is not the one that was archived: the broker was put back to "
            "an older copy, and other messages are stored there now; begin another archive"
        )


def refuse_losses(planned: Sequence[PlannedRange]) -> None:
    """Refuse losses, which an operator has to accept.

    Raises:
        ArchiveError: There are some.
    """
    losses = [f"{part.where}, {span(part.offsets)}: {part.loss}" for part in planned if part.loss is not None]
    if losses:
        raise ArchiveError("; ".join(losses) + ". To note that in the manifest and go on: --accept-loss")


def span(offsets: OffsetRange) -> str:
    """Return ``offsets 5 to 9``; the end is exclusive."""
    return f"offsets {offsets.start} to {offsets.end}"


def make_manifest(
    batch: int,
    planned: Sequence[PlannedRange],
    files: FilesOf,
    damage_skipped: bool,
    last: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> Manifest:
    """Return the manifest of a batch that has been written. ``last``: the message before the end of a range, if known.

    Raises:
        ArchiveError: The files do not have the planned contents; they must not be recorded as archived.
    """
    strays = set(files) - {part.where for part in planned if part.loss is None}
    if strays:
        raise ArchiveError(f"batch {batch}: its files hold messages of {', '.join(map(str, sorted(strays)))}")
    ranges = [_range_entry(part, files.get(part.where, {})) for part in planned if part.loss is None]
    for entry in ranges:
        damaged = entry["damaged_bytes"] or 0
        if damaged < 0 or (damaged and not damage_skipped):
            raise ArchiveError(f"batch {batch}: {where_of(entry)}: {_missing(entry)}")
        if where_of(entry) in last:
            entry["last"] = last[where_of(entry)]
    lost = [_planned_entry(part) | {"why": part.loss} for part in planned if part.loss is not None]
    return {"v": FORM, "batch": batch, "ranges": ranges, "lost": lost}


def _planned_entry(part: PlannedRange) -> dict[str, Any]:
    where, offsets = part.where, part.offsets
    return {
        "topic": where.topic,
        "partition": str(where.partition),
        "incarnation": part.incarnation,
        "start": offsets.start,
        "end": offsets.end,
    }


def _range_entry(part: PlannedRange, files: Mapping[str, Contents]) -> dict[str, Any]:
    total = _sum_up(files)
    damaged = len(part.offsets) - total["bytes"] if not total["replaced_attributes"] else None
    return _planned_entry(part) | total | {"damaged_bytes": damaged, "files": sorted(files)}


def _sum_up(files: Mapping[str, Contents]) -> dict[str, Any]:
    found = files.values()
    return {
        "messages": sum(one.messages for one in found),
        "first_offset": min((one.first_offset for one in found), default=None),
        "last_offset": max((one.last_offset for one in found), default=None),
        "bytes": sum(one.frame_bytes for one in found),
        "replaced_attributes": sum(one.replaced_attributes for one in found),
    }


def _missing(entry: Mapping[str, Any]) -> str:
    size = entry["end"] - entry["start"]
    return f"offsets {entry['start']} to {entry['end']} are {size} bytes, the messages archived {entry['bytes']}"


def check_chain(numbers: Sequence[int], manifests: Sequence[Manifest]) -> Iterator[str]:
    """Yield a sentence for each error in the manifests alone: missing ones, gaps and overlaps."""
    expected = range(numbers[-1] + 1) if numbers else ()
    for number in sorted(set(expected) - set(numbers)):
        yield f"manifest {number} is missing"
    archived: dict[TopicPartition, ArchivedUpTo] = {}
    for number, manifest in zip(numbers, manifests, strict=True):
        if manifest["batch"] != number:
            yield f"manifest {number} says that it is for batch {manifest['batch']}"
        for entry, lost in _entries(manifest):
            where = where_of(entry)
            problem = _break(archived.get(where), entry, lost)
            if problem:
                yield f"batch {number}: {where}: {problem}"
            archived[where] = ArchivedUpTo(entry["incarnation"], entry["end"])


def _entries(manifest: Manifest) -> Iterator[tuple[Mapping[str, Any], bool]]:
    yield from ((entry, True) for entry in manifest["lost"])
    yield from ((entry, False) for entry in manifest["ranges"])


def _break(done: ArchivedUpTo | None, entry: Mapping[str, Any], lost: bool) -> str | None:
    """Return how an entry does not continue its partition's last one; ``None`` if it does."""
    start, end, incarnation = entry["start"], entry["end"], entry["incarnation"]
    if start > end or (start == end and not lost):
        return f"offsets {start} to {end} are no range"
    if not lost and entry["damaged_bytes"] not in (None, end - start - entry["bytes"]):
        return _missing(entry)
    if done is None:
        return None
    if None not in (incarnation, done.incarnation) and incarnation != done.incarnation:
        return None if lost else f"incarnation {incarnation} begins at offset {start}, and no loss is recorded"
    if start > done.end:
        return f"gap: offsets {done.end} to {start} are in no batch"
    if start < done.end:
        return f"overlap: offsets {start} to {min(done.end, end)} are in an earlier batch, too"
    return None


def check_leftovers(numbers: Sequence[int], batches: Iterable[int]) -> Iterator[str]:
    """Yield batches with files after the last of the manifests (at least one) that no run can have left behind."""
    for batch in sorted(batch for batch in batches if batch > numbers[-1] + 1):
        yield f"batch {batch} has files, and the last manifest is {numbers[-1]}"


def check_contents(manifest: Manifest, files: FilesOf) -> Iterator[str]:
    """Yield a sentence for each difference between a batch's files and its manifest."""
    batch = manifest["batch"]
    for entry in manifest["ranges"]:
        where = where_of(entry)
        found = files.get(where, {})
        for name in sorted(set(entry["files"]) - set(found)):
            yield f"batch {batch}: {where}: file {name} is missing, or holds nothing of it"
        for name in sorted(set(found) - set(entry["files"])):
            yield f"batch {batch}: {where}: file {name} is not in the manifest"
        total = _sum_up(found)
        for key in total:
            if total[key] != entry[key]:
                yield f"batch {batch}: {where}: {key} is {total[key]}, the manifest says {entry[key]}"
        if found and not entry["start"] <= total["first_offset"] <= total["last_offset"] < entry["end"]:
            yield f"batch {batch}: {where}: messages outside of offsets {entry['start']} to {entry['end']}"
    for where in sorted(set(files) - {where_of(entry) for entry in manifest["ranges"]}):
        yield f"batch {batch}: {where}: its files hold messages of it, the manifest does not name it"
