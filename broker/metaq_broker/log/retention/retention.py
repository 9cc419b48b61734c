"""Retention: at the times of a topic's schedule (``deleteWhen``), its policy (``deletePolicy``) is applied to all its
partitions, one after the other, in steps that can fail, be stopped and crash anywhere.

::

    finish an earlier run                     files of segments that are out of service already
    expired = what the policy does not keep   pure, see policy.py
            - what a commit may still need    a restart looks for its messages there
    sync the transaction journal              so that commits which are over are known to be over after a crash
    archive,T,true: pack the oldest one       worker thread; it is still served
    sync the first entry of the next index    worker thread: it has the number of earlier messages
    take out of service                       event loop: start_offset moves, a get below it is answered with 301
    unlink or rename the files                worker thread; the next run repeats failed removals

The state of logs changes on the event loop only; packing and unlinking are done by one worker thread at a time.

Source: docs/operations.md, docs/log-format.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from metaq.errors import MetaqError
from metaq_broker.background import begin_work
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.retention.archive import PackingStopped, RemovalJob, pack, remove_unfinished
from metaq_broker.log.retention.policy import Removal, RetentionPolicy, Timetable
from metaq_broker.log.segments.segment import SegmentInfo
from metaq_broker.log.sync.sync_queue import OnDurable, outcome

if TYPE_CHECKING:
    from metaq_broker.operate.config.configuration import BrokerConfig
    from metaq_broker.operate.config.sections import TopicConfig

_LOG: Final = logging.getLogger(__name__)

RunInWorker = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking function in another thread and returns its result or raises its exception."""


NeededFrom = Callable[[str, int], int | None]
"""Topic and partition -> the first offset of messages that are needed; ``None`` = none are."""


