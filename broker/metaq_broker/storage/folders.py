"""Removing a partition's folder, and giving it another name, so that a crash leaves no partition half there.

A folder that is to go first loses its name in one step: ``TOPIC-INDEX.being-deleted`` is nobody's partition. What a
crash leaves of such folders is removed at the next start.

Source: docs/operations.md, "Partitions".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metaq_broker.storage.files import Files

DELETED_SUFFIX: Final = ".being-deleted"


def delete_folder(files: Files, directory: Path) -> None:
    """Remove a partition's folder with all that is in it; nobody has it open (blocking; any thread).

    Raises:
        OSError: If the folder still has its name, nothing was removed; otherwise the next start goes on with it.
    """
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    if files.exists(doomed):
        _remove(files, doomed)
    files.rename(directory, doomed)
    files.fsync_dir(directory.parent)
    _remove(files, doomed)


def rename_folder(files: Files, old: Path, new: Path) -> None:
    """Give a partition's folder another name, durably; nobody has it open (blocking; any thread).

    Raises:
        FileExistsError: The new name is taken.
        OSError: The folder has its old name, or the new one, which may be lost in a power failure.
    """
    if files.exists(new):  # rename itself would replace an empty folder
        raise FileExistsError(f"{new} exists")
    files.rename(old, new)
    files.fsync_dir(new.parent)


def finish_deletions(files: Files, data_path: Path) -> list[str]:
    """Remove what crashes left of deleted partitions; return the folders' names (blocking).

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
