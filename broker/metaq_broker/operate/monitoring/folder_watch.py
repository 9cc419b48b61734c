"""Detects that folders or files of a running broker were removed or replaced, and stops puts.

A file that was removed, or whose folder was removed, renamed or replaced, still accepts writes and syncs: the broker
would acknowledge messages that are lost at a restart. So about every ``interval_ms`` the paths are compared, by device
and inode, with the open files:

* each data folder and its lock file, the journal's folder and its lock file. If one has changed, puts to the topics of
  that folder are refused, as on a full disk (see ``disk_guard``), and transactions accept nothing new;
* the segment that is being written of each partition, as soon as something was appended, and of all others by turns. If
  its path no longer leads to the open file, the partition is read-only.

Reads of open files continue. When the same files are back, puts are accepted again; otherwise a restart, which reports
what is lost, or ``reopen`` of a partition is needed.

Source: docs/operations.md, "When files are taken away".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from metaq_broker.background import begin_work, stop_work
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.segments.segment import Segment, unnamed_path
from metaq_broker.operate.monitoring.disk_guard import DiskGuard, RunInWorker

_LOG: Final = logging.getLogger(__name__)

IDLE_PARTITIONS: Final = 100
"""Number of partitions that are checked in one round although nothing was appended to them."""

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)

Identity = tuple[int, int]
WatchedFiles = Mapping[str, Sequence[Path]]
"""Folder whose puts are refused -> folders and files that must not change."""


class _Watched(NamedTuple):
    """The state of a partition at the beginning of a round."""

    log: PartitionLog
    active: Segment
    handle: FileHandle


class FolderWatch:
    """Runs on one event loop; ``partition_keys`` is called in each round."""

    def __init__(
        self,
        files: Files,
        stores: TopicStores,
        guard: DiskGuard,
        partition_keys: WatchedFiles,
        interval_ms: int,
        run_in_worker: RunInWorker = asyncio.to_thread,
    ) -> None:
        self._files, self._stores, self._guard = files, stores, guard
        self._interval_s = interval_ms / 1000
        self._run_in_worker = run_in_worker
        self._watched: dict[str, dict[Path, Identity]] = {}
        self._seen: dict[PartitionLog, int] = {}
        self._next_partition = 0
        self._gone: dict[PartitionLog, str] = {}
        self._task: asyncio.Task[None] | None = None
        self.watch(partition_keys)

    # ---- start and stop

    def watch(self, partition_keys: WatchedFiles) -> None:
        """Watch these folders, too; folders that are watched already are not read again."""
        for folder, paths in partition_keys.items():
            known = self._watched.setdefault(folder, {})
            for path in paths:
                identity = self._identity(path)
                if path not in known and identity is not None:
                    known[path] = identity

    def start(self) -> None:
        """Check regularly until ``stop``."""
        self._task = begin_work(self._keep_looking(), "presence of files")

    async def stop(self) -> None:
        await stop_work(self._task)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check()

    # ---- looking

    async def check(self) -> None:
        """Check the folders and some partitions now."""
        watched, absent, missing = self._partitions(), dict[str, Path | None](), dict[PartitionLog, bool]()

        def look() -> None:
            for folder, partition_keys in self._watched.items():
                absent[folder] = next(
                    (path for path, identity in partition_keys.items() if self._moved(path, identity)), None
                )
            for each in watched:
                missing[each.log] = self._is_missing(each)

        await self._run_in_worker(look)
        for folder, path in absent.items():
            self._guard.note_missing(folder, None if path is None else _folder_reason(path))
        for log, active, _ in watched:
            if absent.get(str(log.directory.parent)) is not None:
                continue  # all of its puts are refused already
            if log.active is active and self._stores.get(log.topic, log.index) is log:
                self._note(log, missing[log])

    def _partitions(self) -> list[_Watched]:
        logs = list(self._stores.logs())
        written = [log for log in logs if self._seen.get(log) != log.end_offset or log in self._gone]
        first = self._next_partition % max(1, len(logs))
        self._next_partition = first + IDLE_PARTITIONS
        chosen = dict.fromkeys([*written, *logs[first : first + IDLE_PARTITIONS]])
        self._seen = {log: log.end_offset for log in logs}
        self._gone = {log: reason for log, reason in self._gone.items() if log in self._seen}
        return [_Watched(log, log.active, log.active.handle) for log in chosen if log.active.handle is not None]

    def _is_missing(self, watched: _Watched) -> bool:
        _, segment, handle = watched
        identity = self._files.identity(handle.fd)
        # A worker thread may give it its name between these two reads.
        unnamed = unnamed_path(segment.path.parent, segment.start)
        return all(self._moved(path, identity) for path in (segment.path, unnamed, segment.path))

    def _moved(self, path: Path, identity: Identity) -> bool:
        """Return whether the path has another file, or none; if the disk does not answer, ``False``."""
        try:
            return self._files.identity_of(path) != identity
        except OSError as error:
            return error.errno in _ABSENT

    def _identity(self, path: Path) -> Identity | None:
        with contextlib.suppress(OSError):
            return self._files.identity_of(path)
        return None

    # ---- what follows

    def _note(self, log: PartitionLog, missing: bool) -> None:
        fields: dict[str, object] = {"partition": log.name, "path": log.active.current_path}
        if missing and log.failure is None:
            self._gone[log] = log.failure = _file_reason(log.active.current_path)
            _LOG.error("a partition's files are gone, it is read-only", extra={"fields": fields})
        elif not missing and log in self._gone and self._gone.pop(log) == log.failure:
            log.failure = None
            _LOG.warning("a partition's files are back, it takes messages", extra={"fields": fields})


def _folder_reason(path: Path) -> str:
    what = f"{path} was removed or replaced while the broker runs"
    return f"{what}: what is put now would be lost; puts are refused until it is back, or the broker is restarted"


def _file_reason(path: Path) -> str:
    return f"{path} was removed or replaced while the broker runs; what is put now would be lost"


def watched_files(data_paths: Iterable[str], data_lock: str, journal_path: str, journal_lock: str) -> WatchedFiles:
    """Return the watched paths of a broker: data folders with their lock files, and the journal's folder with its lock.

    ``journal_lock`` is the path of a file below ``journal_path``.
    """
    partition_keys = {path: [Path(path), Path(path) / data_lock] for path in data_paths}
    lock = Path(journal_path) / journal_lock
    partition_keys.setdefault(journal_path, []).extend([lock.parent, lock])
    return partition_keys