class Commits(Protocol):
    """The part of ``TransactionManager`` that is needed here."""

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return the offset from which a restart would look for committed messages; ``None`` = it would not."""

    def when_on_disk(self, callback: OnDurable) -> None:
        """Call back when everything that is in the journal now is on disk, or the journal has failed."""


class Retired(NamedTuple):
    """The result for one partition: how many segments were removed, their bytes, and why not all of them."""

    topic: str
    partition: int
    removal: Removal
    segments: int
    byte_count: int
    failure: str | None


class RetentionFailed(MetaqError):
    """Old segments are not removed now; the text is one sentence."""


class _OutOfService(Exception):
    """The partition was withdrawn, or the broker stops: retention must stop."""


@dataclass(slots=True)
class _Progress:
    segments: int = 0
    byte_count: int = 0

    def add(self, gone: Sequence[SegmentInfo]) -> None:
        self.segments += len(gone)
        self.byte_count += sum(segment.size for segment in gone)


class SegmentRetirement:
    """``in_service`` returns whether a log is the current one of its partition. Used on one event loop."""

    def __init__(
        self,
        files: Files,
        in_service: Callable[[PartitionLog], bool],
        commits: Commits,
        run_in_worker: RunInWorker = asyncio.to_thread,
    ) -> None:
        self._files = files
        self._in_service = in_service
        self._commits = commits
        self._run_in_worker = run_in_worker
        self.users: list[NeededFrom] = []
        """Others that need messages: each returns the first offset that it needs of a partition."""
        self._unfinished: dict[PartitionLog, RemovalJob] = {}
        self._at_work_on: PartitionLog | None = None
        self._idle = asyncio.Event()
        self._interrupted = threading.Event()
        self._stopping = False

    async def retire(
        self, log: PartitionLog, policy: RetentionPolicy, now_ms: int, grown_s: float = inf
    ) -> Retired | None:
        """Apply a policy to one partition; ``None`` if there was nothing to do.

        One call at a time. Never raises: errors are in the result and in the broker's log.
        """
        progress, failure = _Progress(), None
        try:
            await self._retire(log, policy, (now_ms, grown_s), progress)
        except (PackingStopped, _OutOfService):
            pass
        except (OSError, RetentionFailed) as error:
            failure = str(error)
        except Exception as error:  # a bug must not end retention for good
            _LOG.exception("retention failed", extra={"fields": {"partition": log.name}})
            failure = repr(error)
        if not progress.segments and failure is None:
            return None
        retired = Retired(log.topic, log.index, policy.removal, progress.segments, progress.byte_count, failure)
        _report(log, retired)
        return retired

    async def remove_before(self, log: PartitionLog, start: int) -> None:
        """Remove the segments that end at or before ``start``, whatever policy and transactions say. Never raises."""
        progress = _Progress()
        try:
            await self._finish(log, progress)
            passed = [each for each in log.segments()[: log.removable] if each.start + each.size <= start]
            if passed:
                await self._take_away(log, Removal.DELETE, passed, progress)
        except _OutOfService:
            pass
        except (OSError, RetentionFailed) as error:
            fields = {"partition": log.name, "reason": error}
            _LOG.error("old segments not removed", extra={"fields": fields})

    def stop(self) -> None:
        """Start no more steps and interrupt packing; ``retire`` returns soon."""
        self._stopping = True
        self._interrupted.set()

    async def settle(self, log: PartitionLog) -> None:
        """Return when no operation on the files of a log that is out of service is in progress; none follows."""
        if self._at_work_on is log:
            self._interrupted.set()
            await self._idle.wait()
        self._unfinished.pop(log, None)

    # ---- the steps

    async def _retire(
        self, log: PartitionLog, policy: RetentionPolicy, now: tuple[int, float], progress: _Progress
    ) -> None:
        await self._finish(log, progress)
        expired = policy.expired(log.segments(), *now)[: log.removable]
        expired = self._not_needed(log, expired)
        if not expired:
            return
        await self._journal_on_disk()
        together = 1 if policy.removal is Removal.ARCHIVE_PACKED else len(expired)
        for first in range(0, len(expired), together):
            await self._take_away(log, policy.removal, expired[first : first + together], progress)

    async def _take_away(
        self, log: PartitionLog, removal: Removal, segments: Sequence[SegmentInfo], progress: _Progress
    ) -> None:
        if removal is Removal.ARCHIVE_PACKED:
            for segment in segments:
                await self._work(log, partial(pack, self._files, segment.path, self._interrupted.is_set))
        self._check_unchanged(log, segments)
        await self._work(log, log.first_entry(len(segments)).run)
        self._check_unchanged(log, segments)
        self._unfinished[log] = RemovalJob(self._files, removal, log.forget_segments(len(segments)))
        await self._finish(log, progress)

    async def _finish(self, log: PartitionLog, progress: _Progress) -> None:
        """Remove the files of segments that are out of service.

        They must be removed before newer segments, or a restart would find a gap.
        """
        job = self._unfinished.get(log)
        if job is None:
            return
        before = job.gone
        try:
            await self._work(log, job.run)
        finally:
            progress.add(job.segments[before : job.gone])
        self._unfinished.pop(log, None)

    async def _work(self, log: PartitionLog, step: Callable[[], None]) -> None:
        self._check_in_service(log)
        self._at_work_on = log
        self._idle.clear()
        self._interrupted.clear()
        try:
            await self._run_in_worker(step)
        finally:
            self._at_work_on = None
            self._idle.set()

    def _check_unchanged(self, log: PartitionLog, segments: Sequence[SegmentInfo]) -> None:
        self._check_in_service(log)
        if len(segments) > log.removable or _bounds(log.segments()[: len(segments)]) != _bounds(segments):
            raise RetentionFailed(f"segments of {log.name} changed meanwhile; the next run looks again")

    def _check_in_service(self, log: PartitionLog) -> None:
        if self._stopping or not self._in_service(log):
            raise _OutOfService

    # ---- transactions

    def _not_needed(self, log: PartitionLog, expired: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        users = (self._commits.needed_from, *self.users)
        needed = [offset for user in users if (offset := user(log.topic, log.index)) is not None]
        if not needed:
            return list(expired)
        needed_from = min(needed)
        kept = [segment for segment in expired if segment.start + segment.size > needed_from]
        if kept:
            fields = {"partition": log.name, "segments": len(kept), "from": needed_from}
            _LOG.warning("old segments are kept, they are needed still", extra={"fields": fields})
        return list(expired[: len(expired) - len(kept)])

    async def _journal_on_disk(self) -> None:
        failure = await outcome(self._commits.when_on_disk)
        if failure is not None:
            raise RetentionFailed(f"the transaction journal cannot be synced, so nothing is removed: {failure}")


def _bounds(segments: Sequence[SegmentInfo]) -> list[tuple[int, int]]:
    return [(segment.start, segment.size) for segment in segments]


def _report(log: PartitionLog, retired: Retired) -> None:
    fields = {
        "partition": log.name,
        "how": retired.removal.value,
        "segments": retired.segments,
        "bytes": retired.byte_count,
        "start": log.start_offset,
    }
    if retired.failure is None:
        _LOG.info("old segments removed", extra={"fields": fields})
    else:
        _LOG.error("old segments not removed", extra={"fields": {**fields, "reason": retired.failure}})


PAUSE_S_MAX: Final = 60.0
"""Longest time between two readings of the clock, which may be set meanwhile, in seconds."""

PAUSE_S_MIN: Final = 0.001


class Partitions(Protocol):
    """The partitions in service."""

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Return a partition; ``None`` if it is not in service."""

    def logs(self) -> Iterable[PartitionLog]:
        ...


