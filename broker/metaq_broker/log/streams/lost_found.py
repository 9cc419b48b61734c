"""``lost+found``: what a member of a pair had and its leader had not, kept for operators, and never read by the broker.

A returning member cuts the bytes that its leader does not have: they were never acknowledged, or the members would
agree on them. In each data folder::

    lost+found/NAME/OFFSET-epoch-EPOCH-TIME.tail   bytes that stream NAME had from byte OFFSET on; cut for the leader of
                                                   EPOCH, at TIME (ms since 1970)
    lost+found/NAME/INCARNATION-TIME/              all files of a stream that was put aside
    lost+found/NAME/intention                      only while a tail is being cut

Cutting takes several steps, each of which may be repeated: the intention is durable first, then the copy of the tail,
then the cut; then the intention is removed. A start finishes what is there.

``intention`` is UTF-8 text, replaced atomically::

    metaq-cut 1
    OFFSET EPOCH TIME MASTER         cut at byte OFFSET, for MASTER, the leader of EPOCH
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

Source: docs/log-format.md, "A member of a pair".
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from metaq.errors import MetaqError
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

_LOG: Final = logging.getLogger(__name__)

FOLDER_NAME: Final = "lost+found"
INTENTION_NAME: Final = "intention"
TAIL_SUFFIX: Final = ".tail"
_TITLE: Final = "metaq-cut 1"
_TAIL: Final = re.compile(r"(\d{20})-epoch-(\d+)-(\d+)\.tail")
_ASIDE: Final = re.compile(r"([0-9a-f]{32})-(\d+)")
_COPY_BYTES: Final = 1 << 20


class IntentionDamaged(MetaqError):
    """An intention cannot be read; the text names the file and says what to do."""


class Intention(NamedTuple):
    """Bytes from ``offset`` on are to be cut, for ``master``, the leader of ``epoch``; since ``time_ms``."""

    offset: int
    epoch: int
    time_ms: int
    master: str


class Kept(NamedTuple):
    """An entry of ``lost+found``: a tail from ``offset`` on, or a whole stream (``offset`` is ``None``)."""

    stream: str
    path: Path
    byte_count: int
    time_ms: int
    offset: int | None


class TailFiles(Protocol):
    """The files of one stream that is closed, for cutting its tail (blocking). Every method may be repeated.

    All raise ``OSError``.
    """

    @property
    def end(self) -> int:
        """Return where the files end now."""

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return bytes before ``end``, at least one, whatever they are."""

    def forget_end(self, offset: int) -> None:
        """Lower all records that say that the stream is durable after ``offset``: its loss is intended."""

    def cut(self, offset: int) -> None:
        """Remove the bytes from ``offset`` on, and everything derived from them, durably."""


def cut_tail(files: Files, data_path: Path, name: str, tail: TailFiles, intention: Intention) -> None:
    """Keep a stream's bytes from ``intention.offset`` on in ``lost+found``, then cut them (blocking; any thread).

    Raises:
        OSError: The disk refuses; ``finish_cuts`` at the next start goes on.
    """
    folder = data_path / FOLDER_NAME / name
    files.make_folders(folder)
    line = f"{intention.offset} {intention.epoch} {intention.time_ms} {intention.master}"
    files.write_atomic(folder / INTENTION_NAME, seal(_TITLE, [line]))
    _carry_out(files, folder, name, tail, intention)


def finish_cuts(files: Files, data_path: Path, name: str, tail: TailFiles) -> Intention | None:
    """Finish the cut of a stream that a crash interrupted; return it, ``None`` if there was none (blocking).

    Raises:
        IntentionDamaged: It cannot be read; nothing was changed.
        OSError: The disk refuses.
    """
    folder = data_path / FOLDER_NAME / name
    intention = read_intention(files, folder)
    if intention is not None:
        _carry_out(files, folder, name, tail, intention)
    return intention


