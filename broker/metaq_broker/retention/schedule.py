"""Keeps the time of retention: at the moments of a topic's schedule (``deleteWhen``) its policy (``deletePolicy``) is
applied to all its partitions, one after the other. What is done to a partition: see ``retiring``.

Source: docs/operations.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from metaq_broker.clock import Clock
from metaq_broker.config.configuration import BrokerConfig, TopicSettings
from metaq_broker.retention.packing import remove_unfinished
from metaq_broker.retention.policy import Removal, RetentionPolicy
from metaq_broker.retention.segment_retirement import Commits, Retired, RunInWorker, SegmentRetirement
from metaq_broker.retention.timetable import Timetable
from metaq_broker.storage.files import Files
from metaq_broker.storage.partition_log import PartitionLog

_LOG: Final = logging.getLogger(__name__)

PAUSE_S_MAX: Final = 60.0
"""Longest time between two looks at the clock, which may be set meanwhile."""

PAUSE_S_MIN: Final = 0.001


class Partitions(Protocol):
    """The partitions in service."""

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Return a partition, ``None`` if it is not in service."""

    def logs(self) -> Iterable[PartitionLog]:
        """Return all of them."""


@dataclass(slots=True)
class RetentionFigures:
    """Since the broker started: segments that left, their bytes, and how often something went wrong."""

    deleted: int = 0
    archived: int = 0
    byte_count: int = 0
    failures: int = 0

    def add(self, retired: Retired) -> None:
        """Count what was done to one partition."""
        if retired.removal is Removal.DELETE:
            self.deleted += retired.segments
        else:
            self.archived += retired.segments
        self.byte_count += retired.byte_count
        self.failures += retired.failure is not None


class TopicPlan(NamedTuple):
    """What is planned for a topic, and what was done; ``next_ms`` is ``None`` when its schedule is over."""

    topic: str
    policy: str
    schedule: str
    next_ms: int | None
    figures: RetentionFigures


class Retention:
    """See the module. Used on one event loop."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: BrokerConfig,
        partitions: Partitions,
        commits: Commits,
        run_in_worker: RunInWorker = asyncio.to_thread,
        clock_is_believed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._files, self._clock = files, clock
        self._clock_is_believed = clock_is_believed
        self._partitions = partitions
        self._run_in_worker = run_in_worker
        self._retirement = SegmentRetirement(files, self._in_service, commits, run_in_worker)
        self._timetable = Timetable()
        self._figures: dict[str, RetentionFigures] = {}
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.update(config)

    # ---- life

    def start(self) -> None:
        """Remove what a crash left of archives, then do what falls due, until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._keep_time(), name="retention")

    async def stop(self) -> None:
        """Break off what is under way, leaving every segment whole, and do nothing more."""
        self._stopping = True
        self._retirement.stop()
        self._changed.set()
        if self._task is not None:
            await self._task
        async with self._turn:
            pass  # what an operator asked for has come to its end as well

    def update(self, config: BrokerConfig) -> None:
        """Go by another configuration; schedules that stay the same are not disturbed."""
        self._config = config
        topics: tuple[TopicSettings, ...] = (config.system, *config.topics.values())
        self._timetable.update({topic.delete_when for topic in topics}, self._clock.now_ms())
        self._changed.set()

    # ---- operators

    async def run_now(self, topic: str | None = None) -> list[Retired]:
        """Apply the policies now, to one topic or to all; return what was done, partition by partition.

        Partitions that had nothing to remove are not in the list.
        """
        return await self._run(lambda name: topic is None or name == topic)

    async def settle(self, log: PartitionLog) -> None:
        """Return when nothing is being done to the files of a log that is out of service; nothing will be again."""
        await self._retirement.settle(log)

    def figures(self) -> RetentionFigures:
        """Return the figures of all topics together."""
        total = RetentionFigures()
        for each in self._figures.values():
            total.deleted += each.deleted
            total.archived += each.archived
            total.byte_count += each.byte_count
            total.failures += each.failures
        return total

    def plan(self) -> list[TopicPlan]:
        """Return what is planned for every topic that has partitions, by name."""
        return [self._plan_of(topic) for topic in sorted({log.topic for log in self._partitions.logs()})]

    def _plan_of(self, topic: str) -> TopicPlan:
        settings = self._config.topic_settings(topic)
        next_ms = self._timetable.next_of(settings.delete_when)
        figures = self._figures.get(topic, RetentionFigures())
        return TopicPlan(topic, settings.delete_policy, settings.delete_when, next_ms, figures)

    # ---- time

    async def _keep_time(self) -> None:
        await self._clean_up()
        while not self._stopping:
            self._changed.clear()
            await self.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()

    def _pause_s(self) -> float:
        next_ms = self._timetable.next_of_all()
        until_next_s = PAUSE_S_MAX if next_ms is None else (next_ms - self._clock.now_ms()) / 1000
        return min(max(until_next_s, PAUSE_S_MIN), PAUSE_S_MAX)

    async def tick(self) -> list[Retired]:
        """Do what is due now; return it."""
        if not self._clock_is_believed():
            return []  # a wrong clock would make everything old
        due = self._timetable.due(self._clock.now_ms())
        return await self._run(lambda topic: self._config.topic_settings(topic).delete_when in due) if due else []

    # ---- runs

    async def _run(self, wanted: Callable[[str], bool]) -> list[Retired]:
        async with self._turn:
            done = []
            for log in list(self._partitions.logs()):
                if not self._stopping and wanted(log.topic) and self._in_service(log):
                    policy = RetentionPolicy.parse(self._config.topic_settings(log.topic).delete_policy)
                    retired = await self._retirement.retire(log, policy, self._clock.now_ms())
                    if retired is not None:
                        self._figures.setdefault(log.topic, RetentionFigures()).add(retired)
                        done.append(retired)
            return done

    def _in_service(self, log: PartitionLog) -> bool:
        return self._partitions.get(log.topic, log.index) is log

    async def _clean_up(self) -> None:
        directories = [log.directory for log in self._partitions.logs()]

        def clean() -> None:
            for directory in directories:
                with contextlib.suppress(OSError):  # what stays costs room, nothing else
                    for name in remove_unfinished(self._files, directory):
                        fields = {"partition": directory.name, "file": name}
                        _LOG.warning("unfinished archive removed", extra={"fields": fields})

        await self._run_in_worker(clean)
