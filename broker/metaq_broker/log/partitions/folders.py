"""Folders of partitions: names, removal, renaming.

The name is ``TOPIC-INDEX``, split at the last dash. A crash never leaves a half-deleted partition: a folder is first
renamed atomically to ``TOPIC-INDEX.being-deleted``, which is not a partition. The rest of such folders is removed at
the next start.

Source: docs/administration.md, "Partitions".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metaq_broker.log.files.files import Files

DELETED_SUFFIX: Final = ".being-deleted"


def delete_folder(files: Files, directory: Path) -> None:
    """Remove a partition's folder with its contents; it must not be open (blocking; any thread).

    Raises:
        OSError: If the folder still has its name, nothing was removed; otherwise the next start continues.
    """
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    if files.exists(doomed):
        _remove(files, doomed)
    files.rename(directory, doomed)
    files.fsync_dir(directory.parent)
    _remove(files, doomed)


def rename_folder(files: Files, old: Path, new: Path) -> None:
    """Rename a partition's folder durably; it must not be open (blocking; any thread).

    Raises:
        FileExistsError: The new name is taken.
        OSError: The folder has its old name, or the new one, which a power failure may undo.
    """
    if files.exists(new):  # rename itself would replace an empty folder
        raise FileExistsError(f"{new} exists")
    files.rename(old, new)
    files.fsync_dir(new.parent)


def finish_deletions(files: Files, data_path: Path) -> list[str]:
    """Remove the rest of deleted partitions after crashes; return the folders' names (blocking).

    Raises:
        OSError: A folder cannot be removed.
    """
    names = [
        name for name in files.listdir(data_path) if name.endswith(DELETED_SUFFIX) and files.is_dir(data_path / name)
    ]
    for name in names:
        _remove(files, data_path / name)
    return names


def _remove(files: Files, doomed: Path) -> None:
    for name in files.listdir(doomed):
        files.unlink(doomed / name)
    files.rmdir(doomed)
    files.fsync_dir(doomed.parent)


def folder_name(topic: str, index: int) -> str:
    return f"{topic}-{index}"


def parse_folder_name(name: str) -> tuple[str, int]:
    """Return topic and index of a partition's folder.

    Raises:
        ValueError: The name is not TOPIC-INDEX with a plain decimal index.
    """
    topic, dash, digits = name.rpartition("-")
    if not topic or not dash or not (digits.isascii() and digits.isdigit()) or str(int(digits)) != digits:
        raise ValueError(f"folder name {name!r}: expected TOPIC-INDEX, for example orders-0")
    return topic, int(digits)
