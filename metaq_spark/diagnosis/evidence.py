"""What is known about a query, by source. Values only; ``None`` = was not asked, or could not be.

=====  ==============================================================  ===========================
C      the checkpoint folder                                           ``folder.read_folder``
P, S   progress and status, as a driver reported them                  ``reports.read_reports``
B      the brokers and what names them                                 ``brokers.BrokerWatch``
U      Spark's UI                                                      ``spark_ui.read_ui``
=====  ==============================================================  ===========================
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metaq.model import TopicPartition
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import Progress


class EvidenceKind(enum.StrEnum):
    """A source of evidence."""

    FOLDER = "C"
    PROGRESS = "P"
    BROKERS = "B"
    STATUS = "S"
    UI = "U"


@dataclass(frozen=True, slots=True)
class Missing:
    """Evidence that was not there: ``what`` cannot be known without it, and what to ``give`` the command."""

    kind: EvidenceKind
    what: str
    give: str


@dataclass(frozen=True, slots=True)
class Batch:
    """When a micro-batch was planned and committed, by the times of its files (ms since 1970)."""

    number: int
    planned_ms: int
    committed_ms: int | None


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """A source in the checkpoint, counted from 1. ``format`` is ``None`` for another connector's.

    ``read_to``: where the last committed batch ended; ``planned``: where the planned batch ends. ``history``: where the
    last batches ended, with the time at which each was planned, oldest first.
    """

    number: int
    name: str | None
    format: str | None
    read_to: Progress | None
    planned: Progress | None
    history: tuple[tuple[int, Progress], ...] = ()

    @property
    def known(self) -> Progress:
        """The position, or before the first commit the planned end; empty for another connector's."""
        if self.read_to is not None and self.read_to.offsets:
            return self.read_to
        return self.planned or Progress({})


@dataclass(frozen=True, slots=True)
class FolderEvidence:
    """C. ``batches``: the last ones, oldest first. ``damage``: the file that cannot be read, and why.

    ``moved``: the planned batch only moves the query; ``ran_move``: the last committed one did. ``state_partitions``:
    how many the state has on disk, by operator; ``conf``: Spark's settings that the checkpoint fixes.
    """

    folder: str
    read_ms: int
    query_id: str | None = None
    batches: tuple[Batch, ...] = ()
    sources: tuple[SourceFolder, ...] = ()
    damage: tuple[str, str] | None = None
    uncommitted: int = 0
    moved: bool = False
    ran_move: bool = False
    state_partitions: Mapping[str, int] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planned(self) -> Batch | None:
        """The batch that is planned and not committed."""
        last = self.batches[-1] if self.batches else None
        return last if last is not None and last.committed_ms is None else None

    @property
    def committed(self) -> Batch | None:
        """The last committed batch."""
        return next((batch for batch in reversed(self.batches) if batch.committed_ms is not None), None)

    @property
    def ours(self) -> tuple[SourceFolder, ...]:
        return tuple(source for source in self.sources if source.format is not None)


