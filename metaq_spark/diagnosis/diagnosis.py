"""Gathers the evidence about a query and judges it: once, or again and again.

::

    from metaq_spark.diagnosis.diagnosis import diagnose
    print(diagnose("checkpoints/orders", options={"brokers": "127.0.0.1:8123"}, progress="progress.jsonl").text())

Nothing is changed, neither in the folder nor at a broker, and everything that is asked has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metaq.errors import MetaqError
from metaq_spark.diagnosis.brokers import BrokerWatch
from metaq_spark.diagnosis.evidence import (
    BrokerEvidence,
    EvidenceKind,
    FolderEvidence,
    QueryEvidence,
    Reports,
    UiEvidence,
)
from metaq_spark.diagnosis.folder import read_folder
from metaq_spark.diagnosis.judgement import judge
from metaq_spark.diagnosis.progress import Event, EventsUnreadable, read_events
from metaq_spark.diagnosis.report import Diagnosis
from metaq_spark.diagnosis.reports import read_reports
from metaq_spark.diagnosis.rules.reading import TRIGGERS_MIN
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.spark_ui import read_ui
from metaq_spark.diagnosis.verdict import QueryVerdict

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Events = Iterable[Mapping[str, Any]]
Progress = str | Path | Events | Callable[[], Events]
"""Where reports of the driver are: a file, a URL, or events in memory; a function is called for each look."""

SAMPLE_S: Final = 2.0
DEADLINE_S: Final = 10.0
RESTING: Final = frozenset({QueryVerdict.IDLE, QueryVerdict.NOT_OURS, QueryVerdict.FAILED})
"""Verdicts that a second look after some seconds does not change."""


def diagnose(
    checkpoint: str | Path | None,
    *,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    query: StreamingQuery | None = None,
    ui: str | None = None,
    sample_s: float = SAMPLE_S,
    deadline_s: float = DEADLINE_S,
) -> Diagnosis:
    """Return why the query with this checkpoint does, or does not, move; ``None``: it is not at hand.

    ``options``: of a read, with ``brokers``, ``zookeeper`` or ``nameServers``; without it no broker is asked. Others
    that the query has, such as ``minOffsetsPerTrigger``, make the result more precise. ``progress``: what a
    ``ProgressListener`` keeps, progress reports, or a driver's log. ``query``: the query itself, in its driver. ``ui``:
    the address of Spark's UI. Unless the query is idle, a second look follows after ``sample_s`` seconds. No question
    takes more than ``deadline_s`` seconds.

    Raises:
        OptionError: An option is wrong.
        CheckpointFolderError, OSError: The folder cannot be read, and there are no reports either.
        CheckpointError: The checkpoint was written by a newer version.
    """
    watch = Watch(checkpoint, options=options, progress=progress, query=query, ui=ui, deadline_s=deadline_s)
    found = watch.look()
    if sample_s > 0 and found.verdict not in RESTING:
        time.sleep(sample_s)
        found = watch.look()
    return found


class Watch:
    """Looks at a query again and again; what was seen before is the history. Arguments as of ``diagnose``."""

    def __init__(
        self,
        checkpoint: str | Path | None,
        *,
        options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        query: StreamingQuery | None = None,
        ui: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._checkpoint, self._options = checkpoint, dict(options or {})
        self._progress, self._query, self._ui, self._deadline_s = progress, query, ui, deadline_s
        self._brokers = BrokerWatch(self._options, deadline_s) if options else None
        self._statuses: list[Event] = []

    def look(self) -> Diagnosis:
        """Gather the evidence of now, and judge it. Raises as ``diagnose``."""
        unread: dict[EvidenceKind, str] = {}
        events = self._events(unread)
        folder = self._folder(unread, events)
        reports = read_reports(events, None if folder is None else folder.query_id, _now_ms())
        brokers = self._look_at_brokers(folder, reports, unread)
        ui = self._look_at_ui(unread)
        return judge(QueryEvidence(_now_ms(), folder, reports, brokers, ui, self._options, unread))

    def _folder(self, unread: dict[EvidenceKind, str], events: Sequence[Event]) -> FolderEvidence | None:
        """Read the folder; without it, the reports of a single query are enough for some verdicts."""
        if self._checkpoint is None:
            return None
        try:
            return read_folder(str(self._checkpoint), _now_ms())
        except (MetaqError, OSError) as error:
            if len({event["id"] for event in events}) != 1:
                raise
            unread[EvidenceKind.FOLDER] = str(error)
            return None

    def _events(self, unread: dict[EvidenceKind, str]) -> list[Event]:
        """Read what drivers reported, of any query."""
        events: list[Event] = []
        if self._progress is not None:
            try:
                given = self._progress() if callable(self._progress) else self._progress
                events = read_events(given, self._deadline_s)
            except EventsUnreadable as error:
                unread[EvidenceKind.PROGRESS] = str(error)
        if self._query is not None:
            events += self._of_query(self._query)
        return events

    def _of_query(self, query: StreamingQuery) -> list[Event]:
        """Ask the query itself."""
        from metaq_spark.diagnosis.live import events_of_query

        events = events_of_query(query)
        self._statuses = [*self._statuses, *(event for event in events if event["event"] == "status")][-20:]
        return [*self._statuses[:-1], *events] if self._statuses else events

    def _look_at_brokers(
        self, folder: FolderEvidence | None, reports: Reports | None, unread: dict[EvidenceKind, str]
    ) -> BrokerEvidence | None:
        if self._brokers is None or folder is None or not folder.ours:
            return None
        asked = [source for source in folder.ours if source.format in self._brokers.formats]
        if not asked:
            names = ", ".join(sorted({source.format or "" for source in folder.ours}))
            unread[EvidenceKind.BROKERS] = f"the query reads {names}, and no option names its servers"
            return None
        error = self._brokers.look(asked)
        situation = Situation(QueryEvidence(_now_ms(), folder, reports, options=self._options))
        empty = [one for one in situation.work[-TRIGGERS_MIN:] if not one.rows]
        return self._brokers.evidence(
            asked, times_ms=(situation.since_ms,), types=len(empty) >= TRIGGERS_MIN, error=error
        )

    def _look_at_ui(self, unread: dict[EvidenceKind, str]) -> UiEvidence | None:
        if self._ui is None:
            return None
        try:
            return read_ui(self._ui, self._deadline_s)
        except EventsUnreadable as error:
            unread[EvidenceKind.UI] = str(error)
            return None


def _now_ms() -> int:
    return int(time.time() * 1000)