@dataclass(slots=True)
class RetentionFigures:
    """Counts since the broker's start: removed segments, their bytes, and errors."""

    deleted: int = 0
    archived: int = 0
    byte_count: int = 0
    failures: int = 0

    def add(self, retired: Retired) -> None:
        """Count the result for one partition."""
        if retired.removal is Removal.DELETE:
            self.deleted += retired.segments
        else:
            self.archived += retired.segments
        self.byte_count += retired.byte_count
        self.failures += retired.failure is not None


class TopicPlan(NamedTuple):
    """The plan for a topic, and the counts so far; ``next_ms`` is ``None`` if its schedule has no further time."""

    topic: str
    policy: str
    schedule: str
    next_ms: int | None
    figures: RetentionFigures


class Retention:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: BrokerConfig,
        partitions: Partitions,
        commits: Commits,
        run_in_worker: RunInWorker = asyncio.to_thread,
        doubt: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``doubt`` returns why the clock is in doubt, so that nothing is deleted by age; ``None`` if it is not."""
        self._files, self._clock = files, clock
        self._doubt = doubt
        self._partitions = partitions
        self._run_in_worker = run_in_worker
        self._retirement = SegmentRetirement(files, self._in_service, commits, run_in_worker)
        self.users = self._retirement.users
        self._timetable = Timetable()
        self._figures: dict[str, RetentionFigures] = {}
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.update(config)

    # ---- start and stop

    def start(self) -> None:
        """Remove unfinished archives after a crash, then do what is due, until ``stop``."""
        self._task = begin_work(self._keep_time(), "retention")

    async def stop(self) -> None:
        """Interrupt a run, leaving every segment complete, and start no more."""
        self._stopping = True
        self._retirement.stop()
        self._changed.set()
        if self._task is not None:
            await self._task
        async with self._lock:
            pass  # a run that an operator has requested has ended, too

    def update(self, config: BrokerConfig) -> None:
        """Apply another configuration; unchanged schedules are not affected."""
        self._config = config
        topics: tuple[TopicConfig, ...] = (config.system, *config.topics.values())
        self._timetable.update({topic.delete_when for topic in topics}, self._clock.now_ms())
        self._changed.set()

    # ---- operators

    async def run_now(self, topic: str | None = None) -> list[Retired]:
        """Apply the policies now, to one topic or to all; return the results by partition.

        Partitions without anything to remove are not in the list.

        Raises:
            RetentionFailed: The clock is in doubt: nothing is removed.
        """
        if (doubt := self._doubt()) is not None:
            advice = "if the clock is right, run `metaq-broker ctl clock accept`"
            raise RetentionFailed(f"nothing is removed by age, {doubt}; {advice}")
        return await self._run(lambda name: topic is None or name == topic)

    async def settle(self, log: PartitionLog) -> None:
        """Return when no operation on the files of a log that is out of service is in progress; none follows."""
        await self._retirement.settle(log)

    async def remove_before(self, log: PartitionLog, start: int) -> None:
        """Remove the segments of a follower's partition that end at or before ``start``: its leader has removed them.

        Errors are in the broker's log; a later call tries again.
        """
        async with self._lock:
            if not self._stopping and self._in_service(log):
                await self._retirement.remove_before(log, start)

    def figures(self) -> RetentionFigures:
        """Return the sum of all topics' figures."""
        total = RetentionFigures()
        for each in self._figures.values():
            total.deleted += each.deleted
            total.archived += each.archived
            total.byte_count += each.byte_count
            total.failures += each.failures
        return total

    def plan(self) -> list[TopicPlan]:
        """Return the plan of every topic that has partitions, by name."""
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
        """Do what is due now; return the results."""
        if self._doubt() is not None:
            return []  # with a wrong clock, everything might seem old
        due = self._timetable.due(self._clock.now_ms())
        return await self._run(lambda topic: self._config.topic_settings(topic).delete_when in due) if due else []

    # ---- runs

    async def _run(self, wanted: Callable[[str], bool]) -> list[Retired]:
        async with self._lock:
            done = []
            for log in list(self._partitions.logs()):
                if not self._stopping and wanted(log.topic) and self._in_service(log):
                    policy = RetentionPolicy.parse(self._config.topic_settings(log.topic).delete_policy)
                    now = self._clock.now_ms(), self._clock.since_boot()
                    retired = await self._retirement.retire(log, policy, *now)
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
                with contextlib.suppress(OSError):  # the rest only costs space
                    for name in remove_unfinished(self._files, directory):
                        fields = {"partition": directory.name, "file": name}
                        _LOG.warning("unfinished archive removed", extra={"fields": fields})

        await self._run_in_worker(clean)
