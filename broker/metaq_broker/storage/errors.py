"""What can go wrong with stored partitions. Every error carries the fields its sentence is made of.

::

    MetaqError
    ├── LogFailed          a partition is read-only: a write or an fsync failed, and why
    │   └── LogFull        it is not: there was no space, and there may be some soon
    ├── PartitionRefused   a partition folder cannot be opened as it stands; nothing in it was changed
    ├── StoreLocked        another broker uses the data folder
    └── TopicNameRefused   a topic name that cannot be (part of) a folder name
"""

from __future__ import annotations

import errno
from pathlib import Path

from metaq.errors import MetaqError


class LogFailed(MetaqError):
    """Nothing may be appended to ``partition`` any more; ``reason`` is the failure that made it read-only."""

    def __init__(self, partition: str, reason: str) -> None:
        self.partition, self.reason = partition, reason
        super().__init__(partition, reason)

    def __str__(self) -> str:
        return f"partition {self.partition} is read-only: {self.reason}"


class LogFull(LogFailed):
    """There is no space on the disk for what was to be appended to ``partition``; nothing else is wrong with it."""

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.reason}"


def is_disk_full(error: OSError) -> bool:
    """Return whether an operation failed for want of space, or of the space that this user may use."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_files(error: OSError) -> bool:
    """Return whether a file was not opened because this process, or the system, may open no more."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class PartitionRefused(MetaqError):
    """The files in ``directory`` do not make up a partition; ``reason`` names the ones that do not fit."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.directory, self.reason = directory, reason
        super().__init__(directory, reason)

    def __str__(self) -> str:
        return f"partition folder {self.directory} is refused: {self.reason}"


class StoreLocked(MetaqError):
    """The data folder ``path`` is in use by the process ``owner`` (its id as text, ``unknown`` if it left none)."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.owner = path, owner
        super().__init__(path, owner)

    def __str__(self) -> str:
        advice = "stop it or give this one another dataPath"
        return f"data folder {self.path} is in use by another broker, process {self.owner}; {advice}"


class TopicNameRefused(MetaqError):
    """``topic`` cannot be stored, because its partitions' folders could not have such names."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(topic, reason)

    def __str__(self) -> str:
        return f"topic name {self.topic[:80]!r} cannot be stored: {self.reason}"
