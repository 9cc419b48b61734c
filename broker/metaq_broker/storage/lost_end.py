"""Finds out whether a partition has lost its end: bytes that were durable and that its segments do not hold any more.

What is compared with the end of the last segment: ends that were noted outside the partition (a clean shutdown's, those
in ``durable-ends``), the mark of a failed sync, indexes that reach further than their segment or whose segment is gone,
and quarantined ranges behind the end. A partition that lost its end goes on at the old one, and what is missing is
quarantined, so that no offset that a reader may know is given to another message. Where the old end is not known
exactly, it gets a new incarnation as well.

Source: docs/log-format.md, "When durable bytes are gone".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from metaq.formats.checksum import crc32
from metaq_broker.storage import index as index_file
from metaq_broker.storage.damage import read_quarantine
from metaq_broker.storage.durable_ends import KnownEnd
from metaq_broker.storage.failed_sync import read_failed_sync
from metaq_broker.storage.files import Files
from metaq_broker.storage.handles import FileHandle
from metaq_broker.storage.index import SPAN_DAMAGED
from metaq_broker.storage.index_entries import RECORD_BYTES, IndexEntry, decode_entry
from metaq_broker.storage.segment import SegmentFile, find_segment_files, index_path

REASON: Final = "bytes that were durable are gone"
_SPANS_COMPARED: Final = 4


@dataclass(frozen=True, slots=True)
class LostEnd:
    """Bytes ``[start, end)`` were durable and are gone. ``ordinal`` messages were before ``end``, if that is known.

    ``exact``: nothing behind ``end`` was acknowledged. ``all_segments``: the folder holds no segment at all.
    """

    start: int
    end: int
    ordinal: int | None
    exact: bool
    all_segments: bool


def find_lost_end(files: Files, directory: Path, known: Iterable[KnownEnd] = ()) -> LostEnd | None:
    """Compare the partition in ``directory`` with what is known of its end; ``None`` if nothing is missing (blocking).

    Raises:
        OSError: A file cannot be read.
    """
    names = files.listdir(directory)
    last, end = _last_segment(files, directory, names)
    evidence = [each for each in (*known, *_evidence(files, directory, names, last, end)) if each.end > end]
    if evidence:  # look again: where a broker writes, the segments have grown meanwhile
        last, end = _last_segment(files, directory, files.listdir(directory))
        evidence = [each for each in evidence if each.end > end]
    if not evidence:
        return None
    lost_to = max(each.end for each in evidence)
    there = [each for each in evidence if each.end == lost_to]
    ordinal = next((each.ordinal for each in there if each.ordinal is not None), None)
    return LostEnd(end, lost_to, ordinal, any(each.exact for each in there), last is None)


def _last_segment(files: Files, directory: Path, names: Sequence[str]) -> tuple[SegmentFile | None, int]:
    """Return the newest segment that has its name, and where it ends."""
    named = [file for file in find_segment_files(directory, list(names)) if file.named]
    return (named[-1], named[-1].start + files.stat(named[-1].path).size) if named else (None, 0)


def _evidence(
    files: Files, directory: Path, names: Sequence[str], last: SegmentFile | None, end: int
) -> Iterator[KnownEnd]:
    """Yield what the partition's own folder says of its durable end."""
    failed_sync = read_failed_sync(files, directory)
    if failed_sync is not None:
        yield KnownEnd(failed_sync, None, exact=True)
    for damage in read_quarantine(files, directory) or ():
        yield KnownEnd(damage.end, None, exact=False)
    if last is not None:
        yield from _evidence_of_index(files, directory, last, end)
    for start in _orphans(names, -1 if last is None else last.start):
        entries, _ = index_file.read_entries(files, index_path(directory, start), start)
        if entries and entries[-1].offset > start:
            yield KnownEnd(entries[-1].offset, entries[-1].ordinal, exact=False)
        elif entries and last is not None:  # where no segment is at all, it may be of a copy that was never made
            yield KnownEnd(start + 1, None, exact=False)


def _evidence_of_index(files: Files, directory: Path, last: SegmentFile, end: int) -> Iterator[KnownEnd]:
    path = index_path(directory, last.start)
    if not files.is_file(path) or not _may_reach_behind(files, path, end):
        return
    entries, _ = index_file.read_entries(files, path, last.start)
    if entries and entries[-1].offset > end and _describes(files, last, entries, end):
        yield KnownEnd(entries[-1].offset, entries[-1].ordinal, exact=False)


def _may_reach_behind(files: Files, path: Path, end: int) -> bool:
    """Look at the last entry only: an index may have very many."""
    handle = FileHandle(files, files.open_read(path))
    whole = files.size(handle.fd) // RECORD_BYTES * RECORD_BYTES
    entry = decode_entry(handle.pread(RECORD_BYTES, whole - RECORD_BYTES)) if whole > RECORD_BYTES else None
    return whole > RECORD_BYTES and (entry is None or entry.offset > end)


def _orphans(names: Sequence[str], behind: int) -> Iterator[int]:
    """Yield the starts of indexes behind the last segment: theirs must be gone, for an index is made after it."""
    for name in names:
        stem = name.removesuffix(index_file.SUFFIX)
        if stem != name and len(stem) == 20 and stem.isdigit() and int(stem) > behind:
            yield int(stem)


def _describes(files: Files, segment: SegmentFile, entries: Sequence[IndexEntry], end: int) -> bool:
    """Return whether an index that reaches further than its segment is of these bytes, and not of others."""
    inside = [(a, b) for a, b in pairwise(entries) if b.offset <= end and b.span != SPAN_DAMAGED]
    if not inside:
        return True
    handle = FileHandle(files, files.open_read(segment.path))
    return any(
        crc32(handle.pread(b.offset - a.offset, a.offset - segment.start)) == b.span
        for a, b in inside[-_SPANS_COMPARED:]
    )
