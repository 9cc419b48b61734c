"""Checks one partition, changing nothing; repairs one that was checked.

Both run ``log.partitions.loading.load`` with every segment examined, the check on a disk that only records changes.
Before a repair cuts anything, it copies the bytes durably to files ``OFFSET.cut`` (bytes from OFFSET on) and
``START.meta.new.cut`` (a segment that never got its name).

Source: docs/administration.md, "Checking the data".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from metaq_broker.clock import Clock
from metaq_broker.log.files.durable_ends import NotedEnd, known_ends
from metaq_broker.log.files.errors import PartitionRefused
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import CleanEnd
from metaq_broker.log.partitions.damage import read_quarantine
from metaq_broker.log.partitions.folders import parse_folder_name
from metaq_broker.log.partitions.incarnation import Incarnation, IncarnationDamaged, read_incarnation, write_incarnation
from metaq_broker.log.partitions.loading import Loaded, LogSettings, load
from metaq_broker.log.partitions.losses import Losses, loss_of_end
from metaq_broker.log.segments import index as index_file
from metaq_broker.log.segments.segment import SegmentFile, find_segment_files, index_path
from metaq_broker.operate.fsck.findings import IndexState, PartitionFindings, TornTail
from metaq_broker.operate.fsck.untouched import UntouchedDisk

KEPT_SUFFIX: Final = ".cut"
_COPY_BYTES: Final = 1 << 20


def check_partition(
    directory: Path,
    settings: LogSettings,
    *,
    live: bool = False,
    clean: CleanEnd | None = None,
    noted: NotedEnd | None = None,
    on_read: Callable[[int], None] = lambda count: None,
) -> PartitionFindings:
    """Read every message of the partition in ``directory`` and return the findings. Nothing is changed.

    ``clean`` and ``noted``: its end according to files of the data folder.
    """
    disk = UntouchedDisk(on_read)
    findings = PartitionFindings(*parse_folder_name(directory.name), directory, live)
    try:
        findings.quarantine_unreadable = read_quarantine(disk, directory) is None
        findings.indexes = _index_states(disk, directory)
        findings.incarnation, findings.incarnation_fault = _incarnation(disk, directory)
        findings.known_ends = known_ends(disk, directory, clean, noted)
        loaded = load(disk, directory, settings, "full", known_ends=findings.known_ends)
    except PartitionRefused as refused:
        findings.refusal = f"{refused.reason}; its messages were not looked at"
    except OSError as error:
        name = f": {error.filename}" if error.filename else ""
        findings.refusal = f"cannot be read: {error.strerror or error}{name}"
    else:
        _describe(findings, loaded)
        findings.unsettled = bool(disk.changes) or findings.incarnation_fault is not None
    return findings


def repair_partition(
    files: Files, settings: LogSettings, findings: PartitionFindings, clock: Clock
) -> PartitionFindings:
    """Repair the findings of ``check_partition`` in a partition that is not open; return the new findings.

    Every intact message that the check found and that was ever durable stays. A damaged incarnation is replaced by a
    new one, as the next start would do.

    Raises:
        OSError: The disk fails; another repair continues from there.
    """
    if findings.refusal is not None or not findings.unsettled:
        return findings
    kept = _keep(files, findings)
    if findings.lost is not None:
        loss = loss_of_end(findings.lost, findings.directory.name, clock.now_ms())
        Losses(files, findings.directory.parent).add(loss)
    load(files, findings.directory, settings, "full", known_ends=findings.known_ends)
    if findings.incarnation_fault is not None:
        write_incarnation(files, findings.directory, Incarnation.new().uuid)
    findings.incarnation = read_incarnation(files, findings.directory)
    return replace(findings, unsettled=False, repaired=True, kept=kept)


def _describe(findings: PartitionFindings, loaded: Loaded) -> None:
    report = loaded.report
    findings.start_offset, findings.end_offset = loaded.segments[0].start, loaded.segments[-1].end
    findings.segments = len(loaded.segments)
    findings.damage = report.damage
    findings.known = [entry for entry in loaded.damage if entry not in report.damage]
    lost = sum(entry.messages for entry in loaded.damage)
    findings.messages = sum(segment.messages for segment in loaded.segments) - lost
    findings.missing_bytes, findings.lost = report.missing_bytes, report.lost
    findings.suspect, findings.renumbered = report.suspect, report.renumbered
    findings.unfinished = report.removed
    if report.cut_at is not None:
        findings.torn = TornTail(report.cut_at, report.bytes_cut)
    for segment in loaded.segments:
        changed = [*(entry.start for entry in report.damage), *(span.start for span in report.suspect)]
        innocent = any(segment.start <= start < segment.end for start in changed)  # the bytes changed, not the index
        if segment.start in report.indexes_rebuilt and not innocent:
            _blame_index(findings, segment.start)
    if findings.live and findings.indexes:  # the newest one grows while it is checked
        newest = max(findings.indexes)
        if findings.indexes[newest] is IndexState.DAMAGED:
            findings.indexes[newest] = IndexState.SHORT


def _blame_index(findings: PartitionFindings, start: int) -> None:
    if findings.indexes.get(start) in (IndexState.COMPLETE, IndexState.SHORT):
        findings.indexes[start] = IndexState.DAMAGED


def _index_states(files: Files, directory: Path) -> dict[int, IndexState]:
    return {
        file.start: _index_state(files, directory, file)
        for file in find_segment_files(directory, files.listdir(directory))
        if file.named
    }


def _index_state(files: Files, directory: Path, file: SegmentFile) -> IndexState:
    path, end = index_path(directory, file.start), file.start + files.stat(file.path).size
    if not files.is_file(path):
        return IndexState.MISSING
    entries, whole = index_file.read_entries(files, path, file.start)
    if not whole or not entries or entries[0].offset != file.start or entries[-1].offset > end:
        return IndexState.DAMAGED
    return IndexState.COMPLETE if entries[-1].offset == end else IndexState.SHORT


def _incarnation(files: Files, directory: Path) -> tuple[str | None, str | None]:
    """Return the partition's incarnation, or why it cannot be read."""
    try:
        return read_incarnation(files, directory), None
    except IncarnationDamaged as damaged:
        return None, str(damaged)


