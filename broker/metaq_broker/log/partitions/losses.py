"""Detects whether a partition has lost its end: durable bytes that its segments no longer have.

The end of the last segment is compared with: ends that were recorded outside the partition (in ``clean-shutdown`` and
``durable-ends``), the mark of a failed sync, indexes that reach beyond their segment or whose segment is missing, and
quarantined ranges after the end. A partition that lost its end continues at the old one, and the missing range is
quarantined, so that no offset that a reader may know is given to another message. If the old end is not known exactly,
the partition also gets a new incarnation.

Source: docs/log-format.md, "When durable bytes are gone".

Losses are recorded until an operator acknowledges them.

File ``lost-data`` in the data folder, UTF-8 text, written atomically before anything is repaired::

    metaq-lost-data 1
    START END TIME_MS KIND FOLDER    durable bytes [START, END) were found gone at TIME_MS; FOLDER is the rest
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A file that cannot be read is replaced with the next loss.

Source: docs/log-format.md, "When durable bytes are gone".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from metaq.formats.native_crc import crc32_of_block
from metaq_broker.log.files.durable_ends import KnownEnd
from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.files.sealed_files import read_failed_sync, seal, unseal
from metaq_broker.log.partitions.damage import read_quarantine
from metaq_broker.log.segments import index as index_file
from metaq_broker.log.segments.index import RECORD_BYTES, SPAN_DAMAGED, IndexEntry, decode_entry
from metaq_broker.log.segments.segment import SegmentFile, find_segment_files, index_path

REASON: Final = "bytes that were durable are gone"
_SPANS_COMPARED: Final = 4


@dataclass(frozen=True, slots=True)
class LostEnd:
    """Bytes ``[start, end)`` were durable and are missing. ``ordinal`` messages were before ``end``, if that is known.

    ``exact``: no message after ``end`` was acknowledged. ``all_segments``: the folder has no segment at all.
    """

    start: int
    end: int
    ordinal: int | None
    exact: bool
    all_segments: bool


def find_lost_end(files: Files, directory: Path, known: Iterable[KnownEnd] = ()) -> LostEnd | None:
    """Compare the partition in ``directory`` with known ends; return ``None`` if nothing is missing (blocking).

    Raises:
        OSError: A file cannot be read.
    """
    names = files.listdir(directory)
    last, end = _last_segment(files, directory, names)
    evidence = [each for each in (*known, *_evidence(files, directory, names, last, end)) if each.end > end]
    if evidence:  # read again: if a broker is writing, the segments have grown meanwhile
        last, end = _last_segment(files, directory, files.listdir(directory))
        evidence = [each for each in evidence if each.end > end]
    if not evidence:
        return None
    lost_to = max(each.end for each in evidence)
    there = [each for each in evidence if each.end == lost_to]
    ordinal = next((each.ordinal for each in there if each.ordinal is not None), None)
    return LostEnd(end, lost_to, ordinal, any(each.exact for each in there), last is None)


def _last_segment(files: Files, directory: Path, names: Sequence[str]) -> tuple[SegmentFile | None, int]:
    """Return the newest named segment, and its end."""
    named = [file for file in find_segment_files(directory, list(names)) if file.named]
    return (named[-1], named[-1].start + files.stat(named[-1].path).size) if named else (None, 0)


def _evidence(
    files: Files, directory: Path, names: Sequence[str], last: SegmentFile | None, end: int
) -> Iterator[KnownEnd]:
    """Yield ends from files in the partition's own folder."""
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
        elif entries and last is not None:  # without any segment, it may be from a copy that was never completed
            yield KnownEnd(start + 1, None, exact=False)


def _evidence_of_index(files: Files, directory: Path, last: SegmentFile, end: int) -> Iterator[KnownEnd]:
    path = index_path(directory, last.start)
    if not files.is_file(path) or not _may_reach_beyond(files, path, end):
        return
    entries, _ = index_file.read_entries(files, path, last.start)
    if entries and entries[-1].offset > end and _describes(files, last, entries, end):
        yield KnownEnd(entries[-1].offset, entries[-1].ordinal, exact=False)


def _may_reach_beyond(files: Files, path: Path, end: int) -> bool:
    """Return whether an index may reach beyond ``end``, by its last entry only: an index may have very many."""
    handle = FileHandle(files, files.open_read(path))
    whole = files.size(handle.fd) // RECORD_BYTES * RECORD_BYTES
    entry = decode_entry(handle.pread(RECORD_BYTES, whole - RECORD_BYTES)) if whole > RECORD_BYTES else None
    return whole > RECORD_BYTES and (entry is None or entry.offset > end)


