"""The checkpoint folder of a streaming query, in Spark's format; works without Spark.

====================  =========================================================================================
``metadata``          JSON with the query's id
``offsets/N``         written before batch N: where it ends in each source
``commits/N``         written after batch N
``state/``            there if the query is stateful: its state after each batch
``.N.crc``            Hadoop's checksum beside a file; one that is missing is not missed
====================  =========================================================================================

If the last N of ``offsets`` is missing in ``commits``, batch N is planned. A starting query runs it, from the end of
``offsets/(N-1)``; without a planned batch it plans N+1, from the end of ``offsets/N``. What the files say:
``metaq.formats.checkpoint_files``.

Source: Spark 4.0 to 4.3 as observed, with and without state, and a Parquet sink.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from metaq.formats.checkpoint_files import DoneBatch, PlannedOffsets, parse_commit, parse_offsets
from metaq_spark.errors import ConnectorError

T = TypeVar("T")
_NUMBER: Final = re.compile(r"\d+")


class CheckpointFolderError(ConnectorError):
    """``folder`` cannot be used as a checkpoint; ``reason`` says why."""

    def __init__(self, folder: str | Path, reason: str) -> None:
        self.folder, self.reason = str(folder), reason
        super().__init__(self.folder, reason)

    def __str__(self) -> str:
        return f"checkpoint {self.folder}: {self.reason}"


class NoBatchYet(CheckpointFolderError):
    """The query has begun no batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Batch ``batch_id`` as it was planned."""

    batch_id: int
    offsets: PlannedOffsets

    @property
    def lines(self) -> Mapping[str, str]:
        """The line of each source, by its name."""
        return self.offsets.lines

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What Spark says about the batch."""
        return self.offsets.metadata


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a folder: the last ``committed`` batch, and the ``planned`` batch, if any."""

    folder: Path
    query_id: str | None
    committed: MicroBatch | None
    planned: MicroBatch | None
    watermark_ms: int
    stateful: bool
    quiet_s: float
    """Seconds since Spark last wrote here."""
    sink: str | None = None
    """The name of the sink, if it has one."""

    @property
    def next_batch_id(self) -> int:
        """The first id that was never planned."""
        last = self.planned or self.committed
        return 0 if last is None else last.batch_id + 1

    def batch(self, batch_id: int) -> MicroBatch:
        """Return an earlier batch.

        Raises:
            CheckpointFolderError: It is not stored (any more); the error names the stored ones.
        """
        kept = sorted(_numbered(self.folder / "offsets"))
        if batch_id not in kept:
            raise CheckpointFolderError(self.folder, f"batch {batch_id} is not there; it has {kept[0]} to {kept[-1]}")
        return read_batch(self.folder, batch_id)


def local_folder(place: str) -> Path:
    """A path, or a URI with the scheme ``file``.

    Raises:
        CheckpointFolderError: It is in another file system.
    """
    scheme, host, path, *_ = urlsplit(place)
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(path))
    if scheme and "://" in place:
        raise CheckpointFolderError(
            place,
            f"{scheme} is another file system; copy the folder here, and after a move copy the new file offsets/N back",
        )
    return Path(place)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the state of a checkpoint.

    Raises:
        NoBatchYet: No batch was planned in it.
        CheckpointFolderError: It is not a checkpoint, or has an unknown form.
    """
    if not (folder / "offsets").is_dir() and not (folder / "metadata").exists():
        raise CheckpointFolderError(folder, "there is no folder offsets in it; is this the checkpointLocation?")
    committed = _numbered(folder / "commits")  # before the others: a batch that runs now is planned, then committed
    planned = _numbered(folder / "offsets")
    if not planned:
        raise NoBatchYet(folder, "the query has not begun its first batch")
    last, done = max(planned), max(committed, default=None)
    if done is not None and done not in planned:
        raise CheckpointFolderError(folder, f"commits/{done} is there without offsets/{done}; it is not complete")
    end = DoneBatch(0, None) if done is None else _parsed(folder / "commits" / str(done), folder, parse_commit)
    return Checkpoint(
        folder=folder,
        query_id=query_id_of(folder),
        committed=None if done is None else read_batch(folder, done),
        planned=None if last == done else read_batch(folder, last),
        watermark_ms=end.watermark_ms,
        sink=end.sink,
        stateful=any((folder / "state").glob("*")),
        quiet_s=max(0.0, time.time() - _last_change_s(folder)),
    )


def add_batch(checkpoint: Checkpoint, batch: MicroBatch) -> Path:
    """Plan ``batch``: its file appears whole or not at all, and never in place of another.

    Raises:
        CheckpointFolderError: The batch exists meanwhile: the query runs.
    """
    offsets = checkpoint.folder / "offsets"
    target, draft = offsets / str(batch.batch_id), offsets / f".{batch.batch_id}.{os.getpid()}.draft"
    try:
        with open(draft, "x", encoding="utf-8") as file:
            file.write(batch.offsets.text())
            file.flush()
            os.fsync(file.fileno())
        _as_the_others(draft, offsets)
        os.link(draft, target)
        (offsets / f".{batch.batch_id}.crc").unlink(missing_ok=True)  # of another file that had this name before
    except FileExistsError:
        raise CheckpointFolderError(checkpoint.folder, f"{target.name} has just been planned: the query runs") from None
    finally:
        draft.unlink(missing_ok=True)
    sync(offsets)
    return target


def remove_planned(checkpoint: Checkpoint) -> None:
    """Remove the planned batch, if there is one."""
    if checkpoint.planned is not None:
        offsets, name = checkpoint.folder / "offsets", str(checkpoint.planned.batch_id)
        (offsets / name).unlink()
        (offsets / f".{name}.crc").unlink(missing_ok=True)
        sync(offsets)


def _as_the_others(file: Path, folder: Path) -> None:
    """Give a file that another user, perhaps root, has created to the user who runs the query."""
    pattern = next((each for each in folder.iterdir() if _NUMBER.fullmatch(each.name)), None)
    if pattern is not None:
        shutil.copymode(pattern, file)
        if os.geteuid() == 0:
            owner = pattern.stat()
            os.chown(file, owner.st_uid, owner.st_gid)


def _numbered(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.glob("*") if _NUMBER.fullmatch(each.name)]


def read_batch(folder: Path, batch_id: int) -> MicroBatch:
    """Read an existing batch; use ``Checkpoint.batch`` for one that may not exist.

    Raises:
        CheckpointFolderError: It has an unknown form.
        OSError: It cannot be read.
    """
    return MicroBatch(batch_id, _parsed(folder / "offsets" / str(batch_id), folder, parse_offsets))


def _parsed(file: Path, folder: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(file.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise CheckpointFolderError(folder, f"{file.parent.name}/{file.name} {error}") from None


def query_id_of(folder: Path) -> str | None:
    """Return the id of the query; ``None`` if it has not been written yet.

    Raises:
        CheckpointFolderError: The file has another form.
    """
    file = folder / "metadata"
    if not file.exists():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointFolderError(folder, "its file metadata does not have the id of a query") from None


def _last_change_s(folder: Path) -> float:
    return max(each.stat().st_mtime for name in ("offsets", "commits") for each in [folder / name] if each.exists())


def sync(path: str | Path) -> None:
    """Write a local file, or the names in a folder, to the disk. Raises ``OSError``."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
