"""Errors of stored partitions. Every error has the fields of its sentence.

::

    MetaqError
    ├── LogFailed          a partition is read-only: a write or an fsync failed, and why
    │   └── LogFull        it is not: there was no space, and there may be some soon
    ├── PartitionRefused   a partition folder cannot be opened; nothing in it was changed
    ├── StoreLocked        another broker uses the data folder
    ├── StateDamaged       the file of the state table has changed since it was written
    ├── StateNotWritten    a change of the state table may not be on the disk
    ├── StateFull          the state table has no space for another entry
    └── TopicNameRefused   a topic name that cannot be (part of) a folder name
"""

from __future__ import annotations

import errno
from pathlib import Path

from metaq.errors import MetaqError


class LogFailed(MetaqError):
    """Appends to ``partition`` are refused; ``reason`` is the failure that made it read-only.

    ``stored``: how many messages of the failed call are in the log, because a segment ended after them; usually 0.
    """

    stored = 0

    def __init__(self, partition: str, reason: str) -> None:
        self.partition, self.reason = partition, reason
        super().__init__(partition, reason)

    def __str__(self) -> str:
        return f"partition {self.partition} is read-only: {self.reason}"


class LogFull(LogFailed):
    """There was no space on the disk to append to ``partition``; otherwise it is intact."""

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.reason}"


def is_disk_full(error: OSError) -> bool:
    """Return whether an operation failed for lack of space, or of this user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_files(error: OSError) -> bool:
    """Return whether a file was not opened because this process, or the system, has too many open files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class PartitionRefused(MetaqError):
    """The files in ``directory`` are not a partition; ``reason`` names the ones that do not fit."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.directory, self.reason = directory, reason
        super().__init__(directory, reason)

    def __str__(self) -> str:
        return f"partition folder {self.directory} is refused: {self.reason}"


class StoreLocked(MetaqError):
    """The data folder ``path`` is used by the process ``owner`` (its id as text, ``unknown`` if it left none)."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.owner = path, owner
        super().__init__(path, owner)

    def __str__(self) -> str:
        advice = "stop it or give this one another dataPath"
        return f"data folder {self.path} is in use by another broker, process {self.owner}; {advice}"


class TopicNameRefused(MetaqError):
    """``topic`` cannot be stored, because folders of its partitions could not have such names."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(topic, reason)

    def __str__(self) -> str:
        return f"topic name {self.topic[:80]!r} cannot be stored: {self.reason}"


class StateDamaged(MetaqError):
    """The state file ``path`` is damaged: ``reason``, found at byte ``position``. Nothing was changed."""

    def __init__(self, path: object, position: int, reason: str) -> None:
        self.path, self.position, self.reason = path, position, reason
        super().__init__(path, position, reason)

    def __str__(self) -> str:
        advice = "bring it back from a copy, let `metaq-broker fsck --repair` save what can be read, or move it away"
        return f"state file {self.path} is damaged at byte {self.position}: {self.reason}; {advice}"


class StateNotWritten(MetaqError):
    """A change of the state in ``path`` may not be on the disk, for ``reason``.

    ``is_retried``: it applies in this process, and is written as soon as that is possible.
    """

    retryable = True

    def __init__(self, path: object, reason: str, *, is_retried: bool = False) -> None:
        self.path, self.reason, self.is_retried = path, reason, is_retried
        super().__init__(path, reason)

    def __str__(self) -> str:
        then = "; changes apply, and are written as soon as the disk takes them" if self.is_retried else ""
        return f"state file {self.path} cannot be written: {self.reason}{then}"


class StateFull(MetaqError):
    """An entry of ``key`` would make the state larger than ``bytes_max`` bytes."""

    def __init__(self, key: str, bytes_max: int) -> None:
        self.key, self.bytes_max = key, bytes_max
        super().__init__(key, bytes_max)

    def __str__(self) -> str:
        return f"no space for {self.key[:80]!r} in the broker's state, which may take {self.bytes_max} bytes"
