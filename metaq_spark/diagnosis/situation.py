"""What follows from the evidence before any rule is asked: usual times, whether a driver lives, lag, rates. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Final

from metaq.model import OffsetRange, PartitionState
from metaq_spark.diagnosis.evidence import (
    BrokerLook,
    FolderEvidence,
    QueryEvidence,
    QueryRun,
    QueryStatus,
    Reports,
    SourceFolder,
    SourceReport,
    Trigger,
)
from metaq_spark.diagnosis.rates import Ends, ReadRates, rates, window_s
from metaq_spark.lag.unread import CLOCKS_S, LagStatus, PartitionLag, lags
from metaq_spark.offsets import unit_of

USUAL_TIMES: Final = 3.0
"""A batch that takes so many times the usual time is late."""
LATE_S_MIN: Final = 10.0
"""No batch is late before."""
FIRST_S: Final = 60.0
"""What a batch may take where none has ended yet, before its size is looked at."""
PACE_S_MAX: Final = 60.0
"""Longest pace that is inferred from the folder alone."""
QUIET_S_MIN: Final = 10.0
SILENT_S_MIN: Final = 60.0
"""Shortest silence of a driver, that reports every few seconds, that is taken for its end."""
SLACK_MS: Final = 3000
"""Files and reports of one moment may be this far apart."""
GAP_S_MIN: Final = 60.0
LARGE: Final[Mapping[str, int]] = {"bytes": 1 << 20, "messages": 1000}
"""What a batch holds at least, by unit, if it is to take longer for its size."""
SUSPECT: Final = frozenset({LagStatus.GONE, LagStatus.RECREATED, LagStatus.REMOVED, LagStatus.AHEAD})
_INTERVAL: Final = re.compile(r"ProcessingTime(?:Trigger)?\((\d+)\)")
_ONE_RUN: Final = re.compile(r"AvailableNow|OneTime|Once")


class Driver(enum.StrEnum):
    """Whether a driver runs the query."""

    ALIVE = "alive"
    ENDED = "ended"
    GONE = "gone"
    """Its process has ended, or it is silent though it reported regularly, and nothing else writes."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lag:
    """What is unread, over the partitions that the query reads. ``None`` = not known. ``age_s``: of the figures."""

    offsets: int
    bytes: int | None
    messages: int | None
    seconds: float | None
    partitions: int
    behind: int
    age_s: float


