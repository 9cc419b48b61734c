"""Reads the configuration again while the broker runs, and applies the changes that need no restart.

Before anything changes, the file is checked as at a start and data folders of new topics are opened, so a wrong file
changes nothing. Applied are the sections ``[topic=NAME]``: new topics, numbers of partitions, flushing, retention,
statistics. Everything else, and another folder for an existing topic, takes effect at a restart and is listed; topics
continue to inherit the values that ``[system]`` had at the start. A topic whose section was removed is accepted until
the restart, as in MetaQ. Connections and messages in progress are not affected.

Source: docs/administration.md, "Reload".
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.errors import MetaqError
from metaq_broker.clock import Clock
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.operate.config.configuration import BrokerConfig, is_unmatched, parse, read_file
from metaq_broker.operate.config.http import SECTION as HTTP
from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.operate.config.keys import keys_of
from metaq_broker.operate.config.replication import ROLES
from metaq_broker.operate.config.rocketmq import SECTION as ROCKETMQ
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.operate.config.sections import SystemConfig, TopicConfig, ZooKeeperConfig

_LOG: Final = logging.getLogger(__name__)

RELOADED_FIELDS: Final = ("topics", "unmatched", "text", "warnings")
"""Parts of the configuration that follow the file; the others keep their values from the start."""

_SECTIONS: Final[Mapping[type, str]] = {
    SystemConfig: "system",
    ZooKeeperConfig: "zookeeper",
    RocketmqConfig: ROCKETMQ,
    HttpConfig: HTTP,
    **{role: section for section, role in ROLES.items()},
}
"""Part of the configuration -> its section in the file."""


class ReloadRefused(MetaqError):
    """Nothing was changed; the text is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The result of a reload. ``changed`` is topic -> keys; ``removed`` topics are accepted until a restart.

    ``restart_needed`` names the keys whose new values have no effect yet; ``notes`` are sentences.
    """

    file: str
    checksum: int
    added: Sequence[str]
    changed: Mapping[str, Sequence[str]]
    removed: Sequence[str]
    restart_needed: Sequence[str]
    notes: Sequence[str]


class Reloader:
    """Reloads ``file`` (``None``: there is none). ``apply`` applies a configuration at once and cannot fail.

    ``announce`` is called before topics are added, and may refuse that with a ``MetaqError``.
    """

    def __init__(
        self,
        file: Path | None,
        running: Callable[[], BrokerConfig],
        stores: TopicStores,
        apply: Callable[[BrokerConfig], None],
        clock: Clock,
        announce: Callable[[BrokerConfig], Awaitable[None]] | None = None,
    ) -> None:
        self.file = file
        self.restart_needed: Sequence[str] = ()
        self.loaded_ms = clock.now_ms()
        self._started = parse(running().text, str(file))  # as in the file, without changes by the command line
        self._running = running
        self._stores = stores
        self._apply, self._announce = apply, announce
        self._clock = clock
        self._lock = asyncio.Lock()
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    def reload_soon(self) -> None:
        """Reload in the background (SIGHUP); the result is logged."""
        task = asyncio.get_running_loop().create_task(self._reload_quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_quietly(self) -> None:
        try:
            await self.reload()
        except ReloadRefused:
            return  # it is logged

    async def stop(self) -> None:
        """Wait for a reload in progress, and start no other."""
        self._stopped = True
        async with self._lock:
            pass

    async def reload(self) -> ReloadReport:
        """Read the file and apply what can be applied.

        Raises:
            ReloadRefused: The file is wrong, or a data folder cannot be opened. Nothing has changed.
        """
        async with self._lock:
            try:
                report = await self._reload()
            except MetaqError as error:
                _LOG.error("configuration not reloaded, nothing has changed", extra={"fields": {"reason": str(error)}})
                raise ReloadRefused(str(error)) from error
        fields = {name: value for name, value in dataclasses.asdict(report).items() if value}
        _LOG.info("configuration reloaded", extra={"fields": fields})
        return report

    async def _reload(self) -> ReloadReport:
        if self._stopped:
            raise ReloadRefused("the broker is stopping")
        if self.file is None:
            raise ReloadRefused("the broker was started without a configuration file, there is nothing to reload")
        raw = await asyncio.to_thread(read_file, self.file)
        running = self._running()
        found = parse(raw, str(self.file), running.system)
        config, report = self._merge(running, found)
        if report.added and self._announce is not None:
            try:
                await self._announce(config)
            except MetaqError as error:
                names = ", ".join(report.added)
                raise ReloadRefused(
                    f"ZooKeeper must know of new topics ({names}) before they are served: {error}"
                ) from error
        opened = await self._open_folders(config)
        for store in opened:
            self._stores.adopt(store)
        config, report = self._merge(self._running(), found)  # it may have been promoted, or got partitions, meanwhile
        self._stores.reconfigure(config)
        self._apply(config)
        self.restart_needed, self.loaded_ms = report.restart_needed, self._clock.now_ms()
        return report

    def _merge(self, running: BrokerConfig, found: BrokerConfig) -> tuple[BrokerConfig, ReloadReport]:
        topics, moved = self._keep_folders(running, found.topics)
        removed = [name for name in running.topics if name not in topics]
        kept = {name: getattr(running, name) for name in _fields(running) if name not in RELOADED_FIELDS}
        merged = {**topics, **{name: running.topics[name] for name in removed}}
        special = found.unmatched | running.unmatched.intersection(removed)
        unmatched = frozenset(name for name in special if is_unmatched(name, merged))
        config = dataclasses.replace(found, topics=merged, unmatched=unmatched, **kept)
        report = ReloadReport(
            file=str(self.file),
            checksum=config.checksum,
            added=[name for name in topics if name not in running.topics],
            changed=dict(_changed_topics(running.topics, topics)),
            removed=removed,
            restart_needed=[*_changed_keys(self._started, found), *(f"[topic={name}] dataPath" for name in moved)],
            notes=[*found.warnings, *self._shrunk(running, config)],
        )
        return config, report

    def _keep_folders(
        self, running: BrokerConfig, found: Mapping[str, TopicConfig]
    ) -> tuple[dict[str, TopicConfig], list[str]]:
        """Return the topics of the file, with the folders that existing topics have; and the topics with another
        folder.
        """
        topics, moved = dict(found), []
        for name, topic in found.items():
            path = running.topic_settings(name).data_path
            if topic.data_path != path and (name in running.topics or self._stores.has_topic(name)):
                topics[name] = dataclasses.replace(topic, data_path=path)
                moved.append(name)
        return topics, moved

    def _shrunk(self, running: BrokerConfig, config: BrokerConfig) -> Iterator[str]:
        for name, topic in config.topics.items():
            indexes = [log.index for log in self._stores.logs() if log.topic == name]
            beyond = [index for index in indexes if index >= topic.num_partitions]
            if beyond and topic.num_partitions < running.topic_settings(name).num_partitions:
                rest = f"{name}-{beyond[0]}" + (f" to {name}-{beyond[-1]}" if len(beyond) > 1 else "")
                limit = f"not below numPartitions={topic.num_partitions}"
                yield f"{rest}: {limit}: it can still be read, and accepts no puts"

    async def _open_folders(self, config: BrokerConfig) -> list[LogStore]:
        """Open the data folders that only new topics use, all or none."""
        opened: list[LogStore] = []
        try:
            for path in config.data_paths():
                if path not in self._stores.data_paths:
                    opened.append(await asyncio.to_thread(self._stores.open_store, path))
        except MetaqError:
            for store in opened:
                await asyncio.to_thread(store.close, True)
            raise
        return opened


def _fields(value: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(value) if field.init]


def _changed_topics(
    before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> Iterator[tuple[str, Sequence[str]]]:
    for name in after:
        keys = _differences(before[name], after[name]) if name in before else []
        if keys:
            yield name, keys


def _changed_keys(started: BrokerConfig, found: BrokerConfig) -> Iterator[str]:
    """Yield what differs outside of topics: ``[section] key``, or ``[section]`` if only one of both has the section."""
    for part in _fields(started):
        if part not in RELOADED_FIELDS:
            yield from _changed_part(getattr(started, part), getattr(found, part))


def _changed_part(before: Any, after: Any) -> Iterator[str]:
    if type(before) is type(after):
        yield from (f"[{_SECTIONS[type(before)]}] {key}" for key in _differences(before, after))
    else:
        yield from (f"[{_SECTIONS[type(part)]}]" for part in (before, after) if part is not None)


def _differences(before: Any, after: Any) -> list[str]:
    """Return the names of the keys whose values differ in two readings of one section."""
    if before == after:
        return []
    return [
        key.name
        for key in keys_of(type(before))
        if getattr(before, key.attribute) != getattr(after, key.attribute)
    ]