def _orphans(names: Sequence[str], after: int) -> Iterator[int]:
    """Yield the starts of indexes after the last segment: their segments must be lost, because an index is created
    later.
    """
    for name in names:
        stem = name.removesuffix(index_file.SUFFIX)
        if stem != name and len(stem) == 20 and stem.isdigit() and int(stem) > after:
            yield int(stem)


def _describes(files: Files, segment: SegmentFile, entries: Sequence[IndexEntry], end: int) -> bool:
    """Return whether an index that reaches beyond its segment is an index of these bytes."""
    inside = [(a, b) for a, b in pairwise(entries) if b.offset <= end and b.span != SPAN_DAMAGED]
    if not inside:
        return True
    handle = FileHandle(files, files.open_read(segment.path))
    return any(
        crc32_of_block(handle.pread(b.offset - a.offset, a.offset - segment.start)) == b.span
        for a, b in inside[-_SPANS_COMPARED:]
    )


FILE_NAME: Final = "lost-data"
_TITLE: Final = "metaq-lost-data 1"
_LOGGER = logging.getLogger(__name__)

END, END_UNSURE, SEGMENTS, FOLDER = "end", "end-unsure", "segments", "folder"
_CONSEQUENCES: Final[Mapping[str, str]] = {
    END: "bytes that were durable are gone; the partition continues after them",
    END_UNSURE: "bytes that were durable are gone; the partition continues after them, with a new incarnation",
    SEGMENTS: "all segments are gone; offsets begin again, with a new incarnation",
    FOLDER: "the partition's folder is gone",
}


class Loss(NamedTuple):
    """Durable bytes ``[start, end)`` of the partition in ``folder`` were found missing at ``time_ms``."""

    start: int
    end: int
    time_ms: int
    kind: str
    folder: str

    @property
    def reason(self) -> str:
        """What is missing, and the consequence."""
        return _CONSEQUENCES.get(self.kind, self.kind)


def loss_of_end(lost: LostEnd, folder: str, now_ms: int) -> Loss:
    kind = SEGMENTS if lost.all_segments else END if lost.exact else END_UNSURE
    return Loss(lost.start, lost.end, now_ms, kind, folder)


def read_losses(files: Files, data_path: Path) -> list[Loss]:
    """Return the losses that are not acknowledged, oldest first; empty without the file or if it is damaged."""
    path = data_path / FILE_NAME
    if not files.exists(path):
        return []
    try:
        return [_parse(line) for line in unseal(_TITLE, files.read_bytes(path))]
    except ValueError as error:
        _LOGGER.warning("file of lost data cannot be read", extra={"fields": {"path": path, "reason": str(error)}})
        return []


def _parse(line: str) -> Loss:
    start, end, time_ms, kind, folder = line.split(" ", 4)
    return Loss(int(start), int(end), int(time_ms), kind, folder)


class Losses:
    """Keeps the file of one data folder; any thread (blocking)."""

    def __init__(self, files: Files, data_path: Path) -> None:
        self._files, self._data_path = files, data_path
        self._lock = Lock()
        self._known = read_losses(files, data_path)

    @property
    def unacknowledged(self) -> Sequence[Loss]:
        return tuple(self._known)

    def add(self, loss: Loss) -> None:
        """Record a loss durably; a known one, which was not repaired because of a crash, is recorded once.

        Raises:
            OSError: The disk refuses.
        """
        with self._lock:
            if any((each.folder, each.start, each.end) == (loss.folder, loss.start, loss.end) for each in self._known):
                return
            self._write([*self._known, loss])
        fields = {"partition": loss.folder, "from": loss.start, "to": loss.end, "what": loss.reason}
        _LOGGER.error("data is lost", extra={"fields": fields})

    def acknowledge(self, folder: str) -> bool:
        """Forget the losses of a partition durably; return whether there were any.

        Raises:
            OSError: The disk refuses; nothing is forgotten.
        """
        with self._lock:
            left = [loss for loss in self._known if loss.folder != folder]
            if len(left) == len(self._known):
                return False
            self._write(left)
            return True

    def _write(self, losses: list[Loss]) -> None:
        path = self._data_path / FILE_NAME
        if losses:
            lines = (f"{each.start} {each.end} {each.time_ms} {each.kind} {each.folder}" for each in losses)
            self._files.write_atomic(path, seal(_TITLE, lines))
        elif self._files.exists(path):
            self._files.unlink(path)
            self._files.fsync_dir(self._data_path)
        self._known = losses
