"""Queries in a prepared situation: a checkpoint folder as Spark writes it, a driver's reports, and what brokers hold.

Times are given as seconds before ``NOW_MS``.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkpoints import commit, plan

from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq_spark.diagnosis.evidence import BrokerEvidence, BrokerLook, QueryEvidence, ServerFault, UiEvidence
from metaq_spark.diagnosis.folder import read_folder
from metaq_spark.diagnosis.judgement import judge
from metaq_spark.diagnosis.report import Diagnosis
from metaq_spark.diagnosis.reports import read_reports
from metaq_spark.lag.unread import lags
from metaq_spark.offsets import Progress

NOW_MS = 1_800_000_000_000
QUERY, RUN = "11111111-aaaa-bbbb-cccc-000000000001", "22222222-aaaa-bbbb-cccc-000000000001"
Offsets = Mapping[str, int]


def where(name: str) -> TopicPartition:
    """``0-1`` of the topic orders, or a partition with its topic in front."""
    topic, _, partition = name.rpartition("/")
    return TopicPartition(topic or "orders", Partition.parse_any(partition))


def tree_of(offsets: Offsets) -> dict[str, Any]:
    topics: dict[str, dict[str, int]] = {}
    for name, at in offsets.items():
        topics.setdefault(where(name).topic, {})[str(where(name).partition)] = at
    return {"v": 2, "topics": topics, "incarnations": {}}


def text_of(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


@dataclass
class Prepared:
    """A query in the making; ``evidence`` has all of it, or a part."""

    folder: Path
    now_ms: int = NOW_MS
    options: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    brokers: BrokerEvidence | None = None
    ui: UiEvidence | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "metadata").write_text(json.dumps({"id": QUERY}))

    # ---- the folder

    def batch(
        self, number: int, ago_s: float, took_s: float | None, *sources: Offsets | str, **named: Offsets
    ) -> Prepared:
        """Add a batch that was planned ``ago_s`` seconds ago; ``took_s`` = ``None``: it is not committed. ``named``:
        sources with names.
        """
        lines = [one if isinstance(one, str) else json.dumps(tree_of(one)) for one in sources]
        lines += [f"{name}:{json.dumps(tree_of(one))}" for name, one in named.items()]
        plan(self.folder, number, *lines, form="v2" if named else "v1")
        self._dated(f"offsets/{number}", ago_s)
        if took_s is not None:
            commit(self.folder, number)
            self._dated(f"commits/{number}", ago_s - took_s)
        return self

    def batches(
        self,
        count: int,
        every_s: float,
        took_s: float,
        size: int,
        until_s: float = 0.0,
        names: tuple[str, ...] = ("0-0",),
    ) -> Prepared:
        """Add committed batches in which each partition moves by ``size``; the last was planned ``until_s`` + one gap
        ago.
        """
        for number in range(count):
            ago_s = until_s + every_s * (count - number)
            self.batch(number, ago_s, took_s, dict.fromkeys(names, size * (number + 1)))
        return self

    def _dated(self, name: str, ago_s: float) -> None:
        ns = int((self.now_ms - ago_s * 1000) * 1_000_000)
        os.utime(self.folder / name, ns=(ns, ns))

    # ---- the driver

    def event(self, kind: str, ago_s: float, run: str = RUN, **more: Any) -> Prepared:
        at_ms = int(self.now_ms - ago_s * 1000)
        self.events.append({"v": 1, "event": kind, "at_ms": at_ms, "id": QUERY, "runId": run, **more})
        return self

    def started(self, ago_s: float, run: str = RUN, **driver: Any) -> Prepared:
        return self.event("started", ago_s, run, name="orders", driver={"host": "driver-1", "pid": 7, **driver})

    def ended(self, ago_s: float, error: str | None = None, run: str = RUN) -> Prepared:
        return self.event("terminated", ago_s, run, exception=error, errorClass=None)

    def status(
        self, message: str, *, for_s: float = 60.0, available: bool = False, active: bool = False, trigger: str = ""
    ) -> Prepared:
        """The driver is alive, and has said this every five seconds for some time."""
        beats = max(2, int(for_s / 5) + 1)
        for beat in range(beats, -1, -1):
            old = message if beat * 5 <= for_s else "Processing new data"
            status = {"message": old, "isDataAvailable": available, "isTriggerActive": active}
            self.event("status", beat * 5 + 0.5, status=status, **({"trigger": trigger} if trigger else {}))
        return self

    def progress(
        self,
        number: int,
        ago_s: float,
        phases: Mapping[str, int],
        rows: int,
        *sources: tuple[Offsets | None, Offsets, Offsets | None],
        run: str = RUN,
        **more: Any,
    ) -> Prepared:
        """Add a report of batch ``number``, which ended ``ago_s`` ago: for each source where it began, where it ended,
        and where its partitions ended then.
        """
        took_ms = phases.get("triggerExecution", sum(phases.values()))
        source_rows = more.pop("source_rows", [rows] * len(sources))
        trees = [
            {
                "description": "PythonMicroBatchStreamWithAdmissionControl@1",
                "startOffset": None if start is None else tree_of(start),
                "endOffset": tree_of(end),
                "latestOffset": None if latest is None else tree_of(latest),
                "numInputRows": count,
            }
            for (start, end, latest), count in zip(sources, source_rows, strict=True)
        ]
        at_ms = int(self.now_ms - ago_s * 1000)
        report = {
            "id": QUERY,
            "runId": run,
            "name": "orders",
            "timestamp": text_of(at_ms - took_ms),
            "batchId": number,
            "numInputRows": rows,
            "inputRowsPerSecond": 10.0,
            "processedRowsPerSecond": 20.0,
            "durationMs": {**phases, "triggerExecution": took_ms},
            "stateOperators": more.pop("states", []),
            "sources": trees,
            "sink": {"description": more.pop("sink", "NoopTable"), "numOutputRows": rows},
            **more,
        }
        return self.event("progress", ago_s, run, progress=report)

    def reports(
        self,
        count: int,
        every_s: float,
        size: int,
        rows: int,
        phases: Mapping[str, int],
        until_s: float = 0.0,
        **more: Any,
    ) -> Prepared:
        """Add reports of the committed batches that ``batches`` has made, with rows, and ends that are all read."""
        for number in range(max(0, count - 8), count):
            start, end = {"0-0": size * number}, {"0-0": size * (number + 1)}
            latest = {"0-0": size * (number + 1) + more.get("unread", 0)}
            given = {key: value(number) if callable(value) else value for key, value in more.items() if key != "unread"}
            made = given.pop("made_rows", rows)
            self.progress(
                number, until_s + every_s * (count - number) - 0.4, phases, made, (start, end, latest), **given
            )
        return self

    # ---- the brokers

    def looked(
        self,
        ends: Mapping[str, tuple[int, int]],
        *,
        at: Offsets | None = None,
        seconds: float | None = 0.5,
        before: tuple[float, Offsets] | None = None,
        incarnations: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Prepared:
        """What the brokers hold, [start, end) of each partition; ``before``: the ends some seconds ago.

        The position is that of the last committed batch, or ``at``. ``seconds``: the age of the oldest unread message.
        """
        read_to = Progress({where(name): offset for name, offset in at.items()}) if at is not None else self._position()
        if incarnations:
            read_to = replace(read_to, incarnations={where(name): "a" * 32 for name in incarnations})
        born = {where(name): text for name, text in (incarnations or {}).items()}
        states = {where(name): PartitionState(OffsetRange(*span), born.get(where(name))) for name, span in ends.items()}
        found = [
            replace(lag, messages=len(lag.unread) // 10, seconds=seconds if len(lag.unread) else 0.0)
            for lag in lags(read_to, states)
        ]
        look = BrokerLook(self.now_ms - 100, {1: tuple(found)}, more.pop("away", {}), more.pop("took_s", 0.01))
        times = [] if before is None else [(int(self.now_ms - before[0] * 1000), before[1])]
        ends_at = tuple((ms, {where(name): end for name, end in some.items()}) for ms, some in times)
        self.brokers = BrokerEvidence(looks=(look,), ends_at=ends_at, **more)
        return self

    def faults(self, *faults: tuple[str, str]) -> Prepared:
        assert self.brokers is not None
        found = tuple(ServerFault(what, detail, fails=True) for what, detail in faults)
        self.brokers = replace(self.brokers, faults=found)
        return self

    def _position(self) -> Progress:
        folder = read_folder(str(self.folder), self.now_ms)
        return folder.sources[0].known

    # ---- the evidence

    def evidence(self, without: str = "") -> QueryEvidence:
        """Everything but the kinds of evidence that ``without`` names, such as ``PS``."""
        folder = None if "C" in without else read_folder(str(self.folder), self.now_ms)
        events = [
            one for one in self.events if "P" not in without and not ("S" in without and one["event"] == "status")
        ]
        reports = read_reports(events, None if folder is None else folder.query_id, self.now_ms)
        brokers = None if "B" in without or folder is None else self.brokers
        ui = None if "U" in without else self.ui
        return QueryEvidence(self.now_ms, folder, reports, brokers, ui, self.options)

    def judged(self, without: str = "") -> Diagnosis:
        return judge(self.evidence(without))