@dataclass(frozen=True, slots=True)
class Trigger:
    """A progress report: a trigger that did something, or that reported after a while of nothing.

    ``phases_ms``: time by phase. ``start`` and ``end`` of ``sources`` are ``None`` for other connectors' sources.
    """

    run_id: str
    batch: int
    began_ms: int
    ended_ms: int
    rows: int
    input_rows_per_s: float
    processed_rows_per_s: float
    phases_ms: Mapping[str, int]
    sources: tuple[SourceReport, ...]
    states: tuple[Mapping[str, Any], ...]
    watermark_ms: int | None
    event_time_max_ms: int | None
    rows_out: int | None
    sink: str

    @property
    def took_ms(self) -> int:
        return self.phases_ms.get("triggerExecution", 0)

    @property
    def moved(self) -> bool:
        """Whether a source of ours has another position after it; one of other connectors, whether it has rows."""
        return self.rows > 0 or any(source.moved for source in self.sources)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A source in a progress report: where the trigger began and ended, and where the partitions ended then."""

    description: str
    rows: int
    start: Progress | None
    end: Progress | None
    latest: Progress | None

    @property
    def moved(self) -> bool:
        """Whether the trigger read on; the first batch has no start."""
        start = {} if self.start is None else dict(self.start.offsets)
        return self.end is not None and dict(self.end.offsets) != start


@dataclass(frozen=True, slots=True)
class QueryRun:
    """A run of the query, as far as its reports tell. ``alive_ms``: the last sign of life.

    ``driver``: host, machine, pid, app, ui. ``process_ended``: the driver's process is known to have ended.
    """

    run_id: str
    query_id: str
    name: str | None
    started_ms: int | None
    alive_ms: int
    ended_ms: int | None = None
    error: str | None = None
    error_class: str | None = None
    driver: Mapping[str, Any] = field(default_factory=dict)
    trigger: str | None = None
    process_ended: bool = False

    @property
    def ended(self) -> bool:
        return self.ended_ms is not None


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """S: what a run did when it was asked."""

    at_ms: int
    run_id: str
    message: str
    data_available: bool
    trigger_active: bool
    since_ms: int
    """The first of the statuses in a row that have the same message."""


@dataclass(frozen=True, slots=True)
class Reports:
    """P and S. ``runs`` and ``triggers``: oldest first. ``others``: ids of other queries in the reports.

    ``overlapping``: two runs that reported in turn.
    """

    read_ms: int
    runs: tuple[QueryRun, ...]
    triggers: tuple[Trigger, ...]
    status: QueryStatus | None = None
    idle_ms: int | None = None
    others: tuple[str, ...] = ()
    overlapping: tuple[QueryRun, QueryRun] | None = None
    heartbeat_s: float | None = None
    """Seconds between statuses, if the run sends some: silence is then a sign."""

    @property
    def last_run(self) -> QueryRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def of_last_run(self) -> tuple[Trigger, ...]:
        """The triggers of the last run."""
        last = self.last_run
        return tuple(one for one in self.triggers if last is not None and one.run_id == last.run_id)


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """What the brokers had at one time, beside the position of each source. ``away``: server -> why it did not answer.

    Partitions of brokers that did not answer are in none of the lags.
    """

    at_ms: int
    lags: Mapping[int, tuple[PartitionLag, ...]]
    away: Mapping[str, str] = field(default_factory=dict)
    took_s: float = 0.0

    def all(self) -> list[PartitionLag]:
        return [lag for lags in self.lags.values() for lag in lags]


@dataclass(frozen=True, slots=True)
class ServerFault:
    """Something that a look at a server found: ``what`` is the server and the part of it."""

    what: str
    detail: str
    fails: bool


@dataclass(frozen=True, slots=True)
class BrokerEvidence:
    """B. ``looks``: oldest first. ``ends_at``: (time in ms, ends of partitions) from the brokers' indexes by time.

    ``last_put_ms``: when the last message of a partition was stored. ``types``: types or tags of the newest messages,
    with how often each is there. ``faults``: what a checkup of the servers found. ``error``: why there is no look.
    """

    looks: tuple[BrokerLook, ...] = ()
    ends_at: tuple[tuple[int, Mapping[TopicPartition, int]], ...] = ()
    last_put_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[ServerFault, ...] = ()
    error: str | None = None

    @property
    def last(self) -> BrokerLook | None:
        return self.looks[-1] if self.looks else None


@dataclass(frozen=True, slots=True)
class UiEvidence:
    """U. ``active_stages``, their tasks (``tasks_s``: seconds that each running task has taken), and the cores.

    ``waiting_tasks``: tasks of active stages that do not run.
    """

    read_ms: int
    active_stages: int
    running_tasks: int
    waiting_tasks: int
    cores: int
    executors: int
    tasks_s: tuple[float, ...] = ()
    done_tasks_s: tuple[float, ...] = ()
    other_jobs: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class QueryEvidence:
    """Everything. ``now_ms``: when it was judged. ``options``: of the read, as far as the user gave them."""

    now_ms: int
    folder: FolderEvidence | None = None
    reports: Reports | None = None
    brokers: BrokerEvidence | None = None
    ui: UiEvidence | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[EvidenceKind, str] = field(default_factory=dict)
    """Why evidence that was asked for could not be read."""
