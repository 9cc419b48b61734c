"""Reads what the checkpoint folder tells: positions, times of batches, damage. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from metaq.formats.checkpoint_files import NO_OFFSET
from metaq_spark.backend import format_of
from metaq_spark.checkpoint.folder import (
    Checkpoint,
    NoBatchYet,
    local_folder,
    query_id_of,
    read_batch,
    read_checkpoint,
)
from metaq_spark.checkpoint.sources import CheckpointSource, is_move, read_line, read_sources
from metaq_spark.diagnosis.evidence import Batch, FolderEvidence, SourceFolder
from metaq_spark.errors import CheckpointError, ConnectorError
from metaq_spark.offsets import Progress

TIMES_KEPT: Final = 50
"""Batches whose times are looked at."""
POSITIONS_KEPT: Final = 20
"""Batches whose positions are read."""


def read_folder(place: str, now_ms: int) -> FolderEvidence:
    """Return what the folder tells: that a file is damaged, or that no batch has begun, is evidence, too.

    Raises:
        CheckpointFolderError: It is not a checkpoint, or is elsewhere.
        CheckpointError: An offset was written by a newer version.
        OSError: It cannot be read.
    """
    folder = local_folder(place)
    planned, committed = _times(folder / "offsets"), _times(folder / "commits")
    numbers = sorted(planned)[-TIMES_KEPT:]
    batches = tuple(Batch(number, planned[number], committed.get(number)) for number in numbers)
    try:
        checkpoint = read_checkpoint(folder)
    except NoBatchYet:
        return FolderEvidence(str(folder), now_ms, query_id=query_id_of(folder))
    except ConnectorError as error:
        if not numbers or (damage := _damage(folder, numbers[-1], committed)) is None:
            raise
        del error
        return FolderEvidence(str(folder), now_ms, batches=batches, damage=damage)
    newest = checkpoint.planned or checkpoint.committed
    assert newest is not None  # a checkpoint has a batch
    return FolderEvidence(
        folder=str(folder),
        read_ms=now_ms,
        query_id=checkpoint.query_id,
        batches=batches,
        sources=tuple(_sources(checkpoint, batches)),
        damage=_damaged_lines(checkpoint),
        uncommitted=sum(1 for number in numbers if number > max(committed, default=-1)),
        moved=is_move(checkpoint.planned),
        ran_move=is_move(checkpoint.committed),
        state_partitions=_state_partitions(folder),
        conf=dict(newest.metadata.get("conf") or {}),
    )


def _sources(checkpoint: Checkpoint, batches: tuple[Batch, ...]) -> Iterator[SourceFolder]:
    earlier = list(_earlier(checkpoint, batches))
    for source in read_sources(checkpoint):
        history = [
            (batch.planned_ms, at)
            for batch, lines in earlier
            if source.key in lines and (at := _line(lines[source.key])) is not None
        ]
        yield SourceFolder(source.number, source.name, _format(source), source.read_to, source.planned, tuple(history))


def _format(source: CheckpointSource) -> str | None:
    """Return the format; a source of ours whose first batch is planned has its partitions there."""
    if source.read_to is None:
        return None
    return source.format if source.read_to.offsets or source.planned is None else format_of(source.planned)


def _earlier(checkpoint: Checkpoint, batches: tuple[Batch, ...]) -> Iterator[tuple[Batch, Mapping[str, str]]]:
    """Yield the last planned batches that can be read, each with the line of every source."""
    for batch in batches[-POSITIONS_KEPT:]:
        try:
            yield batch, read_batch(checkpoint.folder, batch.number).lines
        except (ConnectorError, OSError, ValueError):
            continue


def _line(line: str) -> Progress | None:
    try:
        return read_line(line)
    except CheckpointError:
        return None


def _times(folder: Path) -> dict[int, int]:
    """Return the time in ms at which each numbered file was written."""
    found = {}
    for each in folder.glob("*"):
        if each.name.isascii() and each.name.isdecimal():
            try:
                found[int(each.name)] = int(each.stat().st_mtime * 1000)
            except FileNotFoundError:  # Spark removes old ones
                continue
    return found


def _damage(folder: Path, newest: int, committed: dict[int, int]) -> tuple[str, str] | None:
    """Return the newest file that is empty or cut off, and what it is; ``None`` if something else is wrong."""
    for name in (f"offsets/{newest}", *([f"commits/{max(committed)}"] if committed else []), "metadata"):
        file = folder / name
        if not file.exists():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if not text.strip("\0\n "):
            return name, "is empty" if not text else "has nothing but zeros"
        if name != "metadata" and len(text.splitlines()) < 2:
            return name, "is cut off"
        if (name == "metadata" and "}" not in text) or (name != "metadata" and "}" not in text.splitlines()[1]):
            return name, "is cut off"
    return None


def _damaged_lines(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """Return the planned batch if a line of it is cut off: the batch before has ours there, and more lines."""
    planned, before = checkpoint.planned, checkpoint.committed
    if planned is None or before is None:
        return None
    name = f"offsets/{planned.batch_id}"
    if len(planned.lines) < len(before.lines):
        return name, "is cut off"
    for key, line in planned.lines.items():
        then = before.lines.get(key, NO_OFFSET)
        if _line(then) is not None and _line(line) is None and not _is_whole(line):
            return name, "is cut off"
    return None


def _is_whole(line: str) -> bool:
    return line == NO_OFFSET or line.rstrip().endswith("}")


def _state_partitions(folder: Path) -> dict[str, int]:
    """Return how many partitions the state of each operator has."""
    found = {}
    for operator in (folder / "state").glob("[0-9]*"):
        found[operator.name] = sum(1 for each in operator.glob("[0-9]*") if each.name.isdecimal())
    return found