@dataclass(frozen=True)
class Situation:
    """Evidence, and what follows from it. Times ``*_s`` are in seconds, ages at ``evidence.now_ms``."""

    evidence: QueryEvidence

    @property
    def now_ms(self) -> int:
        return self.evidence.now_ms

    @property
    def folder(self) -> FolderEvidence | None:
        return self.evidence.folder

    @property
    def reports(self) -> Reports | None:
        return self.evidence.reports

    def age_s(self, ms: int) -> float:
        return max(0.0, (self.now_ms - ms) / 1000)

    # ---- the query's own times

    @cached_property
    def batch_times_s(self) -> list[float]:
        """How long the last batches took, sorted."""
        if self.folder is not None:
            found = [
                (batch.committed_ms - batch.planned_ms) / 1000
                for batch in self.folder.batches
                if batch.committed_ms is not None
            ]
            if found:
                return sorted(max(0.0, one) for one in found)
        return sorted(trigger.took_ms / 1000 for trigger in self.work)

    @property
    def usual_s(self) -> float | None:
        """The median time of a batch."""
        return median(self.batch_times_s) if self.batch_times_s else None

    @property
    def p95_s(self) -> float | None:
        times = self.batch_times_s
        return times[min(len(times) - 1, int(0.95 * len(times)))] if times else None

    @property
    def late_s(self) -> float | None:
        """From which time on a batch is late; ``None`` where no batch has ended. A larger one may take longer."""
        if self.usual_s is None or self.p95_s is None:
            return None
        return max(USUAL_TIMES * self.usual_s, self.p95_s, LATE_S_MIN) * self.size_times

    @cached_property
    def size_times(self) -> float:
        """How many times as much as usual the planned batch holds, as after a time without a driver; 1 at least."""
        planned = self.folder.planned if self.folder is not None else None
        return 1.0 if planned is None else max([1.0, *(_size_times(one, planned.planned_ms) for one in self.ours)])

    @cached_property
    def interval_s(self) -> float | None:
        """The trigger's interval, if the driver has reported it and it has one."""
        match = _INTERVAL.search(self.run.trigger or "") if self.run is not None else None
        return int(match[1]) / 1000 if match else None

    @property
    def one_run(self) -> bool:
        """Whether the trigger ends the query when it has read what was there."""
        return self.run is not None and _ONE_RUN.search(self.run.trigger or "") is not None

    @cached_property
    def pace_s(self) -> float:
        """How far apart batches are when there is work: the trigger's interval, or a short gap of those seen."""
        times = sorted(batch.planned_ms for batch in self.folder.batches) if self.folder is not None else []
        gaps = sorted((later - earlier) / 1000 for earlier, later in pairwise(times))
        seen = min(PACE_S_MAX, gaps[len(gaps) // 4]) if gaps else 0.0
        return max(self.usual_s or 0.0, seen if self.interval_s is None else self.interval_s)

    @property
    def running_s(self) -> float | None:
        """For how long the planned batch has been planned; ``None`` if none is, or if it only moves the query."""
        planned = self.folder.planned if self.folder is not None else None
        return None if planned is None or self.folder is None or self.folder.moved else self.age_s(planned.planned_ms)

    @property
    def changed_ms(self) -> int | None:
        """When Spark last wrote into the folder."""
        last = self.folder.batches[-1] if self.folder is not None and self.folder.batches else None
        return None if last is None else max(last.planned_ms, last.committed_ms or 0)

    @property
    def quiet_s(self) -> float | None:
        """Seconds since the last commit."""
        committed = self.folder.committed if self.folder is not None else None
        return None if committed is None or committed.committed_ms is None else self.age_s(committed.committed_ms)

    @property
    def moves(self) -> bool:
        """Whether a batch was committed lately."""
        return self.quiet_s is not None and self.quiet_s <= max(QUIET_S_MIN, USUAL_TIMES * self.pace_s)

    @property
    def ahead_s(self) -> float:
        """How far in the future Spark has written into the folder, by the clock here; 0 if it has not."""
        return max(0.0, ((self.changed_ms or 0) - self.now_ms) / 1000)

    # ---- the driver

    @property
    def run(self) -> QueryRun | None:
        return self.reports.last_run if self.reports is not None else None

    @property
    def status(self) -> QueryStatus | None:
        """The status of the run, unless it is too old to be one of now."""
        status = self.reports.status if self.reports is not None else None
        if status is None or self.reports is None or self.driver is not Driver.ALIVE:
            return None
        return status if self.age_s(status.at_ms) <= self._silence_s else None

    @cached_property
    def work(self) -> tuple[Trigger, ...]:
        """The last run's triggers that did something, oldest first."""
        return tuple(one for one in self.reports.of_last_run if one.moved) if self.reports is not None else ()

    @property
    def stale(self) -> bool:
        """Whether the checkpoint was written after the reports had ended: they are not about now."""
        run, changed_ms = self.run, self.changed_ms
        if run is None or changed_ms is None:
            return False
        if run.ended_ms is not None:
            return changed_ms > run.ended_ms + SLACK_MS
        slack_ms = SLACK_MS + 1000 * (self._silence_s if self.has_heartbeat else max(SILENT_S_MIN, 3 * self.pace_s))
        return changed_ms > run.alive_ms + slack_ms

    @property
    def has_heartbeat(self) -> bool:
        return self.reports is not None and self.reports.heartbeat_s is not None

    @property
    def _silence_s(self) -> float:
        beat_s = self.reports.heartbeat_s if self.reports is not None else None
        return SILENT_S_MIN if beat_s is None else max(SILENT_S_MIN, 5 * beat_s)

    @cached_property
    def driver(self) -> Driver:
        run = self.run
        if run is None or self.stale:
            return Driver.UNKNOWN
        if run.ended:
            return Driver.ENDED
        if run.process_ended:
            return Driver.GONE
        if self.driver_clock_s is not None:
            return Driver.UNKNOWN
        silent_s = self.age_s(run.alive_ms)
        if silent_s <= (self._silence_s if self.has_heartbeat else max(SILENT_S_MIN / 2, 3 * self.pace_s)):
            return Driver.ALIVE
        return Driver.GONE if self.has_heartbeat else Driver.UNKNOWN

    @property
    def driver_clock_s(self) -> float | None:
        """By how many seconds the driver's clock is ahead, if that is so much that its silence cannot be told."""
        run = self.run
        ahead_s = 0.0 if run is None else (run.alive_ms - self.now_ms) / 1000
        return ahead_s if ahead_s > CLOCKS_S else None

    # ---- lag

    @property
    def ours(self) -> tuple[SourceFolder, ...]:
        return self.folder.ours if self.folder is not None else ()

    @property
    def others(self) -> tuple[SourceFolder, ...]:
        """Sources of other connectors."""
        return tuple(one for one in self.folder.sources if one.format is None) if self.folder is not None else ()

    @property
    def look(self) -> BrokerLook | None:
        """The last look at the brokers, if every source of ours is in it."""
        last = self.evidence.brokers.last if self.evidence.brokers is not None else None
        if last is None or self.evidence.brokers is None or self.evidence.brokers.error is not None:
            return None
        return last

    @property
    def away(self) -> dict[str, str]:
        """Servers that did not answer, and why."""
        return dict(self.look.away) if self.look is not None else {}

    @cached_property
    def partition_lags(self) -> dict[int, tuple[PartitionLag, ...]]:
        """The lag of each partition by source: of the brokers, else of the last progress report."""
        if self.look is not None:
            return dict(self.look.lags)
        return self._reported_lags

    @cached_property
    def _reported_lags(self) -> dict[int, tuple[PartitionLag, ...]]:
        """What the driver saw itself at the end of its last trigger."""
        triggers = self.reports.of_last_run if self.reports is not None and not self.stale else ()
        if not triggers:
            return {}
        found = {}
        reports: Iterable[tuple[int, SourceReport | None]] = enumerate(triggers[-1].sources, 1)
        if self.folder is not None:
            reports = [(one.number, _report_of(triggers[-1], one)) for one in self.ours]
        for number, source in reports:
            if source is not None and source.end is not None and source.latest is not None:
                ends = {
                    where: PartitionState(OffsetRange(0, at), source.latest.incarnations.get(where))
                    for where, at in source.latest.offsets.items()
                }
                found[number] = tuple(lags(source.end, ends))
        return found

    @property
    def lag_ms(self) -> int | None:
        """When the lag was measured."""
        if self.look is not None:
            return self.look.at_ms
        return self.reports.of_last_run[-1].ended_ms if self._reported_lags and self.reports is not None else None

    @cached_property
    def known_lags(self) -> list[PartitionLag]:
        """Partitions that the query knows; all of them before it has committed a position."""
        every = [lag for lags_of in self.partition_lags.values() for lag in lags_of]
        return [lag for lag in every if lag.status_note is not LagStatus.NEW]

    @cached_property
    def new_lags(self) -> list[PartitionLag]:
        """Partitions with messages that the query does not know."""
        every = [lag for lags_of in self.partition_lags.values() for lag in lags_of]
        return [lag for lag in every if lag.status_note is LagStatus.NEW and len(lag.unread)]

    @cached_property
    def suspects(self) -> list[PartitionLag]:
        """Partitions that cannot be read on from where the query is."""
        return [lag for lag in self.known_lags if lag.status_note in SUSPECT] if self.look is not None else []

    @cached_property
    def lag(self) -> Lag | None:
        """``None`` = not known: nobody was asked, or a server of the query did not answer."""
        if self.look is None or self.away or not self._complete:
            return None
        return self._summed(self.known_lags)

    @property
    def _complete(self) -> bool:
        """Whether every source of ours has lags, and no source is another connector's."""
        numbers = {one.number for one in self.ours if one.known.offsets}
        return numbers <= self.partition_lags.keys() and bool(self.partition_lags)

    @cached_property
    def partial_lag(self) -> Lag | None:
        """The lag at the servers that did answer; what the driver saw at its last trigger, if none was asked."""
        return None if self.lag_ms is None or not self.partition_lags else self._summed(self.known_lags)

    def _summed(self, found: Sequence[PartitionLag]) -> Lag:
        sizes, counts = [lag.bytes for lag in found], [lag.messages for lag in found]
        ages = [lag.seconds for lag in found if lag.seconds is not None]
        assert self.lag_ms is not None  # callers looked
        return Lag(
            offsets=sum(len(lag.unread) for lag in found),
            bytes=None if None in sizes else sum(size for size in sizes if size is not None),
            messages=None if None in counts else sum(count for count in counts if count is not None),
            seconds=max(ages, default=None),
            partitions=len(found),
            behind=sum(1 for lag in found if len(lag.unread)),
            age_s=self.age_s(self.lag_ms),
        )

    @property
    def uncommitted(self) -> bool:
        """Whether a planned batch holds messages that are not processed yet."""
        return self.folder is not None and self.folder.planned is not None and not self.folder.moved

    # ---- rates

    @property
    def since_ms(self) -> int:
        """Where the window of the rates begins; a batch's time, so that both slopes are of the same time."""
        times = [ms for source in self.ours for ms, _ in source.history]
        start_ms = self.now_ms - int(1000 * window_s(self.pace_s or None))
        gap_ms = 1000 * max(GAP_S_MIN, 10 * self.pace_s)
        start_ms = max([start_ms, *(later for earlier, later in self._gaps if later - earlier > gap_ms)])
        if self.run is not None and self.run.started_ms is not None and not self.stale:
            start_ms = max(start_ms, min(self.run.started_ms, self.now_ms))
        inside = [ms for ms in times if ms >= start_ms]
        return min(inside, default=start_ms)

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """When a batch was planned, and when the next one."""
        return list(pairwise(sorted({ms for source in self.ours for ms, _ in source.history})))

    @cached_property
    def _resumed_ms(self) -> int:
        """When the first batch after the last pause was planned; 0 if there was none. A pause tells no rate."""
        usual_ms = median(later - earlier for earlier, later in self._gaps) if self._gaps else 0
        pause_ms = max(1000 * GAP_S_MIN, 10_000 * self.pace_s, USUAL_TIMES * usual_ms)
        return max((later for earlier, later in self._gaps if later - earlier > pause_ms), default=0)

    @cached_property
    def rates(self) -> ReadRates | None:
        """The rates of all sources together; of the one that is furthest behind, if they count in other units."""
        found = [(source, one) for source in self.ours if (one := self._rates_of(source)) is not None]
        if not found:
            return None
        if len({one.unit for _, one in found}) > 1:
            return max(found, key=lambda pair: self._seconds_of(pair[0]))[1]
        first = found[0][1]
        arrival, service = (
            None if None in values else sum(value for value in values if value is not None)
            for values in ([one.arrival_per_s for _, one in found], [one.service_per_s for _, one in found])
        )
        return ReadRates(arrival, service, first.unit, first.window_s)

    def _seconds_of(self, source: SourceFolder) -> float:
        return max((lag.seconds or 0.0 for lag in self.partition_lags.get(source.number, ())), default=0.0)

    def _rates_of(self, source: SourceFolder) -> ReadRates | None:
        span_s = self.age_s(self.since_ms)
        history = [one for one in source.history if one[0] >= self._resumed_ms]
        return rates(self._ends_of(source), history, self.since_ms, span_s)

    def _ends_of(self, source: SourceFolder) -> list[tuple[int, Ends]]:
        """The ends of a source's partitions at several times, oldest first."""
        brokers = self.evidence.brokers
        points: list[tuple[int, Ends]] = []
        if brokers is not None:
            known = source.known.offsets.keys()
            points += [
                (ms, {where: at for where, at in ends.items() if where in known}) for ms, ends in brokers.ends_at
            ]
            for look in brokers.looks:
                points.append((look.at_ms, _ends(look.lags.get(source.number, ()))))
        if not any(ms < self.now_ms - 5000 for ms, _ in points) and self.reports is not None and not self.stale:
            for trigger in self.reports.of_last_run:
                report = _report_of(trigger, source)
                if report is not None and report.latest is not None:
                    points.append((trigger.ended_ms, report.latest.offsets))
        return sorted((point for point in points if point[1]), key=lambda point: point[0])

    @property
    def arrivals_s(self) -> float | None:
        """In how many seconds what is unread arrived, at the rate of now, where nothing tells how old it is."""
        lag, speeds = self.lag or self.partial_lag, self.rates
        has_one_unit = len({unit_of(one.where) for one in self.known_lags}) == 1
        if lag is None or speeds is None or not speeds.arrival_per_s or not has_one_unit:
            return None
        return lag.offsets / speeds.arrival_per_s

    @property
    def eta_s(self) -> float | None:
        """Seconds until the lag is gone, if it falls."""
        gain = self.rates.gain_per_s if self.rates is not None else None
        return self.lag.offsets / gain if self.lag is not None and gain is not None and gain > 0 else None


def _report_of(trigger: Trigger, source: SourceFolder) -> SourceReport | None:
    """Return what a report says of a source. Sources with names have their numbers by the alphabet, there by the plan:
    they are known by their partitions.
    """
    if source.name is None:
        return trigger.sources[source.number - 1] if source.number <= len(trigger.sources) else None
    known = source.known.offsets.keys()
    return next((one for one in trigger.sources if one.end is not None and known & one.end.offsets.keys()), None)


def _size_times(source: SourceFolder, planned_ms: int) -> float:
    """Return how many times as much as usual the batch planned at a time holds of a source, if it is a large one."""
    sizes = {
        ms: sum(end - before.offsets[where] for where, end in after.offsets.items() if where in before.offsets)
        for (_, before), (ms, after) in pairwise(source.history)
    }
    size, usual = sizes.pop(planned_ms, 0), [one for one in sizes.values() if one > 0]
    unit = next((unit_of(where) for where in source.known.offsets), "bytes")
    return size / max(LARGE[unit], median(usual)) if usual else 1.0


def _ends(found: Sequence[PartitionLag]) -> Ends:
    return {lag.where: lag.available.end for lag in found if lag.available is not None}
