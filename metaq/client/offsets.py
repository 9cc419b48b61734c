"""Storages of consumer group offsets: in memory or in a file; ``sql_offsets`` has databases.

By default, a group of a cluster with ZooKeeper stores its offsets there, as MetaQ's Java client does, a group at
bundled brokers at these, and any other group in an SQLite file of this machine.

Source: docs/client.md, "Where offsets are stored".
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from metaq.discovery.zk_layout import GroupOffset, is_unchanged
from metaq.errors import StoreFailed
from metaq.model import Partition, TopicPartition
from metaq.net.clock import wall_clock_ms

__all__ = [
    "ConditionalStorage",
    "FileOffsets",
    "GroupOffset",
    "IncarnationStorage",
    "MemoryOffsets",
    "OffsetStorage",
    "file",
    "is_unchanged",
    "memory",
]


class OffsetStorage(Protocol):
    """Stores the offsets of groups. A consumer calls it from one thread at a time.

    Methods raise ``StoreFailed``, or another ``MetaqError``, if the storage cannot be used.
    """

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        """Return the saved offsets of ``group`` in ``partitions``; partitions without one are left out."""

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Store ``offsets`` durably; offsets of other partitions are kept."""

    def close(self) -> None:
        """Release open resources; the storage may be used again."""


@runtime_checkable
class ConditionalStorage(OffsetStorage, Protocol):
    """A storage that compares and saves in one atomic step."""

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Store the offsets for which ``is_unchanged`` holds, as ``save`` does; return the stored offsets of the
        others.
        """


@runtime_checkable
class IncarnationStorage(OffsetStorage, Protocol):
    """A storage that also stores which incarnation of a partition an offset belongs to (docs/glossary.md)."""

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Return the saved incarnations."""

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        """Store ``offsets`` and ``incarnations`` (``None``: unknown) in one atomic step."""


class LockedStorage(ABC):
    """A ``ConditionalStorage`` whose offsets are guarded by a lock."""

    @abstractmethod
    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]: ...

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        with self._locked():
            self._merge(group, offsets)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        with self._locked():
            there = self.load(group, offsets)
            changed = {
                where: there.get(where)
                for where, new in offsets.items()
                if not is_unchanged(there.get(where), expected.get(where), new)
            }
            if len(changed) < len(offsets):
                self._merge(group, {where: offset for where, offset in offsets.items() if where not in changed})
        return changed

    @abstractmethod
    def _locked(self) -> AbstractContextManager[object]:
        """Hold the lock that excludes other writers until the end of the block."""

    @abstractmethod
    def _merge(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Store ``offsets``; offsets of other partitions are kept."""


class MemoryOffsets(LockedStorage):
    """Offsets in memory, lost at exit; for tests, and for programs that always start from the beginning."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, TopicPartition], GroupOffset] = {}
        self._incarnations: dict[tuple[str, TopicPartition], str | None] = {}
        self._lock = threading.Lock()

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return {where: self.offsets[group, where] for where in partitions if (group, where) in self.offsets}

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        found = {where: self._incarnations.get((group, where)) for where in partitions}
        return {where: incarnation for where, incarnation in found.items() if incarnation is not None}

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        with self._lock:
            self._merge(group, offsets)
            self._incarnations |= {(group, where): incarnation for where, incarnation in incarnations.items()}

    def _locked(self) -> AbstractContextManager[object]:
        return self._lock

    def _merge(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self.offsets.update({(group, where): offset for where, offset in offsets.items()})

    def close(self) -> None: ...


class FileOffsets(LockedStorage):
    """Offsets in one JSON file, in the form of MetaQ's ``LocalOffsetStorage``: group -> list of partitions.

    The file is replaced as a whole. Programs on one machine may share it; MetaQ's Java client does not lock it.
    Incarnations are in a second file with the suffix ``.incarnations``: MetaQ's client rejects rows with unknown
    fields.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        rows = self._read().get(group, [])
        try:
            found = {_where(row): GroupOffset(int(row["offset"]), int(row["messageId"])) for row in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreFailed(str(self._path), f"an offset of group {group!r} cannot be read: {error!r}") from None
        return {where: found[where] for where in partitions if where in found}

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        names = self._read_incarnations().get(group, {})
        found = {where: names.get(str(where)) for where in partitions}
        return {where: incarnation for where, incarnation in found.items() if isinstance(incarnation, str)}

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        """Offsets are written first: a crash in between only repeats this save."""
        with self._locked():
            if offsets:
                self._merge(group, offsets)
            content = self._read_incarnations()
            names = content.setdefault(group, {})
            names |= {str(where): incarnation for where, incarnation in incarnations.items()}
            replace_file(self._incarnations_path, json.dumps(content, indent=1))

    @property
    def _incarnations_path(self) -> Path:
        return self._path.with_name(self._path.name + ".incarnations")

    def _read_incarnations(self) -> dict[str, dict[str, object]]:
        content = _json_in(self._incarnations_path)
        if not isinstance(content, dict) or not all(isinstance(names, dict) for names in content.values()):
            raise StoreFailed(str(self._incarnations_path), "expected a JSON object of objects, one for each group")
        return content

    def close(self) -> None: ...

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path.with_name(self._path.name + ".lock"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise StoreFailed(str(self._path), error.strerror or str(error)) from error

    def _merge(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        content = self._read()
        kept = [row for row in content.get(group, []) if _where(row) not in offsets]
        content[group] = kept + [_row(where, offset) for where, offset in offsets.items()]
        replace_file(self._path, json.dumps(content, indent=1))

    def _read(self) -> dict[str, list[Any]]:
        content = _json_in(self._path)
        if not isinstance(content, dict) or not all(isinstance(rows, list) for rows in content.values()):
            raise StoreFailed(str(self._path), "expected a JSON object of lists, one for each group")
        return content


def _json_in(path: Path) -> Any:
    """Return the parsed content of a file; an empty object if there is no file.

    Raises:
        StoreFailed: The file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreFailed(str(path), error.strerror or str(error)) from error
    except ValueError as error:
        raise StoreFailed(str(path), f"it is not JSON: {error}") from None


def _where(row: Any) -> TopicPartition:
    partition = row["partition"]
    if "brokerName" in partition:
        return TopicPartition(row["topic"], Partition(str(partition["brokerName"]), int(partition["queueId"])))
    return TopicPartition(row["topic"], Partition(int(partition["brokerId"]), int(partition["partition"])))


def _row(where: TopicPartition, offset: GroupOffset) -> dict[str, object]:
    broker, index = where.partition
    names = ("brokerName", "queueId") if isinstance(broker, str) else ("brokerId", "partition")
    return {
        "topic": where.topic,
        "partition": dict(zip(names, (broker, index), strict=True)),
        "offset": offset.offset,
        "messageId": offset.message_id,
        "modified": wall_clock_ms(),
    }


def memory() -> MemoryOffsets:
    """Return a storage in memory, which is lost at exit."""
    return MemoryOffsets()


def file(path: str | Path) -> FileOffsets:
    """Return a storage in the JSON file at ``path``, which is created when it is first needed."""
    return FileOffsets(Path(path))


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file by ``text``. A failure leaves the old content; one writer at a time.

    Raises:
        OSError: The file cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        with open(new, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
