"""The durable ends of a data folder's partitions, recorded outside the partitions, so that a lost end is noticed.

File ``durable-ends`` in the data folder, UTF-8 text, replaced atomically about every second while something changes::

    metaq-durable-ends 1
    END ORDINAL INCARNATION FOLDER   durable at least up to END, ORDINAL messages; FOLDER is the rest of the line
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A partition may have grown since, so its end is expected at or after the recorded one. If it is before the recorded
one, durable bytes are lost: readers know their offsets, which must not be given to other messages. A missing or damaged
file has no effect.

Source: docs/log-format.md, "When durable bytes are gone".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import CleanEnd, seal, unseal
from metaq_broker.log.partitions.incarnation import IncarnationDamaged, read_incarnation

FILE_NAME: Final = "durable-ends"
_TITLE: Final = "metaq-durable-ends 1"


class KnownEnd(NamedTuple):
    """A partition was durable up to ``end``, with ``ordinal`` messages before it, if that is known.

    ``exact``: no message after ``end`` can have been acknowledged.
    """

    end: int
    ordinal: int | None
    exact: bool


class NotedEnd(NamedTuple):
    """One line of the file."""

    end: int
    ordinal: int
    incarnation: str


def read_durable_ends(files: Files, data_path: Path) -> dict[str, NotedEnd]:
    """Return the recorded end of each partition folder; empty without the file or if it is damaged."""
    path = data_path / FILE_NAME
    if not files.exists(path):
        return {}
    try:
        return dict(_parse(line) for line in unseal(_TITLE, files.read_bytes(path)))
    except ValueError:
        return {}


def _parse(line: str) -> tuple[str, NotedEnd]:
    end, ordinal, incarnation, folder = line.split(" ", 3)
    return folder, NotedEnd(int(end), int(ordinal), incarnation)


def write_durable_ends(files: Files, data_path: Path, ends: Mapping[str, NotedEnd]) -> None:
    """Replace the file; durable on return."""
    lines = (
        f"{end.end} {end.ordinal} {end.incarnation} {folder}"
        for folder, end in sorted(ends.items())
        if "\n" not in folder
    )
    files.write_atomic(data_path / FILE_NAME, seal(_TITLE, lines))


def known_ends(files: Files, directory: Path, clean: CleanEnd | None, noted: NotedEnd | None) -> Sequence[KnownEnd]:
    """Return what a clean-shutdown mark and a recorded end say about an existing partition (blocking).

    A clean end is exact. A recorded end of another incarnation is from a former partition and is ignored.

    Raises:
        OSError: The incarnation file cannot be read.
    """
    known = []
    if noted is not None:
        incarnation: str | None = None
        with contextlib.suppress(IncarnationDamaged):
            incarnation = read_incarnation(files, directory)
        if incarnation in (None, noted.incarnation):
            known.append(KnownEnd(noted.end, noted.ordinal, exact=False))
    if clean is not None:
        known.append(KnownEnd(clean.end, None, exact=True))
    return known


class DurableEnds:
    """Keeps the file of one data folder. ``write`` and ``forget`` may be called from any thread (blocking)."""

    def __init__(self, files: Files, data_path: Path) -> None:
        self._files, self._data_path = files, data_path
        self._lock = Lock()
        self._written: dict[str, NotedEnd] | None = None
        self._gone: set[str] = set()

    def write(self, ends: Mapping[str, NotedEnd]) -> None:
        """Record these ends, replacing all others, if they differ from the last ones.

        Raises:
            OSError: The disk refuses.
        """
        with self._lock:
            self._write({folder: end for folder, end in ends.items() if folder not in self._gone})

    def forget(self, folders: Iterable[str]) -> None:
        """Drop folders before they are removed or renamed, so that they do not count as lost.

        Raises:
            OSError: The disk refuses.
        """
        with self._lock:
            self._gone |= set(folders)
            left = {folder: end for folder, end in (self._written or {}).items() if folder not in self._gone}
            self._write(left)

    def remember(self, folder: str) -> None:
        """Record that a folder of this name exists again."""
        with self._lock:
            self._gone.discard(folder)

    def _write(self, ends: dict[str, NotedEnd]) -> None:
        if ends != self._written:
            self._written = None  # unknown after a failure
            write_durable_ends(self._files, self._data_path, ends)
            self._written = ends
