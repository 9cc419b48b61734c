"""A partition's incarnation: the UUID that its folder got at its creation, so that a recreated partition is noticed.

When a topic is deleted and created again, byte offsets begin again, and old offsets soon look valid again. File
``incarnation`` in the partition's folder, UTF-8 text, written atomically::

    metaq-incarnation 1
    UUID                             32 lower-case hex digits
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A new partition's UUID is created in memory and written by the first sync, before any message is readable unless that
write fails; a partition without the file (a Java broker's, or an older version's) gets one when it is opened. It is not
reported before it is durable, so a crash never undoes one that a reader has stored. It belongs to the folder: a copied
or renamed folder keeps it, a deleted one loses it.

A damaged file may be another partition's, so it is replaced by a new incarnation, with a warning. Readers that know the
old one then stop, or begin again, as for a recreated topic: both are better than using offsets that may mean other
messages.

Source: docs/log-format.md, docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

FILE_NAME: Final = "incarnation"
_TITLE: Final = "metaq-incarnation 1"
_FORM: Final = re.compile(r"[0-9a-f]{32}")


class IncarnationDamaged(ValueError):
    """The file was read, and its contents are invalid; the text says why."""


class Incarnation:
    """A partition's UUID, and whether it is durable. Create one with ``new`` or ``of_folder``."""

    def __init__(self, uuid: str, *, durable: bool) -> None:
        self.uuid = uuid
        self.durable = durable

    @classmethod
    def new(cls) -> Incarnation:
        """Return a new one, which the next sync writes."""
        return cls(uuid4().hex, durable=False)

    @classmethod
    def of_folder(cls, files: Files, directory: Path) -> tuple[Incarnation, str | None]:
        """Return the incarnation of a partition on the disk, and the fault of a damaged one (blocking).

        It is created if there is none. If it cannot be written, the partition is served without it, and each sync tries
        again.

        Raises:
            OSError: The file exists and cannot be read.
        """
        fault = None
        try:
            found = read_incarnation(files, directory)
        except IncarnationDamaged as damaged:
            found, fault = None, str(damaged)
        if found is not None:
            return cls(found, durable=True), None
        made = cls.new()
        made.settle(files, directory)
        return made, fault

    def settle(self, files: Files, directory: Path) -> None:
        """Write it unless it is durable; if that fails, a later sync tries again (blocking; any thread)."""
        if not self.durable:
            with contextlib.suppress(OSError):
                write_incarnation(files, directory, self.uuid)
                self.durable = True


def read_incarnation(files: Files, directory: Path) -> str | None:
    """Return the UUID of a partition's folder, ``None`` if it has none.

    Raises:
        IncarnationDamaged: The file's contents are invalid.
    """
    path = directory / FILE_NAME
    if not files.exists(path):
        return None
    try:
        lines = unseal(_TITLE, files.read_bytes(path))
    except ValueError as error:
        raise IncarnationDamaged(str(error)) from None
    if len(lines) != 1 or not _FORM.fullmatch(lines[0]):
        raise IncarnationDamaged("it holds no UUID of 32 hex digits")
    return lines[0]


def write_incarnation(files: Files, directory: Path, uuid: str) -> None:
    """Write the incarnation of a partition's folder; durable on return (blocking; any thread).

    Raises:
        OSError: The disk refuses.
    """
    files.write_atomic(directory / FILE_NAME, seal(_TITLE, [uuid]))


def remove_incarnation(files: Files, directory: Path) -> None:
    """Remove a former incarnation from a folder without segments; durable on return (blocking)."""
    path = directory / FILE_NAME
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(directory)
