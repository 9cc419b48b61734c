"""What was lost of a data folder's partitions and is not acknowledged yet: kept until an operator has seen it.

File ``lost-data`` in the data folder, UTF-8 text, written atomically before anything is repaired::

    metaq-lost-data 1
    START END TIME_MS KIND FOLDER    durable bytes [START, END) were found gone at TIME_MS; FOLDER is the rest
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A file that cannot be read is replaced with the next loss.

Source: docs/log-format.md, "When durable bytes are gone".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from metaq_broker.storage.files import Files
from metaq_broker.storage.lost_end import LostEnd
from metaq_broker.storage.sealed_text import seal, unseal

FILE_NAME: Final = "lost-data"
_TITLE: Final = "metaq-lost-data 1"
_LOGGER = logging.getLogger(__name__)

END, END_UNSURE, SEGMENTS, FOLDER = "end", "end-unsure", "segments", "folder"
_CONSEQUENCES: Final[Mapping[str, str]] = {
    END: "bytes that were durable are gone; the partition goes on behind them",
    END_UNSURE: "bytes that were durable are gone; the partition goes on behind them, with a new incarnation",
    SEGMENTS: "all segments are gone; offsets begin again, with a new incarnation",
    FOLDER: "the partition's folder is gone",
}


class Loss(NamedTuple):
    """Durable bytes ``[start, end)`` of the partition in ``folder`` were found gone at ``time_ms``."""

    start: int
    end: int
    time_ms: int
    kind: str
    folder: str

    @property
    def reason(self) -> str:
        """What is gone, and what follows from it."""
        return _CONSEQUENCES.get(self.kind, self.kind)


def loss_of_end(lost: LostEnd, folder: str, now_ms: int) -> Loss:
    """Describe a lost end."""
    kind = SEGMENTS if lost.all_segments else END if lost.exact else END_UNSURE
    return Loss(lost.start, lost.end, now_ms, kind, folder)


def read_losses(files: Files, data_path: Path) -> list[Loss]:
    """Return what is not acknowledged, oldest first; nothing without the file or if it is damaged."""
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
        """The losses that nobody has acknowledged, oldest first."""
        return tuple(self._known)

    def add(self, loss: Loss) -> None:
        """Keep a loss, durably; one that is kept already, and was not repaired because of a crash, is kept once.

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
        """Forget what was lost of a partition, durably; return whether there was anything.

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
