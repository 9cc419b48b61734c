"""Where administrators' figures come from: the log's statistics, pulls, waiting messages, the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.administration.activity import BROKER, GROUPS, RETURNS, TOPICS, Counts, Snapshot
from metaq_broker.rocketmq.administration.running_figures import CurrentFigures, Limits, Totals
from metaq_broker.rocketmq.messages.message_store import MessageStore
from metaq_broker.rocketmq.pulls.pulls import PullFigures

QUEUES_LOOKED_AT_MAX: Final = 256
"""Limit on queues that are checked for the oldest message of all."""


class FigureSources:
    """``requests``, ``held`` and ``connections`` return how many there are now; ``delays`` how far each level is."""

    def __init__(
        self,
        engine: Engine,
        files: Files,
        store: MessageStore,
        pulls: PullFigures,
        config: RocketmqConfig,
        *,
        requests: Callable[[], int],
        held: Callable[[], int],
        connections: Callable[[], int],
        delays: Callable[[], Mapping[int, tuple[int, int]]],
    ) -> None:
        self._engine, self._files, self._store, self._pulls, self._config = engine, files, store, pulls, config
        self._requests, self._held, self._connections, self._delays = requests, held, connections, delays

    def totals(self) -> Totals:
        """Return what was stored and delivered since the start."""
        traffic, pulls = self._engine.statistics.traffic.values(), self._pulls
        messages, byte_count = (sum(getattr(each, name) for each in traffic) for name in ("messages_in", "bytes_in"))
        return Totals(messages, byte_count, pulls.messages, pulls.pulls, pulls.found, pulls.pulls - pulls.found)

    def moment(self) -> CurrentFigures:
        """Return the other present figures."""
        logs, statistics = list(self._engine.stores.logs()), self._engine.statistics
        return CurrentFigures(
            waiting=self._requests(),
            held_pulls=self._held(),
            connections=self._connections(),
            earliest_ms=self._earliest_ms(),
            disk=self._files.disk_space(Path(self._engine.config.system.data_path)),
            delays=self._delays(),
            log_start=sum(log.start_offset for log in logs),
            log_end=sum(log.end_offset for log in logs),
            unsynced_bytes=sum(log.end_offset - log.readable_end for log in logs),
            puts_failed=statistics.commands["put_failed"],
            put_seconds=tuple(statistics.put_seconds.cumulative()),
            longest_pull_s=self._pulls.longest_s,
        )

    def limits(self) -> Limits:
        """Return how much may wait."""
        return Limits(self._config.requests_max, self._config.held_pulls_max)

    def log_end(self) -> int:
        """Return the bytes of all partitions, those included that retention has removed."""
        return sum(log.end_offset for log in self._engine.stores.logs())

    def counts(self) -> Snapshot:
        """Return all counts of ``Activity``."""
        traffic, groups = self._engine.statistics.traffic, self._pulls.groups
        return {
            TOPICS: {topic: (each.messages_in, each.bytes_in) for topic, each in traffic.items()},
            GROUPS: {key: tuple(each) for key, each in groups.given.items()},
            RETURNS: {key: (each,) for key, each in groups.returned.items()},
            BROKER: {self._config.cluster_name: self._of_broker()},
        }

    def one(self, kind: str, key: str) -> Counts | None:
        """Return the counts of one key, ``None`` if nothing of it was counted."""
        if kind == TOPICS:
            traffic = self._engine.statistics.traffic.get(key)
            return None if traffic is None else (traffic.messages_in, traffic.bytes_in)
        if kind == GROUPS:
            given = self._pulls.groups.given.get(key)
            return None if given is None else tuple(given)
        if kind == RETURNS:
            returned = self._pulls.groups.returned.get(key)
            return None if returned is None else (returned,)
        return self._of_broker() if key == self._config.cluster_name else None

    def _of_broker(self) -> Counts:
        totals = self.totals()
        return totals.messages_in, totals.messages_out, totals.pulls

    def _earliest_ms(self) -> int | None:
        logs = islice(self._engine.stores.logs(), QUEUES_LOOKED_AT_MAX)
        queues = [(log.topic, log.index) for log in logs if not self._engine.config.hides(log.topic)]
        times = [self._store.store_time(*queue, self._store.min_offset(*queue)) for queue in queues]
        return min((time_ms for time_ms in times if time_ms is not None), default=None)
