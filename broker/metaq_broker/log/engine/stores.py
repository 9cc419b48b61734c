"""The partitions of a broker in all data folders: one ``LogStore`` for each folder of the configuration."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.background import begin_work, stop_work
from metaq_broker.clock import Clock
from metaq_broker.log.files.errors import is_out_of_files
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.open_files import PARTITION_FILES, OpenFiles
from metaq_broker.log.partitions.folders import parse_folder_name
from metaq_broker.log.partitions.loading import LogSettings
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.losses import Loss
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.replication import PairConfig

_LOG: Final = logging.getLogger(__name__)


class DataFolderFailed(MetaqError):
    """The data folder ``path`` cannot be used; ``error`` says what the system refused."""

    def __init__(self, path: str, error: OSError) -> None:
        self.path, self.error = path, error
        super().__init__(path, error)

    def __str__(self) -> str:
        remedy = ""
        if is_out_of_files(self.error):
            remedy = (
                f". This process may open {OpenFiles.of_process().limit} files, and each partition needs up to "
                f"{PARTITION_FILES}: raise the limit (ulimit -Hn, or LimitNOFILE of the service)"
            )
        return f"data folder {self.path} cannot be used: {self.error.strerror}: {self.error.filename}{remedy}"


class TopicStores:
    """All partitions, found by topic and index. Open it with ``open``; not thread-safe."""

    def __init__(self, files: Files, clock: Clock, config: BrokerConfig) -> None:
        self._files, self._clock = files, clock
        self._config = config
        self._stores: dict[str, LogStore] = {}
        self._only: LogStore | None = None
        self._topics: set[str] = set()
        self.topics_changed: Callable[[], None] = lambda: None
        """Called when a topic gets its first partition or loses its last one."""

    @classmethod
    def open(cls, files: Files, clock: Clock, config: BrokerConfig) -> TopicStores:
        """Lock and load every data folder, and recover from a crash (blocking).

        Raises:
            StoreLocked: Another broker uses a folder.
            DataFolderFailed: A folder cannot be used.
        """
        stores = cls(files, clock, config)
        try:
            for path in config.data_paths():
                stores.adopt(stores.open_store(path))
        except BaseException:
            stores.close(clean=True)
            raise
        stores._report()
        return stores

    def open_store(self, path: str) -> LogStore:
        """Lock and load one data folder, for ``adopt`` (blocking; any thread). Raises as ``open``."""
        system = self._config.system
        settings = LogSettings(system.segment_bytes_max, system.index_interval_bytes)
        threads = (os.cpu_count() or 1) + 2 if system.load_message_stores_in_parallel else 1
        try:
            return LogStore.open(
                self._files,
                self._clock,
                Path(path),
                lambda topic: settings,
                verify=system.verify_at_start,
                load_threads=threads,
                follows=isinstance(self._config.role, PairConfig),
            )
        except OSError as error:
            raise DataFolderFailed(path, error) from error

    def adopt(self, store: LogStore) -> None:
        """Serve the partitions of another data folder."""
        self._stores[str(store.data_path)] = store
        self._only = store if len(self._stores) == 1 else None
        self._know(log.topic for log in store.logs())

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply another configuration; all of its data folders have been adopted."""
        self._config = config

    @property
    def data_paths(self) -> list[str]:
        """The folders of partitions, the system's first."""
        return list(self._stores)

    @property
    def partition_count(self) -> int:
        return sum(store.partition_count for store in self._stores.values())

    def free_bytes(self, path: str) -> int:
        """Return how many bytes may still be written in one of ``data_paths`` (may block; any thread).

        Raises:
            OSError: It cannot be read.
        """
        return self._stores[path].free_bytes()

    def store_of(self, topic: str) -> LogStore:
        return self._only or self._stores[self._config.topic_settings(topic).data_path]

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Return an open partition; ``None`` if there is none."""
        store = self._only or self._stores[self._config.topic_settings(topic).data_path]
        return store.get(topic, index)

    def get_or_create(self, topic: str, index: int) -> PartitionLog:
        """Return a partition, created if necessary. Raises as ``LogStore.get_or_create``."""
        log = self.get(topic, index)
        if log is None:
            log = self.store_of(topic).get_or_create(topic, index)
            self._know([topic])
        return log

    def bring_online(self, log: PartitionLog) -> None:
        """Put a withdrawn partition, or one that could not be opened, into service."""
        self.store_of(log.topic).bring_online(log)
        self._know([log.topic])

    def remove_entry(self, topic: str, index: int) -> None:
        """Forget a withdrawn partition, which was deleted."""
        store = self.store_of(topic)
        store.remove_entry(topic, index)
        if not any(log.topic == topic for log in store.logs()):
            self._topics.discard(topic)
            self.topics_changed()

    def _know(self, topics: Iterable[str]) -> None:
        new = set(topics) - self._topics
        if new:
            self._topics |= new
            self.topics_changed()

    def each_store(self) -> list[LogStore]:
        return list(self._stores.values())

    def losses(self) -> list[tuple[str, int, Loss]]:
        """Return topic, index and loss of every partition with losses that are not acknowledged."""
        found = (loss for store in self._stores.values() for loss in store.losses)
        return [(*parse_folder_name(loss.folder), loss) for loss in found]

    def logs(self) -> Sequence[PartitionLog]:
        """Return the partitions in (topic, index) order."""
        if self._only is not None:
            return self._only.logs()
        found = [log for store in self._stores.values() for log in store.logs() if self.store_of(log.topic) is store]
        return sorted(found, key=lambda log: (log.topic, log.index))

    def partition_counts(self) -> dict[str, int]:
        """Return topic -> number of its partitions, up to the last one."""
        return {log.topic: log.index + 1 for log in self.logs()}

    @property
    def topics(self) -> Set[str]:
        return self._topics

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def refusal(self, topic: str, index: int) -> str | None:
        """Return why a partition on the disk could not be opened; ``None`` if there is no such fault."""
        return self.store_of(topic).refused.get((topic, index))

    def refused(self) -> Iterable[tuple[str, int, str]]:
        """Return topic, index and reason of every partition that could not be opened."""
        return sorted((*key, reason) for store in self._stores.values() for key, reason in store.refused.items())

    def close(self, clean: bool) -> None:
        """Close everything (blocking); ``clean`` leaves the mark that makes the next start fast."""
        for store in self._stores.values():
            store.close(clean)

    def _report(self) -> None:
        for store in self._stores.values():
            for log in store.logs():
                if self.store_of(log.topic) is not store:
                    fields = {"partition": log.directory, "dataPath": self.store_of(log.topic).data_path}
                    _LOG.warning("not served, the topic's dataPath is another", extra={"fields": fields})


INTERVAL_S: Final = 1.0
"""Seconds between two records of the durable ends."""

SHARE_MAX: Final = 0.02
"""Limit on the fraction of time for these records: with very many partitions they are written less often."""


class EndsRecorder:
    def __init__(self, stores: TopicStores, interval_s: float = INTERVAL_S) -> None:
        self._stores = stores
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Record the durable ends regularly until ``stop``."""
        self._task = begin_work(self._run(), "durable ends")

    async def stop(self) -> None:
        await stop_work(self._task)

    async def _run(self) -> None:
        clock, pause_s = asyncio.get_running_loop().time, self._interval_s
        while True:
            await asyncio.sleep(pause_s)
            started = clock()
            for store in self._stores.each_store():
                await asyncio.to_thread(store.note_ends, store.ends())
            pause_s = max(self._interval_s, (clock() - started) / SHARE_MAX)