# ---- keeping what is cut off


def _keep(files: Files, findings: PartitionFindings) -> list[str]:
    kept = []
    for file in find_segment_files(findings.directory, files.listdir(findings.directory)):
        end = file.start + files.stat(file.path).size
        if file.path.name in findings.unfinished:
            if end > file.start:
                kept.append(_copy(files, file.path, 0, file.path.name + KEPT_SUFFIX))
        elif findings.torn is not None and end > findings.torn.offset:
            offset = max(findings.torn.offset, file.start)
            kept.append(_copy(files, file.path, offset - file.start, f"{offset:020d}{KEPT_SUFFIX}"))
    return kept


def _copy(files: Files, source: Path, position: int, name: str) -> str:
    """Copy a file from ``position`` on to ``name`` beside it, or to ``name.NUMBER`` if that exists; durably."""
    target = _free_name(files, source.with_name(name))
    scratch = source.with_name(name + ".tmp")
    reading, writing = files.open_read(source), files.open_append(scratch)
    try:
        files.truncate(writing, 0)
        at = 0
        while data := files.pread(reading, _COPY_BYTES, position + at):
            files.pwrite(writing, data, at)
            at += len(data)
        files.fsync(writing)
    finally:
        files.close(reading)
        files.close(writing)
    files.rename(scratch, target)
    files.fsync_dir(source.parent)
    return target.name


def _free_name(files: Files, path: Path) -> Path:
    if not files.exists(path):
        return path
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(candidate for candidate in numbered if not files.exists(candidate))
