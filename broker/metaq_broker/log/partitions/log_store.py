"""All partitions of one data folder, and the folder's lock and clean-shutdown mark.

The folder has one folder TOPIC-INDEX per partition; other files in it are ignored. File ``.lock`` is locked while the
store is open and names the owner's process. File ``clean-shutdown`` exists only between a clean stop and the next
start. It lists the complete partitions, which need not be scanned::

    metaq-clean-shutdown 1
    END MTIME_NS FOLDER              end offset and last segment's time of change; FOLDER is the rest of the line
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

File ``durable-ends`` has the least end of each partition, file ``lost-data`` the losses: see ``durable_ends`` and
``losses``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from metaq.formats.topic_names import storage_fault
from metaq_broker.clock import Clock
from metaq_broker.log.files import durable_ends
from metaq_broker.log.files.durable_ends import DurableEnds, KnownEnd, NotedEnd, known_ends, read_durable_ends
from metaq_broker.log.files.errors import (
    LogFailed,
    PartitionRefused,
    StoreLocked,
    TopicNameRefused,
    is_out_of_files,
)
from metaq_broker.log.files.files import OPEN_HANDLES_MAX, Files, HandleCache
from metaq_broker.log.files.sealed_files import CleanEnd, read_clean_mark, remove_clean_mark, write_clean_mark
from metaq_broker.log.partitions.folders import (
    DELETED_SUFFIX,
    delete_folder,
    finish_deletions,
    folder_name,
    parse_folder_name,
    rename_folder,
)
from metaq_broker.log.partitions.loading import LogSettings, Verify
from metaq_broker.log.partitions.losses import FOLDER, Loss, Losses, LostEnd, find_lost_end, loss_of_end
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.tail_files import PartitionTail
from metaq_broker.log.segments.segment import find_segment_files
from metaq_broker.log.streams import lost_found

LOCK_NAME = ".lock"
TRANSACTIONS_NAME = "transactions"
KEYS_NAME = "rocketmq-keys"
_LOGGER = logging.getLogger(__name__)

PartitionKey = tuple[str, int]
SettingsFor = Callable[[str], LogSettings]


class LogStore:
    """Open it with ``open``."""

    def __init__(
        self, files: Files, clock: Clock, data_path: Path, settings_for: SettingsFor, lock: int, open_files_max: int
    ) -> None:
        self.data_path = data_path
        self._files, self._clock = files, clock
        self._settings_for = settings_for
        self._lock: int | None = lock
        self._handles = HandleCache(files, open_files_max)
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._in_order: tuple[PartitionLog, ...] | None = ()
        self._refused: dict[PartitionKey, str] = {}
        self._ends = DurableEnds(files, data_path)
        self._losses = Losses(files, data_path)
        self.last_used_ms: int | None = None
        """Wall-clock milliseconds of the last write before this start, if known."""
        self._out_of_service: dict[str, tuple[NotedEnd | None, Sequence[KnownEnd]]] = {}

    @classmethod
    def open(
        cls,
        files: Files,
        clock: Clock,
        data_path: Path,
        settings_for: SettingsFor,
        *,
        verify: Verify = "tail",
        load_threads: int = 1,
        open_files_max: int = OPEN_HANDLES_MAX,
        follows: bool = False,
    ) -> LogStore:
        """Lock the folder, created if necessary, and open every partition in it, ``load_threads`` at a time.

        ``verify`` is for partitions that were not closed cleanly; ``full`` is for all. ``open_files_max`` limits the
        files kept open besides one per partition. ``follows``: a leader's bytes may be appended, whose segments may
        begin elsewhere than an empty last one. A partition that cannot be opened is listed in ``refused``; the
        others are loaded.

        Raises:
            StoreLocked: Another broker uses the folder.
            OSError: The folder itself cannot be used.
        """
        files.make_folders(data_path)
        store = cls(files, clock, data_path, settings_for, _lock(files, data_path), open_files_max)
        try:
            store._load(verify, load_threads, follows=follows)
        except BaseException:
            store.close(clean=False)
            raise
        return store

    def _load(self, verify: Verify, load_threads: int, *, follows: bool) -> None:
        self._finish_deletions()
        faults = self._finish_cuts()
        clean = read_clean_mark(self._files, self.data_path)
        noted = read_durable_ends(self._files, self.data_path)
        self.last_used_ms = self._last_used_ms()
        keys = list(self._partition_keys())
        self._note_missing_folders(keys, clean, noted)

        def load_one(key: PartitionKey) -> PartitionLog | str:
            directory = self._directory(*key)
            if directory.name in faults:
                return faults[directory.name]
            try:
                if follows:
                    PartitionTail(self._files, directory, lambda: None).drop_empty()
                known = known_ends(self._files, directory, clean.get(directory.name), noted.get(directory.name))
                self._out_of_service[directory.name] = noted.get(directory.name), known
                trusted = verify != "full" and self._unchanged(directory, clean.get(directory.name))
                return self._open_log(key, "trust" if trusted else verify)
            except (OSError, PartitionRefused) as error:
                if isinstance(error, OSError) and is_out_of_files(error):
                    raise  # this one is intact, and the next would fail as well
                return str(error)

        with ThreadPoolExecutor(max(1, load_threads), "metaq-load") as pool:
            outcomes = list(pool.map(load_one, keys))
        for key, outcome in zip(keys, outcomes, strict=True):
            if isinstance(outcome, str):
                self._refused[key] = outcome
                fields = {"partition": folder_name(*key), "reason": outcome}
                _LOGGER.error("partition is not served", extra={"fields": fields})
            else:
                self._take(key, outcome)
        self.note_ends(self.ends())
        remove_clean_mark(self._files, self.data_path)  # after its use, and before the first append

    def _note_missing_folders(
        self, keys: Iterable[PartitionKey], clean: Mapping[str, CleanEnd], noted: Mapping[str, NotedEnd]
    ) -> None:
        there = {folder_name(*key) for key in keys}
        for folder in sorted((clean.keys() | noted.keys()) - there):
            end = max(each.end for each in (clean.get(folder), noted.get(folder)) if each is not None)
            if end and _is_partition(folder):
                self._losses.add(Loss(0, end, self._clock.now_ms(), FOLDER, folder))

    def _last_used_ms(self) -> int | None:
        path = self.data_path / durable_ends.FILE_NAME
        return self._files.stat(path).mtime_ms if self._files.exists(path) else None

    def _finish_deletions(self) -> None:
        try:
            for name in finish_deletions(self._files, self.data_path):
                _LOGGER.info("deletion finished", extra={"fields": {"partition": name.removesuffix(DELETED_SUFFIX)}})
        except OSError as error:  # it only costs space
            _LOGGER.warning(
                "the rest of a deleted partition cannot be removed", extra={"fields": {"reason": error}}
            )

    def _finish_cuts(self) -> dict[str, str]:
        """Finish cuts that a crash has interrupted; return the partitions where that is not possible, and why."""
        faults = {}
        for name in lost_found.unfinished(self._files, self.data_path):
            if not _is_partition(name) or not self._files.is_dir(self.data_path / name):
                continue
            tail = PartitionTail(self._files, self.data_path / name, partial(self._forget_noted, name))
            try:
                lost_found.finish_cuts(self._files, self.data_path, name, tail)
            except (OSError, lost_found.IntentionDamaged) as error:
                faults[name] = str(error)
        return faults

    def _forget_noted(self, name: str) -> None:
        noted = read_durable_ends(self._files, self.data_path)
        if noted.pop(name, None) is not None:
            durable_ends.write_durable_ends(self._files, self.data_path, noted)

    def _partition_keys(self) -> Iterable[PartitionKey]:
        for name in self._files.listdir(self.data_path):
            if not self._files.is_dir(self.data_path / name):
                continue
            try:
                yield parse_folder_name(name)
            except ValueError:
                if name not in (TRANSACTIONS_NAME, KEYS_NAME, lost_found.FOLDER_NAME) and not name.endswith(
                    DELETED_SUFFIX
                ):
                    fields = {"folder": self.data_path / name}
                    _LOGGER.warning("not a partition's folder, left alone", extra={"fields": fields})

    def _unchanged(self, directory: Path, end: CleanEnd | None) -> bool:
        """Return whether a partition still ends as at its clean shutdown; another broker may have used it."""
        return end is not None and end == self._end_of(directory)

    def _end_of(self, directory: Path) -> CleanEnd | None:
        found = find_segment_files(directory, self._files.listdir(directory))
        if not found:
            return None
        status = self._files.stat(found[-1].path)
        return CleanEnd(found[-1].start + status.size, status.mtime_ns)

    def _open_log(self, key: PartitionKey, verify: Verify) -> PartitionLog:
        directory = self._directory(*key)
        _, known = self._out_of_service.get(directory.name, (None, ()))
        if self._files.is_dir(directory) and (lost := find_lost_end(self._files, directory, known)) is not None:
            self.note_lost_end(directory.name, lost)
        return PartitionLog.open(
            self._files,
            self._clock,
            directory,
            self._settings_for(key[0]),
            verify=verify,
            handles=self._handles,
            known_ends=known,
        )

    def _take(self, key: PartitionKey, log: PartitionLog) -> None:
        self._logs[key], self._in_order = log, None
        self._out_of_service.pop(log.name, None)
        self._ends.remember(log.name)
        for sentence in log.recovery.warnings():
            _LOGGER.warning("recovery", extra={"fields": {"partition": log.name, "what": sentence}})

    def _directory(self, topic: str, index: int) -> Path:
        return self.data_path / folder_name(topic, index)

    # ---- partitions

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Return an open partition; ``None`` if there is none."""
        return self._logs.get((topic, index))

    def get_or_create(self, topic: str, index: int) -> PartitionLog:
        """Return a partition, created if necessary. Its folder becomes durable with the first sync.

        Raises:
            TopicNameRefused: The topic's name cannot be a folder name.
            LogFailed: The partition exists but was refused at the start.
            OSError: The folder or its first file cannot be created.
        """
        key = (topic, index)
        log = self._logs.get(key)
        if log is not None:
            return log
        if key in self._refused:
            raise LogFailed(folder_name(*key), self._refused[key])
        fault = storage_fault(topic)
        if fault is not None or index < 0:
            raise TopicNameRefused(topic, fault or f"partition {index} is negative")
        log = self._open_log(key, "tail")
        self._take(key, log)
        return log

    # ---- durable ends, and losses

    def ends(self) -> dict[str, NotedEnd]:
        """Return the durable ends for ``note_ends``; for partitions that are not in service, the last known ones.

        A partition without a durable incarnation has no readable message, or a disk that cannot be written.
        """
        found = {folder: noted for folder, (noted, _) in list(self._out_of_service.items()) if noted is not None}
        for log in self._logs.values():
            if log.incarnation is not None:
                found[log.name] = NotedEnd(log.readable_end, log.durable_ordinal, log.incarnation)
        return found

    def note_ends(self, ends: Mapping[str, NotedEnd]) -> None:
        """Record durable ends (blocking; any thread). After an error, a later call tries again.

        While the store is open, it must be called regularly.
        """
        try:
            self._ends.write(ends)
        except OSError as error:
            _LOGGER.info("durable ends are not recorded", extra={"fields": {"path": self.data_path, "reason": error}})

    def note_lost_end(self, folder: str, lost: LostEnd) -> None:
        """Record durably that a partition has lost its end, until it is acknowledged (blocking; any thread).

        Raises:
            OSError: The disk refuses.
        """
        self._losses.add(loss_of_end(lost, folder, self._clock.now_ms()))

    @property
    def losses(self) -> Sequence[Loss]:
        """Losses that are not acknowledged, oldest first."""
        return self._losses.unacknowledged

    def lost_partitions(self) -> set[PartitionKey]:
        """Return the partitions with losses that are not acknowledged."""
        return {parse_folder_name(loss.folder) for loss in self.losses}

    def acknowledge(self, topic: str, index: int) -> bool:
        """Forget the losses of a partition; return whether there were any (blocking). Raises ``OSError``."""
        return self._losses.acknowledge(folder_name(topic, index))

    # ---- partitions that are removed, restored or renamed

    def take_offline(self, topic: str, index: int, reason: str) -> PartitionLog | None:
        """Take a partition out of service: until ``bring_online`` or ``remove_entry`` it is refused with ``reason``.

        Return its log, ``None`` if it has no open one. The caller settles and closes it.
        """
        self._refused[topic, index] = reason
        log, self._in_order = self._logs.pop((topic, index), None), None
        if log is not None and log.incarnation is not None:
            noted = NotedEnd(log.readable_end, log.durable_ordinal, log.incarnation)
            known = KnownEnd(log.readable_end, log.durable_ordinal, exact=True)
            self._out_of_service[log.name] = noted, [known]
        return log

    def remove_entry(self, topic: str, index: int) -> None:
        """Stop refusing a partition that was removed."""
        self._refused.pop((topic, index), None)

    def bring_online(self, log: PartitionLog) -> None:
        """Put a log of ``open_again`` into service."""
        self.remove_entry(log.topic, log.index)
        self._take((log.topic, log.index), log)

    def open_again(self, topic: str, index: int, verify: Verify = "tail") -> PartitionLog:
        """Open a partition that is withdrawn or refused, for ``bring_online`` (blocking; any thread).

        Raises:
            PartitionRefused, OSError: It cannot be opened.
        """
        if not self._files.is_dir(self._directory(topic, index)):
            raise PartitionRefused(self._directory(topic, index), "the folder is not there")
        return self._open_log((topic, index), verify)

    def is_emptied(self, topic: str, index: int) -> bool:
        """Return whether a partition's files were removed, so that it begins anew when it is opened (blocking; any
        thread).
        """
        directory = self._directory(topic, index)
        names = self._files.listdir(directory) if self._files.is_dir(directory) else []
        return not any(file.named for file in find_segment_files(directory, names))

    def delete_folder(self, topic: str, index: int) -> None:
        """Remove the folder of a withdrawn partition; see ``folders.delete_folder`` (blocking; any thread)."""
        directory = self._directory(topic, index)
        self._forget_ends(directory.name)
        delete_folder(self._files, directory)

    def rename_folder(self, topic: str, index: int, new_index: int) -> None:
        """Give a withdrawn partition another index; see ``folders.rename_folder`` (blocking; any thread)."""
        old, new = self._directory(topic, index), self._directory(topic, new_index)
        known = self._out_of_service.pop(old.name, None)
        self._ends.forget([old.name])
        rename_folder(self._files, old, new)
        if known is not None:
            self._out_of_service[new.name] = known

    def cut(self, topic: str, index: int, intention: lost_found.Intention) -> None:
        """Cut the tail of a withdrawn partition; see ``lost_found`` (blocking; any thread). Raises ``OSError``."""
        directory = self._directory(topic, index)
        tail = PartitionTail(self._files, directory, partial(self._forget_ends, directory.name))
        lost_found.cut_tail(self._files, self.data_path, directory.name, tail, intention)
        self._losses.acknowledge(directory.name)

    def put_aside(self, topic: str, index: int, incarnation: str, time_ms: int) -> None:
        """Move a withdrawn partition to ``lost+found`` (blocking; any thread). Raises ``OSError``."""
        directory = self._directory(topic, index)
        self._forget_ends(directory.name)
        lost_found.put_aside(self._files, self.data_path, directory, incarnation, time_ms)
        self._losses.acknowledge(directory.name)

    def _forget_ends(self, name: str) -> None:
        self._out_of_service.pop(name, None)
        self._ends.forget([name])

    def has_folder(self, topic: str, index: int) -> bool:
        """Return whether the partition is on the disk, in service or not."""
        return self._files.exists(self._directory(topic, index))

    @property
    def partition_count(self) -> int:
        return len(self._logs)

    def logs(self) -> Sequence[PartitionLog]:
        """Return the open partitions in (topic, index) order."""
        if self._in_order is None:
            self._in_order = tuple(self._logs[key] for key in sorted(self._logs))
        return self._in_order

    @property
    def refused(self) -> Mapping[PartitionKey, str]:
        """The partitions that could not be opened, with the reasons."""
        return self._refused

    def free_bytes(self) -> int:
        return self._files.free_bytes(self.data_path)

    def close(self, clean: bool = True) -> None:
        """Close every partition and unlock the folder. With ``clean``, sync all and write the mark (blocking)."""
        if self._lock is None:
            return
        try:
            complete = [log for log in self.logs() if log.close(clean)]
            if clean:
                self.note_ends(self.ends())
                self._leave_mark(complete)
        finally:
            self._files.close(self._lock)
            self._lock = None

    def _leave_mark(self, complete: Iterable[PartitionLog]) -> None:
        try:
            ends = {log.name: self._end_of(log.directory) for log in complete}
            write_clean_mark(self._files, self.data_path, {name: end for name, end in ends.items() if end is not None})
        except OSError as error:  # only the next start takes longer: it examines every last segment
            _LOGGER.warning("no clean-shutdown mark", extra={"fields": {"path": self.data_path, "reason": error}})


def _is_partition(folder: str) -> bool:
    try:
        parse_folder_name(folder)
    except ValueError:
        return False
    return True


def _lock(files: Files, data_path: Path) -> int:
    path = data_path / LOCK_NAME
    try:
        return files.lock_exclusive(path)
    except BlockingIOError:
        owner = files.read_bytes(path).decode(errors="replace").strip()
        raise StoreLocked(data_path, owner or "unknown") from None
