"""The partitions of a broker, wherever they are: one ``LogStore`` for each data folder that the configuration names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.clock import Clock
from metaq_broker.config import BrokerConfig
from metaq_broker.files import Files
from metaq_broker.log.log_store import LogStore
from metaq_broker.log.partition_log import PartitionLog
from metaq_broker.log.settings import LogSettings

_LOG: Final = logging.getLogger(__name__)


class DataFolderFailed(MetaqError):
    """The data folder ``path`` cannot be used; ``error`` says what the system refused."""

    def __init__(self, path: str, error: OSError) -> None:
        self.path, self.error = path, error
        super().__init__(path, error)

    def __str__(self) -> str:
        return f"data folder {self.path} cannot be used: {self.error.strerror}: {self.error.filename}"


class TopicStores:
    """All partitions, found by topic and index. Make it with ``open``; not thread-safe."""

    def __init__(self, config: BrokerConfig, stores: Sequence[LogStore]) -> None:
        self._config = config
        self._stores = {str(store.data_path): store for store in stores}
        self._only = stores[0] if len(stores) == 1 else None
        self._topics = {log.topic for log in self.logs()}
        self.partition_count = len(list(self.logs()))

    @classmethod
    def open(cls, files: Files, clock: Clock, config: BrokerConfig) -> TopicStores:
        """Lock and load every data folder (blocking; recovers what a crash left).

        Raises:
            StoreLocked: Another broker uses a folder.
            DataFolderFailed: A folder cannot be used.
        """
        system = config.system
        settings = LogSettings(system.segment_bytes_max, system.index_interval_bytes)
        threads = (os.cpu_count() or 1) + 2 if system.load_message_stores_in_parallel else 1
        opened: list[LogStore] = []
        try:
            for path in config.data_paths():
                opened.append(_open_store(files, clock, path, settings, threads))
        except BaseException:
            for store in opened:
                store.close(clean=True)
            raise
        stores = cls(config, opened)
        stores._report()
        return stores

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Return an open partition, ``None`` if there is none."""
        return self._store(topic).get(topic, index)

    def get_or_create(self, topic: str, index: int) -> PartitionLog:
        """Return a partition, made when there is none. Raises as ``LogStore.get_or_create``."""
        log = self.get(topic, index)
        if log is None:
            log = self._store(topic).get_or_create(topic, index)
            self._topics.add(topic)
            self.partition_count += 1
        return log

    def logs(self) -> Iterable[PartitionLog]:
        """Return the partitions in (topic, index) order."""
        found = [log for store in self._stores.values() for log in store.logs() if self._store(log.topic) is store]
        return sorted(found, key=lambda log: (log.topic, log.index))

    def has_topic(self, topic: str) -> bool:
        """Say whether any partition of ``topic`` is there."""
        return topic in self._topics

    def refusal(self, topic: str, index: int) -> str | None:
        """Return why a partition that is on the disk could not be opened, ``None`` if there is no such fault."""
        return self._store(topic).refused.get((topic, index))

    def refused(self) -> Iterable[tuple[str, int, str]]:
        """Return topic, index and reason of every partition that could not be opened."""
        return sorted((*key, reason) for store in self._stores.values() for key, reason in store.refused.items())

    def close(self, clean: bool) -> None:
        """Close everything (blocking); ``clean`` leaves the mark that makes the next start fast."""
        for store in self._stores.values():
            store.close(clean)

    def _store(self, topic: str) -> LogStore:
        return self._only or self._stores[self._config.topic_settings(topic).data_path]

    def _report(self) -> None:
        for store in self._stores.values():
            for log in store.logs():
                for sentence in log.recovery.warnings():
                    _LOG.warning("recovery", extra={"fields": {"partition": log.directory.name, "what": sentence}})
                if self._store(log.topic) is not store:
                    fields = {"partition": log.directory, "dataPath": self._store(log.topic).data_path}
                    _LOG.warning("not served, the topic's dataPath is another", extra={"fields": fields})


def _open_store(files: Files, clock: Clock, path: str, settings: LogSettings, threads: int) -> LogStore:
    try:
        return LogStore.open(files, clock, Path(path), lambda topic: settings, load_threads=threads)
    except OSError as error:
        raise DataFolderFailed(path, error) from error