def read_intention(files: Files, folder: Path) -> Intention | None:
    """Return the intention in a stream's folder of ``lost+found`` (blocking). Raises as ``finish_cuts``."""
    path = folder / INTENTION_NAME
    if not files.exists(path):
        return None
    try:
        [line] = unseal(_TITLE, files.read_bytes(path))
        offset, epoch, time_ms, master = line.split(" ", 3)
        return Intention(int(offset), int(epoch), int(time_ms), master)
    except ValueError as error:
        text = f"{path}: {error}; a cut of stream {folder.name} was interrupted: restore the file, or remove it"
        raise IntentionDamaged(text) from error


def _carry_out(files: Files, folder: Path, name: str, tail: TailFiles, intention: Intention) -> None:
    offset, lost = intention.offset, max(0, tail.end - intention.offset)
    path = folder / f"{offset:020d}-epoch-{intention.epoch}-{intention.time_ms}{TAIL_SUFFIX}"
    if lost and not files.exists(path):  # else a part of it may be cut already
        _keep(files, path, tail, offset)
    tail.forget_end(offset)
    tail.cut(offset)
    files.unlink(folder / INTENTION_NAME)
    files.fsync_dir(folder)
    fields = {"stream": name, "offset": offset, "bytes": lost, "kept": path if lost else None}
    _LOG.warning(
        "bytes that the leader does not have were cut",
        extra={"fields": {**fields, "epoch": intention.epoch, "leader": intention.master}},
    )


def _keep(files: Files, path: Path, tail: TailFiles, offset: int) -> None:
    scratch = path.with_name(path.name + ".tmp")
    fd = files.open_append(scratch)
    try:
        files.truncate(fd, 0)
        at, end = offset, tail.end
        while at < end:
            data = tail.read(at, min(_COPY_BYTES, end - at))
            if any(data):  # a hole stays one
                files.pwrite(fd, data, at - offset)
            at += len(data)
        files.truncate(fd, end - offset)
        files.fsync(fd)
    finally:
        files.close(fd)
    files.rename(scratch, path)
    files.fsync_dir(path.parent)


def put_aside(files: Files, data_path: Path, stream_folder: Path, incarnation: str, time_ms: int) -> Path:
    """Move a closed stream's folder to ``lost+found``, durably; return its new path (blocking; any thread).

    Raises:
        OSError: The disk refuses; the folder has one of the two names.
    """
    folder = data_path / FOLDER_NAME / stream_folder.name
    files.make_folders(folder)
    target = folder / f"{incarnation}-{time_ms}"
    files.rename(stream_folder, target)
    files.fsync_dir(folder)
    files.fsync_dir(stream_folder.parent)
    return target


def remove_kept(files: Files, path: Path) -> None:
    """Remove a stream that was put aside, if it is there (blocking); what is left of it only costs space."""
    with contextlib.suppress(OSError):
        for name in files.listdir(path) if files.exists(path) else ():
            files.unlink(path / name)
        if files.exists(path):
            files.rmdir(path)


def kept(files: Files, data_path: Path) -> Iterator[Kept]:
    """Yield what ``lost+found`` of a data folder has, by stream (blocking). Raises ``OSError``."""
    root = data_path / FOLDER_NAME
    if not files.is_dir(root):
        return
    for name in files.listdir(root):
        if not files.is_dir(root / name):
            continue
        for entry in files.listdir(root / name):
            path = root / name / entry
            if match := _TAIL.fullmatch(entry):
                yield Kept(name, path, files.stat(path).size, int(match[3]), int(match[1]))
            elif (match := _ASIDE.fullmatch(entry)) and files.is_dir(path):
                byte_count = sum(files.stat(path / each).size for each in files.listdir(path))
                yield Kept(name, path, byte_count, int(match[2]), None)


def unfinished(files: Files, data_path: Path) -> list[str]:
    """Return the names of the streams of a data folder whose cut was interrupted (blocking). Raises ``OSError``."""
    root = data_path / FOLDER_NAME
    if not files.is_dir(root):
        return []
    return [name for name in files.listdir(root) if files.is_file(root / name / INTENTION_NAME)]
