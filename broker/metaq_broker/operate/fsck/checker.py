"""Checks all partitions of data folders, their state files and the transaction journal; repairs them on request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from metaq_broker.clock import Clock
from metaq_broker.log.files.durable_ends import NotedEnd, read_durable_ends
from metaq_broker.log.files.errors import StoreLocked
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import CleanEnd, read_clean_mark
from metaq_broker.log.partitions.folders import DELETED_SUFFIX, parse_folder_name
from metaq_broker.log.partitions.loading import LogSettings
from metaq_broker.log.partitions.log_store import KEYS_NAME, LOCK_NAME, TRANSACTIONS_NAME
from metaq_broker.log.partitions.losses import read_losses
from metaq_broker.log.segments.segment import find_segment_files
from metaq_broker.log.state.state_table import FILE_NAME, GROUPS_NAME
from metaq_broker.log.streams.lost_found import FOLDER_NAME as LOST_FOUND
from metaq_broker.operate.fsck.findings import Findings, FolderFindings, PartitionFindings, StateFindings
from metaq_broker.operate.fsck.journal import check_journal
from metaq_broker.operate.fsck.member import check_member
from metaq_broker.operate.fsck.partition import check_partition, repair_partition
from metaq_broker.operate.fsck.progress import ProgressBar
from metaq_broker.operate.fsck.state import check_state, repair_state

_LIVE_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class CheckTask:
    """What to check. ``topics``: only these, if any; ``journal``: the folder of the transactions."""

    folders: Sequence[Path]
    journal: Path
    settings: LogSettings
    topics: frozenset[str] = frozenset()
    repair: bool = False


class Checker:
    """Runs one task. The progress is shown on ``terminal`` if there is one."""

    def __init__(self, files: Files, clock: Clock, task: CheckTask, terminal: TextIO | None = None) -> None:
        self._files, self._clock = files, clock
        self._task = task
        self._terminal = terminal

    def run(self) -> Findings:
        """Check everything; with ``repair``, repair each partition right after its check.

        Raises:
            StoreLocked: A broker uses a folder that is to be repaired. Nothing was changed.
            OSError: A folder cannot be used, or a repair failed.
        """
        started = self._clock.monotonic()
        findings = Findings()
        with contextlib.ExitStack() as locks:
            if self._task.repair:
                for folder in self._task.folders:
                    locks.callback(self._files.close, self._lock(folder))
            found = [self._look_into(folder) for folder in self._task.folders]
            sizes = {directory: self._size(directory) for _, directories in found for directory in directories}
            self._progress = ProgressBar(sum(sizes.values()), self._terminal, self._clock)
            try:
                for each, directories in found:
                    findings.folders.append(each)
                    each.state = self._check_state(each, FILE_NAME)
                    each.groups = self._check_state(each, GROUPS_NAME)
                    each.member = check_member(self._files, each.path, self._task.journal)
                    each.partitions.extend(self._check_all(each, directories, sizes))
            finally:
                self._progress.end()
            findings.journal = check_journal(self._files, self._task.journal, self._task.folders[0])
        findings.seconds = self._clock.monotonic() - started
        return findings

    def _lock(self, folder: Path) -> int:
        try:
            return self._files.lock_exclusive(folder / LOCK_NAME)
        except BlockingIOError:
            raise StoreLocked(folder, self._owner(folder) or "unknown") from None

    def _owner(self, folder: Path) -> str | None:
        if not self._files.is_locked(folder / LOCK_NAME):
            return None
        return self._files.read_bytes(folder / LOCK_NAME).decode(errors="replace").strip() or "unknown"

    def _look_into(self, path: Path) -> tuple[FolderFindings, list[Path]]:
        folder, directories = FolderFindings(path, None if self._task.repair else self._owner(path)), []
        for name in self._files.listdir(path):
            if not self._files.is_dir(path / name) or name in (TRANSACTIONS_NAME, KEYS_NAME, LOST_FOUND):
                continue
            try:
                topic, _ = parse_folder_name(name)
            except ValueError:
                (folder.unfinished_deletions if name.endswith(DELETED_SUFFIX) else folder.left_alone).append(name)
                continue
            if not self._task.topics or topic in self._task.topics:
                directories.append(path / name)
        return folder, directories

    def _size(self, directory: Path) -> int:
        with contextlib.suppress(OSError):
            files = find_segment_files(directory, self._files.listdir(directory))
            return sum(self._files.stat(file.path).size for file in files)
        return 0

    def _check_all(
        self, folder: FolderFindings, directories: Sequence[Path], sizes: dict[Path, int]
    ) -> Iterator[PartitionFindings]:
        clean, noted = read_clean_mark(self._files, folder.path), read_durable_ends(self._files, folder.path)
        folder.missing = self._missing(folder.path, clean, noted)
        folder.losses = read_losses(self._files, folder.path)
        for directory in directories:
            self._progress.begin(directory.name, sizes[directory])
            ends = clean.get(directory.name), noted.get(directory.name)
            findings = self._check(directory, folder.owner is not None, *ends)
            if self._task.repair:
                findings = repair_partition(self._files, self._task.settings, findings, self._clock)
            yield findings

    def _check_state(self, folder: FolderFindings, name: str) -> StateFindings | None:
        found = check_state(self._files, folder.path / name, live=folder.owner is not None)
        return repair_state(self._files, found) if found is not None and self._task.repair else found

    def _missing(self, path: Path, clean: Mapping[str, CleanEnd], noted: Mapping[str, NotedEnd]) -> list[str]:
        """Return the partitions that had durable bytes and have no folder."""
        ends = {name: each.end for name, each in noted.items()} | {name: each.end for name, each in clean.items()}
        gone = [name for name, end in sorted(ends.items()) if end and not self._files.exists(path / name)]
        if gone and self._files.is_locked(path / LOCK_NAME):  # the broker may have deleted and recorded it meanwhile
            gone = [name for name in gone if name in read_durable_ends(self._files, path)]
        topics = self._task.topics
        return [name for name in gone if not topics or name.rpartition("-")[0] in topics]

    def _check(self, directory: Path, live: bool, clean: CleanEnd | None, noted: NotedEnd | None) -> PartitionFindings:
        # While a broker runs, files can grow and go between two reads; a real problem is found in both.
        for _ in range(_LIVE_ATTEMPTS if live else 1):
            on_read = self._progress.advance
            found = check_partition(
                directory, self._task.settings, live=live, clean=clean, noted=noted, on_read=on_read
            )
            if not any(found.problems()):
                break
        return found
