"""The progress of a mirror: target and next offset of each partition, in a JSON file.

::

    {"v": 1, "source": "...", "target": "...", "prefix": "", "topics": {"orders": {"0-0": {"to": "7-0", "next": 57,
     "last": {"offset": 34, "stored_ms": 1795156200000, "digest": "5f0c..."}}}}}

``last`` identifies the message before ``next``; files of older versions do not have it.
The file is replaced as a whole, and locked while a mirror uses it.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from metaq.client.offsets import replace_file
from metaq.errors import StoreFailed
from metaq.model import Partition
from metaq.operate.mirror.last_copied import LastCopied

VERSION: Final = 1


@dataclass(slots=True)
class TopicProgress:
    """The target of each partition of a topic, the next offset, and the message before it."""

    targets: dict[Partition, Partition] = field(default_factory=dict)
    positions: dict[Partition, int] = field(default_factory=dict)
    last: dict[Partition, LastCopied] = field(default_factory=dict)


class ProgressFile:
    """The file at ``path`` for a mirror from ``source`` to ``target``, for a ``with`` block; created if it does not
    exist.

    Entering raises:
        StoreFailed: The file cannot be read or written, is in use, or belongs to another mirror.
    """

    def __init__(self, path: Path, source: str, target: str, prefix: str) -> None:
        self._path = path
        self._names = {"source": source, "target": target, "prefix": prefix}
        self._lock: IO[bytes] | None = None
        self.topics: dict[str, TopicProgress] = {}

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(self._path.with_name(self._path.name + ".lock"), "ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except BlockingIOError:
            self._release()
            raise self._failed("another mirror uses it") from None
        except (OSError, UnicodeDecodeError) as error:
            self._release()
            raise self._failed(str(error)) from error
        if text is not None:
            try:
                self.topics = self._read(text)
            except StoreFailed:
                self._release()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def of(self, topic: str) -> TopicProgress:
        """Return the progress of a topic, to be changed and then saved."""
        return self.topics.setdefault(topic, TopicProgress())

    def save(self) -> None:
        """Write the file. Raises ``StoreFailed``."""
        topics = {topic: _topic_tree(self.topics[topic]) for topic in sorted(self.topics)}
        text = json.dumps({"v": VERSION, **self._names, "topics": topics}, indent=1)
        try:
            replace_file(self._path, text)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error

    def _read(self, text: str) -> dict[str, TopicProgress]:
        try:
            tree = json.loads(text)
            version, names = tree["v"], {name: tree[name] for name in self._names}
            topics = {topic: _topic(rows) for topic, rows in tree["topics"].items()} if version == VERSION else {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._failed(f"it is not a progress file of a mirror: {error!r}") from None
        if version != VERSION:
            raise self._failed(f"its version is {version}, expected {VERSION}")
        for name, value in self._names.items():
            if names[name] != value:
                raise self._failed(f"it belongs to a mirror with {name} {names[name]!r}, not {value!r}")
        return topics

    def _failed(self, reason: str) -> StoreFailed:
        return StoreFailed(f"checkpoint {self._path}", reason)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _topic(rows: Mapping[str, Any]) -> TopicProgress:
    progress = TopicProgress()
    for name, row in rows.items():
        partition = Partition.parse_any(name)
        progress.targets[partition] = Partition.parse_any(row["to"])
        if row["next"] is not None:
            progress.positions[partition] = int(row["next"])
        if row.get("last") is not None:
            progress.last[partition] = LastCopied.parse(row["last"])
    return progress


def _topic_tree(progress: TopicProgress) -> dict[str, dict[str, object]]:
    rows = {}
    for partition, target in sorted(progress.targets.items(), key=str):
        last = progress.last.get(partition)
        row: dict[str, object] = {"to": str(target), "next": progress.positions.get(partition)}
        rows[str(partition)] = row if last is None else row | {"last": last.tree()}
    return rows
